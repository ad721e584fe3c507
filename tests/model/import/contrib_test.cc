// Operators of com.microsoft, and what the importer makes of them.
#include "contrib/contrib.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "errors/refused.h"
#include "model/onnx_text.h"

namespace steep {
namespace {

using testing::has;
using testing::import_bytes;
using testing::ops;
using testing::parse_text;
using testing::refused;
using testing::to_bytes;

std::string model(const std::string& body, int opset = 17) {
  return to_bytes(parse_text("<ir_version: 8, opset_import: [\"\" : " + std::to_string(opset) +
                             ", \"com.microsoft\" : 1]> " + body));
}

TEST(Contrib, IsFoundByNameAndSorted) {
  const auto all = contrib_ops();
  EXPECT_TRUE(std::is_sorted(all.begin(), all.end(), [](const ContribOp* a, const ContribOp* b) {
    return a->name < b->name;
  }));
  for (const ContribOp* op : all) EXPECT_EQ(find_contrib(op->name), op);
  EXPECT_EQ(find_contrib("QAttention"), nullptr);
}

TEST(Contrib, IsInlinedAsOperatorsOfOnnx) {
  const Graph g = import_bytes(model(R"(g (float[N, 3] x, float[3] b) => (float[N, 3] y)
      { y = com.microsoft.BiasGelu (x, b) })"))
                      .graph;
  EXPECT_EQ(ops(g), (std::vector<std::string>{"Add", "Gelu"}));
}

TEST(Contrib, WritesAsManyNodesAsTheCallNeeds) {
  const Graph g = import_bytes(model(R"(g (float[N, 3] x) => (float[N, 3] y)
      { y = com.microsoft.FastGelu (x) })"))
                      .graph;
  EXPECT_EQ(ops(g), std::vector<std::string>{"Gelu"});
}

TEST(Contrib, LeavesOutWhatNobodyReads) {
  const Graph g = import_bytes(model(R"(g (float[N, 3] x, float[3] w) => (float[N, 3] y)
      { y, mean, inverse, total = com.microsoft.SkipLayerNormalization (x, x, w) })"))
                      .graph;
  EXPECT_EQ(ops(g), (std::vector<std::string>{"Add", "LayerNormalization"}));
}

TEST(Contrib, InOnnxDomainIsMovedWhereOnnxHasNone) {
  const std::string body = R"(g (float[N, 3] x, float[3] w) => (float[N, 3] y)
      { y = SimplifiedLayerNormalization (x, w) })";
  const std::string bare = "<ir_version: 8, opset_import: [\"\" : 12]> ";
  EXPECT_FALSE(ops(import_bytes(to_bytes(parse_text(bare + body))).graph).empty());
  // Gelu is in ONNX from opset 20 on; ONNX Runtime writes its own Gelu in com.microsoft.
  const std::string gelu = "g (float[N, 3] x) => (float[N, 3] y) { y = Gelu (x) }";
  const ErrorParts parts = refused([&] { import_bytes(to_bytes(parse_text(bare + gelu))); });
  EXPECT_TRUE(has(parts.received, "exists from opset 20"));
}

TEST(Contrib, NamesNodeAndOperatorOfWhatItRefuses) {
  const ErrorParts parts = refused([] {
    import_bytes(model(R"(g (float[N, 3, 4] x, float[4, 12] w, float[2, N, 2, 5, 2] p)
        => (float[N, 3, 4] y) { y = com.microsoft.Attention
            <num_heads = 2, past_present_share_buffer = 1> (x, w, , , p) })"));
  });
  EXPECT_EQ(parts.op, "com.microsoft.Attention");
  EXPECT_EQ(parts.node, "y");
  EXPECT_EQ(parts.received, "past_present_share_buffer = 1");
  EXPECT_FALSE(parts.remedy.empty());
}

}  // namespace
}  // namespace steep
