// Tokens that masks of attention hide are not computed, and results do not change.

#include "autodiff/real_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "autodiff/gradient.h"
#include "autodiff/read_rows.h"
#include "model/onnx_text.h"
#include "sessions/gradient_program.h"
#include "steep/error.h"

namespace steep {
namespace {

using testing::import_graph;
using testing::ops;

constexpr int64_t kRows = 4, kTokens = 25, kWidth = 8, kClasses = 12;

Tensor normal(const Dims& dims, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> numbers;
  Tensor x = Tensor::empty(DType::f32, dims);
  for (int64_t i = 0; i < x.size(); ++i) x.data<float>()[i] = numbers(random);
  return x;
}

struct Case {
  const char* name;
  const char* mask;  // computes n from mask[b, t] for scores s[b, h, t, t], or z
  const char* loss;
  bool applies = true;  // the pass changes the graph, for keys and values at least
  bool hides = true;    // the mask hides tokens at run time
  bool drops = false;   // probabilities have dropout
};

constexpr const char* kLabels =
    "t = Reshape(h, classes) l = Reshape(label, all)"
    "loss = SoftmaxCrossEntropyLoss<ignore_index = -100>(t, l)";
constexpr const char* kFloat =
    "f = Cast<to = 1>(mask) u = Unsqueeze(f, heads_axes) i = Sub(one, u) ";

const Case kCases[] = {
    {"lowest number", "n = Mul(i, lowest) z = Add(s, n)", kLabels},
    {"added the other way", "n = Mul(i, lowest) z = Add(n, s)", kLabels},
    {"a number that counts", "n = Mul(i, low) z = Add(s, n)", kLabels, true, false},
    {"scores that stay", "c = Cast<to = 9>(u) z = Where(c, s, infinite)", kLabels},
    {"scores that go", "c = Cast<to = 9>(i) z = Where(c, lowest, s)", kLabels},
    {"factors above the mask", "n = Mul(i, lowest) w1 = Add(s, n) z = Mul(w1, half)", kLabels,
     false},
    {"factors below the mask", "n = Mul(i, lowest) w1 = Mul(s, half) z = Add(w1, n)", kLabels},
    {"two masks", "c = Cast<to = 9>(u) w1 = Where(c, s, infinite) n = Mul(i, low) z = Add(w1, n)",
     kLabels},
    {"shown again", "n = Mul(i, lowest) w1 = Add(s, n) c = Cast<to = 9>(u) z = Where(c, w1, half)",
     kLabels, false},
    {"another axis", "j = Transpose<perm = [0, 1, 3, 2]>(i) n = Mul(j, lowest) z = Add(s, n)",
     kLabels, false},
    {"one token", "n = Mul(i, lowest) z = Add(s, n)",
     "t = Gather<axis = 1>(h, first) loss = ReduceMean<keepdims = 0>(t)"},
    {"one token, with dropout", "n = Mul(i, lowest) z = Add(s, n)",
     "t = Gather<axis = 1>(h, first) loss = ReduceMean<keepdims = 0>(t)", true, true, true},
    {"two tokens, with dropout", "n = Mul(i, lowest) z = Add(s, n)",
     "t = Slice(h, first1, two1, one1) loss = ReduceMean<keepdims = 0>(t)", true, true, true},
    {"all tokens", "n = Mul(i, lowest) z = Add(s, n)",
     "t = Mul(h, h) loss = ReduceMean<keepdims = 0>(t)", true},
    {"rows that meet", "n = Mul(i, lowest) z = Add(s, n)",
     "t1 = ReduceMax(h, middle) t = Reshape(t1, classes) l1 = Slice(label, first1, one1, one1)"
     "l = Reshape(l1, all) loss = SoftmaxCrossEntropyLoss<ignore_index = -100>(t, l)",
     true},
};

Graph graph_of(const Case& c) {
  return import_graph(
             18,
             "g (float[b, t, 8] x, int64[b, t] mask, int64[b, t] label, float[8, 8] qw, "
             "float[8, 8] kw, float[8, 8] vw, float[8, 12] w) => (float loss) <int64[4] heads = "
             "{0, 0, 2, 4}, int64[3] joined = {0, 0, 8}, int64[2] classes = {-1, 12}, "
             "int64[1] all = {-1}, int64[2] heads_axes = {1, 2}, int64[1] middle = {1}, "
             "int64[1] first1 = {0}, int64[1] one1 = {1}, int64[1] two1 = {2}, int64 first = {0}, "
             "float one = {1.0}, bool yes = {1}, "
             "float half = {0.5}, float low = {-1.5}, float lowest = {-3.4e38}, "
             "float infinite = {-inf}> {"
             "q = MatMul(x, qw) q1 = Reshape(q, heads) q2 = Transpose<perm = [0, 2, 1, 3]>(q1)"
             "k = MatMul(x, kw) k1 = Reshape(k, heads) k2 = Transpose<perm = [0, 2, 3, 1]>(k1)"
             "v = MatMul(x, vw) v1 = Reshape(v, heads) v2 = Transpose<perm = [0, 2, 1, 3]>(v1)"
             "s = MatMul(q2, k2) " +
                 std::string(kFloat) + c.mask + " p0 = Softmax<axis = -1>(z) " +
                 (c.drops ? "p = Dropout(p0, half, yes)" : "p = Identity(p0)") +
                 " y = MatMul(p, v2)"
                 "y1 = Transpose<perm = [0, 2, 1, 3]>(y) y2 = Reshape(y1, joined) r = Add(y2, x)"
                 "h0 = Tanh(r) h = MatMul(h0, w) " +
                 c.loss + "}")
      .graph;
}

/// Inputs with these sequence lengths. `holes`: every third token is hidden, too.
std::vector<Tensor> inputs_of(const std::vector<int64_t>& lengths, bool holes) {
  std::mt19937 random(5);
  Tensor mask = Tensor::empty(DType::i64, {kRows, kTokens});
  Tensor label = Tensor::empty(DType::i64, {kRows, kTokens});
  for (int64_t i = 0; i < mask.size(); ++i) {
    const int64_t place = i % kTokens;
    const bool real =
        place < lengths[static_cast<size_t>(i / kTokens)] && (!holes || place % 3 > 0);
    mask.data<int64_t>()[i] = real ? 1 : 0;
    const bool counts = real && random() % 2 == 0;
    label.data<int64_t>()[i] = counts ? static_cast<int64_t>(random() % kClasses) : -100;
  }
  return {normal({kRows, kTokens, kWidth}, 1),
          mask,
          label,
          normal({8, 8}, 2),
          normal({8, 8}, 3),
          normal({8, 8}, 4),
          normal({8, kClasses}, 6)};
}

/// A program of the loss and the gradients of all float inputs.
Program program_of(Graph g, bool leaving_out) {
  std::vector<Value> wrt;
  for (Value v : g.inputs()) {
    if (is_float(v.dtype())) wrt.push_back(v);
  }
  if (leaving_out) compute_read_rows(g);
  verify(g, "compute_read_rows");
  const std::vector<Value> losses{g.outputs()[0].value};
  for (Value gradient : add_gradients(g, losses, {}, wrt, Phase::forward)) {
    if (gradient) g.add_output("gradient", gradient);
  }
  return Program(std::move(g), {.seed = 11});
}

bool applies(const Graph& graph) {
  Graph g = graph;
  compute_read_rows(g);
  const auto names = ops(g);
  return std::count(names.begin(), names.end(), "steep.PutRows") > 0;
}

void expect_close(const std::vector<Tensor>& got, const std::vector<Tensor>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].dims(), want[i].dims());
    for (int64_t k = 0; k < got[i].size(); ++k) {
      const float a = got[i].data<float>()[k], b = want[i].data<float>()[k];
      ASSERT_TRUE(std::isnan(a) == std::isnan(b)) << "result " << i << ": " << a << ", " << b;
      if (std::isnan(b)) continue;
      ASSERT_NEAR(a, b, 2e-6 * (1 + std::abs(b))) << "result " << i;
    }
  }
}

TEST(RealRows, ChangeNoResult) {
  for (const Case& c : kCases) {
    const Graph g = graph_of(c);
    EXPECT_EQ(applies(g), c.applies) << c.name;
    Program dense = program_of(g, false), sparse = program_of(g, true);
    for (const auto& lengths : std::vector<std::vector<int64_t>>{
             {10, 10, 10, 10}, {25, 1, 7, 3}, {25, 25, 25, 25}, {9, 0, 3, 1}}) {
      for (const bool holes : {false, true}) {
        SCOPED_TRACE(std::string(c.name) + ", " + std::to_string(lengths[1]));
        if (lengths[1] < 2 && std::string(c.mask).find("infinite") != std::string::npos)
          continue;  // NaN: PyTorch multiplies it by 0 only in some rows
        const std::vector<Tensor> inputs = inputs_of(lengths, holes);
        expect_close(sparse.forward(inputs).outputs, dense.forward(inputs).outputs);
      }
    }
  }
}

TEST(RealRows, AreFewerThanAll) {
  for (const Case& c : kCases) {
    Program program = program_of(graph_of(c), true);
    const std::vector<Tensor> inputs = inputs_of({10, 10, 10, 10}, false);
    std::vector<Type> types;
    for (const Tensor& t : inputs) types.push_back({t.dtype(), to_shape(t.dims())});
    program.forward(inputs);
    // 40 of 100 tokens are real, and half of all tokens are computed.
    const bool fewer = program.dump(types).find("float32[50, 8]") != std::string::npos;
    EXPECT_EQ(fewer, c.applies && c.hides) << c.name;
  }
}

TEST(RealRows, MasksOfOtherShapesAreRefused) {
  Program program = program_of(graph_of(kCases[0]), true);
  for (const Dims& dims : std::vector<Dims>{{4, 24}, {3, 25}, {1, 25}, {100}}) {
    std::vector<Tensor> inputs = inputs_of({10, 10, 10, 10}, false);
    inputs[1] = Tensor::empty(DType::i64, dims);
    std::fill_n(inputs[1].data<int64_t>(), inputs[1].size(), 1);
    EXPECT_THROW(program.forward(inputs), ShapeError);
  }
}

}  // namespace
}  // namespace steep
