// Operands are checked before rules and kernels rely on them.

#include <gtest/gtest.h>

#include "errors/refused.h"

namespace steep {
namespace {

using testing::has;
using testing::import_bytes;
using testing::import_graph;
using testing::parse_text;
using testing::to_bytes;

/// The ShapeError with which a model in ONNX's text form is refused.
ErrorParts misfit(const std::string& graph, const std::string& imports = "") {
  try {
    import_bytes(to_bytes(
        parse_text("<ir_version: 10, opset_import: [\"\" : 22" + imports + "]> " + graph)));
  } catch (const ShapeError& e) {
    return e.parts();
  }
  ADD_FAILURE() << "nothing was thrown: " << graph;
  return {};
}

TEST(Operands, RanksAreChecked) {
  const ErrorParts error = misfit(R"(g (float[1, 1, 1, 1] x, float[0, 3] offset) => (float y)
      <float[1, 1, 1, 1] w = {1}> { y = DeformConv(x, w, offset) })");
  EXPECT_EQ(error.op, "DeformConv");
  EXPECT_EQ(error.expected, "input 2 of 4 dimension(s)");
  EXPECT_EQ(error.received, "float32[0, 3] offset");
  EXPECT_TRUE(
      has(misfit("g (float[2, 3] x, float[2, 2] r) => (float y) { y = RoiAlign(x, r, x) }").op,
          "RoiAlign"));
}

TEST(Operands, BoundsAreSingleValues) {
  const ErrorParts error =
      misfit("g (float[2, 2] x, float[1, 1, 2] most) => (float y) { y = Clip(x, , most) }");
  EXPECT_EQ(error.op, "Clip");
  EXPECT_EQ(error.received, "float32[1, 1, 2] most");
  misfit("g (float[2] x, float[2] least) => (float[2] y) { y = Clip(x, least) }");
  misfit("g (float x, float[1] least) => (float y) { y = Clip(x, least) }");
  import_graph(22, "g (float[2] x, float[1] a, float b) => (float[2] y) { y = Clip(x, a, b) }");
}

TEST(Operands, RanksThatAreNotKnownPass) {
  import_graph(22, R"(g (float[] x, float[N, 2, H, W] offset) => (float y)
      <float[1, 1, 1, 1] w = {1}> { s = Abs(x) y = DeformConv(s, w, offset) })");
}

TEST(Operands, NoneIsMissing) {
  const ErrorParts error = misfit(R"(g (float[2] x) => (float[2] y) { y = own.f(x) }
      <opset_import: ["" : 22], domain: "own"> f (a, b) => (c) { c = Add(a, b) })",
                                  ", \"own\" : 1");
  EXPECT_EQ(error.op, "Add");
  EXPECT_EQ(error.expected, "input 1, B");
  EXPECT_EQ(misfit("g (float[2] x) => (float y) { y = Einsum<equation = \"i,j->ij\">(x, ) }").op,
            "Einsum");
}

TEST(Operands, WindowsAndBlocksAreBounded) {
  for (const char* node :
       {"DeformConv<group = 0>(x, w, x)", "DeformConv<offset_group = 0>(x, w, x)",
        "Conv<strides = [4611686018427387904, 1]>(x, w)", "LRN<size = 0>(x)",
        "DepthToSpace<blocksize = 4611686018427387904>(x)"}) {
    const ErrorParts error = misfit(std::string("g (float[1, 1, 1, 1] x) => (float y) ") +
                                    "<float[1, 1, 1, 1] w = {1}> { y = " + node + " }");
    EXPECT_TRUE(has(error.what, "out of range")) << node << ": " << error.what;
  }
}

TEST(Operands, SizesThatAreConstantsAreBounded) {
  for (const char* node : {"Col2Im(x, far, one)", "Col2Im(x, one, far)", "Col2Im(x, low, one)",
                           "Pad(x, many)", "Tile(x, many)"}) {
    const ErrorParts error = misfit(
        std::string("g (float[1, 1, 1] x) => (float y) <int64[2] one = {1, 1}, ") +
        "int64[2] far = {4611686018427387904, 1}, int64[2] low = {-9223372036854775808, 1}, " +
        "int64[6] many = {1, 1, 4611686018427387904, 1, 1, 1}> { y = " + node + " }");
    EXPECT_TRUE(has(error.what, "out of range")) << node << ": " << error.what;
  }
}

TEST(Operands, NothingAndNearlyEverythingMayBeSplit) {
  import_graph(18,
               R"(g (float[0] x) => (float[N] y) { y, z = Split<axis = 0, num_outputs = 2>(x) })");
  const ErrorParts error = misfit(R"(g (float[9223372036854775807] x) => (float[N] y)
      { y, z = Split<axis = 0, num_outputs = 2>(x) })");
  EXPECT_EQ(error.op, "Split");
  // Unnamed pieces cost nothing.
  const ImportedModel model = import_graph(18, R"(g (float[60000] x) => (float[N] y)
      { y = Split<axis = 0, num_outputs = 60000>(x) })");
  EXPECT_LE(model.graph.value_count(), 5U);
  EXPECT_THROW(
      import_graph(18, "g (float[N] x) => (float[M] y) { y = Split<num_outputs = 60000>(x) }"),
      ModelError);
}

TEST(Operands, AnyStepMaySlice) {
  import_graph(17, R"(g (float[2] x) => (int64[K] y)
      <int64[1] a = {0}, int64[1] from = {3}, int64[1] to = {-9223372036854775807},
       int64[1] step = {-9223372036854775807}>
      { s = Shape(x) z = Slice(s, from, to, a, step) y = Slice(z, from, s, a, step) })");
}

TEST(Operands, NumbersThatIntegersCannotHoldAreRefused) {
  for (const char* alpha : {"nan", "1e30"}) {
    onnx::ModelProto model = parse_text(
        R"(<ir_version: 10, opset_import: ["" : 22]> g (int64[N, 2] x) => (int64[N, 2] y)
           <int64[2, 2] w = {1, 2, 3, 4}> { y = Gemm<alpha = 2.0>(x, w) })");
    model.mutable_graph()->mutable_node(0)->mutable_attribute(0)->set_f(std::stof(alpha));
    const ErrorParts error = testing::refused([&] { import_bytes(to_bytes(model)); });
    EXPECT_TRUE(has(error.what, "not an integer")) << error.what;
    EXPECT_EQ(error.op, "Gemm");
  }
}

}  // namespace
}  // namespace steep
