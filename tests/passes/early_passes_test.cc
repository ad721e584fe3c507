// Passes that run before differentiation can be disabled by name.

#include <gtest/gtest.h>

#include <algorithm>

#include "model/onnx_text.h"
#include "passes/pipeline.h"
#include "steep/error.h"

namespace steep {
namespace {

using testing::import_graph;
using testing::ops;

/// A model that selects one token of a sequence, after a product and a Gelu written in small
/// operators.
Graph model() {
  return import_graph(18, R"(g (float[4, 25, 8] x, float[8, 8] w) => (float[4, 8] y) <
                               float half = {0.5}, float one = {1.0},
                               float root = {1.4142135623730951}, int64 first = {0}> {
                               a = Div(x, root)  b = Erf(a)  c = Add(b, one)  d = Mul(x, c)
                               h = Mul(d, half)  s = MatMul(h, w)
                               y = Gather <axis = 1> (s, first) })")
      .graph;
}

TEST(EarlyPasses, AreLeftOutByName) {
  const std::vector<std::string> before = ops(model());
  for (const Pass& pass : early_passes()) {
    SCOPED_TRACE(pass.name);
    Graph with = model(), without = model();
    run_early_pass(with, pass.name, {});
    run_early_pass(without, pass.name, {std::string(pass.name)});
    EXPECT_NE(ops(with), before);
    EXPECT_EQ(ops(without), before);
  }
}

TEST(EarlyPasses, AreKnownToWhoeverDisablesThem) {
  std::set<std::string> names;
  for (const Pass& pass : early_passes()) names.emplace(pass.name);
  EXPECT_EQ(names, (std::set<std::string>{"recognise", "compute_read_rows"}));
  EXPECT_NO_THROW(check_passes(names));
  EXPECT_EQ(pass_names().size(), early_passes().size() + passes().size());
  Graph g;
  EXPECT_THROW(run_early_pass(g, "fuse_matmul", {}), InternalError);
}

}  // namespace
}  // namespace steep
