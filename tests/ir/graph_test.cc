#include "ir/graph.h"

#include <gtest/gtest.h>

#include "ir/compact.h"
#include "ops/build.h"
#include "steep/error.h"

namespace steep {
namespace {

Graph small_graph() {
  Graph g;
  Value x = g.add_input("x", {DType::f32, Shape{Dim::symbol("batch"), 4}});
  Value y = apply("Relu", {x});
  g.add_output("y", y * 2.0);
  return g;
}

TEST(Graph, PrintsOneLineANode) {
  EXPECT_EQ(to_text(small_graph()),
            "input %x: float32[batch, 4]\n"
            "%Relu: float32[batch, 4] = Relu(%x)\n"
            "%Mul: float32[batch, 4] = Mul(%Relu, %const)\n"
            "output y = %Mul\n");
}

TEST(Graph, CopiesAreIndependent) {
  Graph a = small_graph();
  Graph b = a;
  b.replace_uses(b.outputs()[0].value, b.inputs()[0]);
  EXPECT_EQ(b.prune(), 2U);
  EXPECT_EQ(a.node_count(), 2U);
  EXPECT_EQ(&a.outputs()[0].value.graph(), &a);
  EXPECT_EQ(&b.outputs()[0].value.graph(), &b);
}

TEST(Graph, CompactsToTheSameGraph) {
  Graph g = small_graph();
  const Value x = g.inputs()[0], state = g.add_state("s", {DType::f32, Shape{4}});
  g.add_input("later", {DType::f32, Shape{4}}, Phase::backward);
  apply("Tanh", {apply("Exp", {x})});
  g.set_tensor(state, Tensor::zeros(DType::f32, {4}));
  g.add_update(state, state * 0.5);
  g.let_output_change(0);
  Node early = apply("Neg", {state}).producer();
  g.place_like(early, g.nodes()[0]);
  g.add_output("early", early.output(0));
  EXPECT_EQ(g.prune(), 2U);
  const Graph small = compacted(g);
  EXPECT_EQ(to_text(small), to_text(g));
  EXPECT_EQ(small.node_slots(), g.node_count());
  EXPECT_LT(small.value_count(), g.value_count());
  EXPECT_EQ(small.input_phase(small.inputs()[1]), Phase::backward);
  EXPECT_TRUE(small.outputs()[0].may_change);
  EXPECT_NE(small.states()[0].tensor(), nullptr);
}

TEST(Graph, CompactedGradientInputsFollowTheirValues) {
  Graph g = small_graph();
  const Value y = g.outputs()[0].value;
  const Value dy = g.add_gradient_input("dy", y);
  g.add_input("rate", {DType::f32, Shape{}}, Phase::backward);
  {
    const Graph::Scope scope(g, Phase::backward, "");
    g.add_output("dx", apply("Neg", {dy}), Phase::backward);
  }
  Graph small = compacted(g);
  EXPECT_EQ(to_text(small), to_text(g));
  EXPECT_EQ(small.inputs()[1].name(), "dy");
  EXPECT_EQ(small.find(y.name()), small.outputs()[0].value);
  EXPECT_EQ(small.gradient_of(small.inputs()[1]), small.outputs()[0].value);
  const Value other = apply("Ceil", {small.inputs()[0]});
  small.replace_uses(small.outputs()[0].value, other);
  EXPECT_EQ(small.gradient_of(small.inputs()[1]), other);
}

TEST(Graph, NamesAreUnique) {
  Graph g;
  Value a = g.add_input("x", {DType::f32, Shape{1}});
  Value b = g.add_input("x", {DType::f32, Shape{1}});
  EXPECT_NE(a.name(), b.name());
  EXPECT_EQ(g.find("x"), a);
}

TEST(Graph, RefusesMoreNodesThanItsLimit) {
  Graph g;
  g.node_limit = 2;
  Value x = g.add_input("x", {DType::f32, Shape{1}});
  x = tanh(tanh(x));
  EXPECT_THROW(tanh(x), ModelError);
}

TEST(Graph, NamesACycle) {
  Graph g = small_graph();
  Node relu = g.nodes()[0];
  relu.set_input(0, g.outputs()[0].value);
  try {
    g.nodes();
    FAIL() << "a cycle went unseen";
  } catch (const ModelError& e) {
    EXPECT_FALSE(e.parts().node.empty());
  }
}

TEST(Verifier, FindsAForwardNodeThatReadsABackwardInput) {
  Graph g;
  Value dy = g.add_input("dy", {DType::f32, Shape{1}}, Phase::backward);
  g.add_output("y", tanh(dy));
  EXPECT_THROW(verify(g, "the test"), InternalError);
}

TEST(Inference, KeepsSymbolsAndShapeArithmetic) {
  Graph g;
  Value x = g.add_input("x", {DType::f32, Shape{Dim::symbol("batch"), 6}});
  Value rows = apply("Gather", {shape_of(x), ints(g, {0})});
  Value shape = apply("Concat", {rows, ints(g, {2, 3})}, {{"axis", int64_t{0}}});
  EXPECT_EQ(to_string(reshape(x, shape).type()), "float32[batch, 2, 3]");
}

TEST(Inference, NamesTheNodeThatDoesNotFit) {
  Graph g;
  Value x = g.add_input("x", {DType::f32, Shape{2, 3}});
  try {
    matmul(x, x);
    FAIL() << "a mismatch went unseen";
  } catch (const ShapeError& e) {
    EXPECT_EQ(e.parts().op, "MatMul");
    EXPECT_EQ(e.parts().received, "float32[2, 3], float32[2, 3]");
  }
  EXPECT_EQ(g.node_count(), 0U) << "the refused node stayed behind";
}

}  // namespace
}  // namespace steep
