// bfloat16 mixed precision: the dtypes that products read, write and keep; no value is widened in
// memory if a kernel can read it narrow.

#include <gtest/gtest.h>

#include <cmath>

#include "autodiff/gradient.h"
#include "ops/build.h"
#include "passes/pipeline.h"
#include "program/program.h"
#include "steep/error.h"

namespace steep {
namespace {

Type matrix(int64_t rows, int64_t columns) { return {DType::f32, Shape{rows, columns}}; }

std::vector<Node> nodes_of(const Graph& g, std::string_view op) {
  std::vector<Node> found;
  for (Node n : g.nodes()) {
    if (n.op() == op) found.push_back(n);
  }
  return found;
}

Graph narrowed(Graph g) {
  run_passes(g, {.precision = Precision::bf16});
  return g;
}

/// Two linear layers with GELU between them and a loss; the gradients of both weights.
Graph classifier() {
  Graph g;
  Value x = g.add_input("x", matrix(32, 24));
  Value labels = g.add_input("labels", {DType::i64, Shape{32}});
  Value w1 = g.add_state("w1", matrix(24, 40)), b1 = g.add_state("b1", {DType::f32, Shape{40}});
  Value w2 = g.add_state("w2", matrix(40, 16)), b2 = g.add_state("b2", {DType::f32, Shape{16}});
  Value hidden = apply("Gelu", {matmul(x, w1) + b1});
  Value logits = matmul(hidden, w2) + b2;
  const std::vector<Value> loss =
      apply_n("steep.SoftmaxCrossEntropy", std::vector{logits, labels}, 3);
  g.add_output("loss", loss[0]);
  const Value outputs[] = {loss[0]}, seeds[] = {Value()}, wrt[] = {w1, b1, w2, b2};
  for (Value gradient : add_gradients(g, outputs, seeds, wrt)) {
    g.add_output("gradient", gradient, Phase::backward);
  }
  return g;
}

TEST(Precision, ConvolutionsKeepTheirOperandsAndMayRoundThem) {
  Graph g;
  Value x = g.add_input("x", {DType::f32, Shape{2, 3, 8, 8}});
  Value w = g.add_state("w", {DType::f32, Shape{4, 3, 3, 3}});
  Value y = apply("Conv", {x, w});
  Value seed = g.add_input("seed", y.type());
  const Value outputs[] = {y}, seeds[] = {seed}, wrt[] = {x, w};
  for (Value gradient : add_gradients(g, outputs, seeds, wrt))
    g.add_output("gradient", gradient, Phase::backward);
  const Graph after = narrowed(std::move(g));
  for (const char* op : {"steep.ConvGradInput", "steep.ConvGradWeight"}) {
    ASSERT_EQ(nodes_of(after, op).size(), 1U) << op;
    Node n = nodes_of(after, op)[0];
    EXPECT_EQ(n.attrs().integer("allow_bf16", 0), 1) << op;
    EXPECT_EQ(n.input(0).dtype(), DType::f32) << op;
    EXPECT_EQ(n.output(0).dtype(), DType::f32) << op;
  }
}

TEST(Precision, ProductsReadBf16AndOnlyWeightGradientsAreWrittenAsF32) {
  const Graph g = narrowed(classifier());
  int wide = 0;
  for (Node n : nodes_of(g, "steep.MatMul")) {
    EXPECT_EQ(n.input(0).dtype(), DType::bf16) << n.name();
    EXPECT_EQ(n.input(1).dtype(), DType::bf16) << n.name();
    if (n.input(2)) {
      EXPECT_EQ(n.input(2).dtype(), DType::f32) << n.name();
    }
    wide += n.output(0).dtype() == DType::f32;
  }
  EXPECT_EQ(nodes_of(g, "steep.MatMul").size(), 5U) << to_text(g);
  EXPECT_EQ(wide, 2) << to_text(g);
  for (const Output& o : g.outputs()) EXPECT_EQ(o.value.dtype(), DType::f32) << o.name;
  for (Value s : g.states()) EXPECT_EQ(s.dtype(), DType::f32) << s.name();
}

TEST(Precision, TheOnlyCastsThatWalkMemoryAreThoseOfInputsAndWeights) {
  const Graph g = narrowed(classifier());
  for (Node n : nodes_of(g, "Cast")) EXPECT_FALSE(n.input(0).producer()) << to_text(g);
  EXPECT_EQ(nodes_of(g, "Cast").size(), 3U) << to_text(g);  // x, w1, w2
}

TEST(Precision, LossAndBiasGradientsReadBf16) {
  const Graph g = narrowed(classifier());
  EXPECT_EQ(nodes_of(g, "steep.SoftmaxCrossEntropy")[0].input(0).dtype(), DType::bf16);
  EXPECT_EQ(nodes_of(g, "steep.SoftmaxCrossEntropyGrad")[0].output(0).dtype(), DType::bf16);
  for (Node n : nodes_of(g, "steep.SumTo")) {
    EXPECT_EQ(n.input(0).dtype(), DType::bf16);
    EXPECT_EQ(n.output(0).dtype(), DType::f32);
  }
}

TEST(Precision, BackwardReadsWhatForwardNarrowed) {
  const Graph g = narrowed(classifier());
  for (Node n : nodes_of(g, "Cast")) EXPECT_EQ(n.phase(), Phase::forward) << n.name();
}

TEST(Precision, MovesNarrowElementsBetweenProducts) {
  Graph g;
  Value x = g.add_input("x", matrix(12, 12)), w = g.add_state("w", matrix(12, 12));
  Value heads = transpose(reshape(matmul(x, w), {2, 6, 3, 4}), {2, 0, 1, 3});
  auto head = [&](int64_t i) {
    return apply("Gather", {heads, ints(g, {i})}, {{"axis", int64_t{0}}});
  };
  g.add_output("y", matmul(head(1), swap_last(head(2))));
  const Graph after = narrowed(g);
  EXPECT_EQ(nodes_of(after, "Cast").size(), 2U) << to_text(after);  // x and w
  for (Node n : nodes_of(after, "Gather")) EXPECT_EQ(n.output(0).dtype(), DType::bf16);
}

TEST(Precision, AResultIsAsExactAsTheProductOfRoundedOperands) {
  Graph g;
  Value x = g.add_input("x", matrix(1, 2)), w = g.add_input("w", matrix(2, 1));
  g.add_output("y", matmul(x, w));
  Program program(std::move(g), {.precision = Precision::bf16});
  const Tensor inputs[] = {Tensor::from(std::vector<float>{1.001F, 3}, {1, 2}),
                           Tensor::from(std::vector<float>{1, 1.0078125F}, {2, 1})};
  // 1.001 rounds to 1; 1 + 2^-7 is a bfloat16; the result is no bfloat16 and is not rounded.
  EXPECT_EQ(*program.forward(inputs).outputs[0].data<float>(), 4.0234375F);
}

TEST(Precision, Fp16ProductsReadFloat16AndOverflowToInfinity) {
  Graph g = classifier();
  run_passes(g, {.precision = Precision::fp16});
  int wide = 0;
  for (Node n : nodes_of(g, "steep.MatMul")) {
    EXPECT_EQ(n.input(0).dtype(), DType::f16) << n.name();
    EXPECT_EQ(n.input(1).dtype(), DType::f16) << n.name();
    wide += n.output(0).dtype() == DType::f32;
  }
  EXPECT_EQ(wide, 2) << to_text(g);
  for (Value s : g.states()) EXPECT_EQ(s.dtype(), DType::f32) << s.name();

  Graph square;
  Value x = square.add_input("x", matrix(1, 1));
  square.add_output("y", matmul(matmul(x, x), x));
  Program program(std::move(square), {.precision = Precision::fp16});
  auto cube = [&](float v) {
    const Tensor inputs[] = {Tensor::from(std::vector<float>{v}, {1, 1})};
    return *program.forward(inputs).outputs[0].data<float>();
  };
  EXPECT_EQ(cube(1.0001F), 1);         // float16 resolves 2^-10
  EXPECT_EQ(cube(100), 1000000);       // an output is float32
  EXPECT_TRUE(std::isinf(cube(300)));  // the square overflows float16
}

/// Large enough for oneDNN; compared with sums of products of rounded operands.
TEST(Precision, Fp16ProductsOfEverySizeAreThoseOfRoundedOperands) {
  for (int64_t n : {3, 70, 130}) {
    Graph g;
    Value x = g.add_input("x", matrix(n, n)), w = g.add_input("w", matrix(n, n));
    g.add_output("y", matmul(x, w));
    Program program(std::move(g), {.precision = Precision::fp16});
    // Multiples of 2^-9 below 1 are float16 numbers; the additional 2^-14 is rounded away.
    std::vector<float> a(static_cast<size_t>(n * n)), b = a, exact_a = a;
    for (size_t i = 0; i < a.size(); ++i) {
      exact_a[i] = static_cast<float>((i * 37) % 512) / 512;
      a[i] = exact_a[i] + 0x1p-14F;
      b[i] = static_cast<float>((i * 91) % 512) / 512 - 0.5F;
    }
    const Tensor inputs[] = {Tensor::from(a, {n, n}), Tensor::from(b, {n, n})};
    const Tensor y = program.forward(inputs).outputs[0];
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        double sum = 0;
        for (int64_t k = 0; k < n; ++k) {
          const float left = exact_a[static_cast<size_t>(i * n + k)];
          sum += double{left < 0.0625F ? a[static_cast<size_t>(i * n + k)] : left} *
                 b[static_cast<size_t>(k * n + j)];
        }
        EXPECT_NEAR(y.data<float>()[i * n + j], sum, 1e-4) << n << " " << i << " " << j;
      }
    }
  }
}

TEST(Precision, LeavesOtherTypesAlone) {
  Graph g;
  Value x = g.add_input("x", {DType::f64, Shape{4, 4}});
  g.add_output("y", matmul(x, x));
  const Graph same = narrowed(g);
  EXPECT_EQ(same.node_count(), 1U);
  EXPECT_EQ(same.outputs()[0].value.dtype(), DType::f64);
}

TEST(Precision, RefusesAnUnknownName) {
  EXPECT_EQ(precision_from("bf16"), Precision::bf16);
  EXPECT_EQ(precision_from("fp16"), Precision::fp16);
  EXPECT_THROW(precision_from("fp8"), ModelError);
}

}  // namespace
}  // namespace steep
