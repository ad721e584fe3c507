// Attention: the rewrite happens in forward and backward together or not at all, and results stay
// the same.

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <random>

#include "autodiff/gradient.h"
#include "ir/seed.h"
#include "ops/build.h"
#include "passes/pipeline.h"
#include "program/program.h"

namespace steep {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

int count(const Graph& g, std::string_view op) {
  int n = 0;
  for (Node node : g.nodes()) n += node.op() == op;
  return n;
}

Node find(const Graph& g, std::string_view op) {
  for (Node n : g.nodes()) {
    if (n.op() == op) return n;
  }
  return {};
}

Graph fused(const Graph& g) {
  Graph copy = g;
  fuse_attention(copy);
  copy.prune();
  verify(copy, "fuse_attention");
  return copy;
}

/// One attention over inputs q, k, v [batch, time, head, width], with options.
struct Model {
  int64_t batch = 2, heads = 3, queries = 7, keys = 9, width = 5;
  DType dtype = DType::f32;
  bool dropout = false, zero_nan = false, safe = false;
  std::function<Value(Graph&, Value)> mask{};  // of the scores
  std::function<void(Graph&, Value)> look{};   // reads the probabilities
  std::vector<Value> more{};                   // further values whose gradients are wanted

  Value heads_of(Graph& g, const char* name, int64_t time) const {
    return g.add_input(name, {dtype, Shape{batch, time, heads, width}});
  }

  Graph build() {
    Graph g;
    Value q = heads_of(g, "q", queries), k = heads_of(g, "k", keys), v = heads_of(g, "v", keys);
    Value scores =
        matmul(transpose(q, {0, 2, 1, 3}) * 0.7, transpose(k, {0, 2, 3, 1}) * 0.5) / 1.25;
    if (mask) scores = mask(g, scores);
    Value p = apply(safe ? "steep.SafeSoftmax" : "Softmax", {scores}, {{"axis", int64_t{-1}}});
    if (look) look(g, p);
    if (zero_nan) p = where(apply("IsNaN", {p}), 0, p);
    if (dropout) {
      p = apply("steep.Dropout", {p, seed_of(g)}, {{"ratio", 0.25}, {"stream", int64_t{3}}});
    }
    Value y = reshape(transpose(matmul(p, transpose(v, {0, 2, 1, 3})), {0, 2, 1, 3}),
                      Ints{batch, queries, heads * width});
    g.add_output("y", y);
    Value dy = g.add_input("dy", y.type());
    std::vector<Value> wrt{q, k, v};
    wrt.insert(wrt.end(), more.begin(), more.end());
    const std::vector<Value> grads =
        add_gradients(g, std::vector{y}, std::vector{dy}, wrt, Phase::forward);
    for (Value d : grads) g.add_output("d", d);
    g.prune();
    return g;
  }
};

std::vector<Tensor> inputs_of(const Graph& g) {
  std::vector<Tensor> inputs;
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (Value v : g.inputs()) {
    if (is_seed(v)) continue;
    Tensor t = Tensor::empty(v.dtype(), v.type().dims());
    for (int64_t i = 0; i < t.size(); ++i) {
      if (v.dtype() == DType::f64) t.data<double>()[i] = normal(random);
      if (v.dtype() == DType::f32) t.data<float>()[i] = normal(random);
      if (v.dtype() == DType::boolean) t.data<bool>()[i] = i % 3 != 1;
    }
    inputs.push_back(t);
  }
  return inputs;
}

void expect_same_results(const Graph& g) {
  const std::vector<Tensor> inputs = inputs_of(g);
  const auto with = Program(g).forward(inputs).outputs;
  const auto without = Program(g, {.disabled_passes = {"fuse_attention"}}).forward(inputs).outputs;
  ASSERT_EQ(with.size(), without.size());
  for (size_t i = 0; i < with.size(); ++i) {
    ASSERT_EQ(with[i].dims(), without[i].dims());
    if (with[i].dtype() != DType::f32) continue;
    for (int64_t k = 0; k < with[i].size(); ++k) {
      const float a = with[i].data<float>()[k], b = without[i].data<float>()[k];
      ASSERT_NEAR(a, b, 1e-4F * (1 + std::abs(b))) << "output " << i << ", element " << k;
    }
  }
}

/// Expects that the rewrite replaces everything: products, softmax, dropout and transposes.
Graph expect_fused(Model model) {
  const Graph g = model.build();
  Graph after = fused(g);
  EXPECT_EQ(count(after, "steep.Attention"), 1) << to_text(after);
  EXPECT_EQ(count(after, "steep.AttentionGrad"), 1) << to_text(after);
  for (const char* op : {"MatMul", "Softmax", "steep.SafeSoftmax", "steep.SoftmaxGrad",
                         "steep.Dropout", "Transpose", "Mul", "Div", "IsNaN", "Where"}) {
    EXPECT_EQ(count(after, op), 0) << op << "\n" << to_text(after);
  }
  expect_same_results(g);
  return after;
}

void expect_untouched(Model model) {
  const Graph g = model.build();
  const Graph after = fused(g);
  EXPECT_EQ(count(after, "steep.Attention"), 0) << to_text(after);
  EXPECT_EQ(after.node_count(), g.node_count());
  expect_same_results(g);
}

TEST(FuseAttention, TakesForwardAndBackward) { expect_fused({}); }

TEST(FuseAttention, TakesDropoutAndTheGuardAgainstNaN) {
  expect_fused({.dropout = true});
  expect_fused({.zero_nan = true});
  const Graph g = expect_fused({.dropout = true, .zero_nan = true});
  const Attrs& attrs = find(g, "steep.AttentionGrad").attrs();
  EXPECT_EQ(attrs.real("ratio", 0), 0.25);
  EXPECT_EQ(attrs.integer("stream", 0), 3);
  EXPECT_EQ(attrs.integer("zero_nan", 0), 1);
  EXPECT_NEAR(attrs.real("scale", 0), 0.7 * 0.5 / 1.25, 1e-7);
}

TEST(FuseAttention, TakesTheSafeSoftmax) {
  const Graph g = expect_fused(
      {.dropout = true, .safe = true, .mask = [](Graph& graph, Value s) {
         return where(graph.add_input("keep", {DType::boolean, Shape{2, 1, 7, 1}}), s, -INFINITY);
       }});
  EXPECT_EQ(find(g, "steep.Attention").attrs().integer("zero_shut", 0), 1);
  EXPECT_EQ(find(g, "steep.AttentionGrad").attrs().integer("zero_nan", 0), 0);
}

TEST(FuseAttention, ReadsAndWritesHeadsWhereTheyLie) {
  const Graph g = expect_fused({});
  EXPECT_EQ(find(g, "steep.Attention").attrs().ints("perm_k"), (Ints{0, 2, 1, 3}));
  EXPECT_EQ(find(g, "steep.Attention").attrs().ints("perm_y"), (Ints{0, 2, 1, 3}));
  EXPECT_EQ(find(g, "steep.AttentionGrad").attrs().ints("perm_dk"), (Ints{0, 2, 1, 3}));
  EXPECT_EQ(find(g, "steep.AttentionGrad").attrs().ints("perm_dy"), (Ints{0, 2, 1, 3}));
}

TEST(FuseAttention, TakesMasks) {
  for (const Shape& shape : {Shape{7, 9}, Shape{2, 1, 1, 9}, Shape{2, 3, 7, 9}, Shape{9}}) {
    expect_fused({.mask = [&](Graph& g, Value s) {
      return s + g.add_input("bias", {DType::f32, shape});
    }});
  }
  for (double masked : {-3.0, -1e30}) {
    Graph after = expect_fused({.mask = [&](Graph& g, Value s) {
      Value keep = g.add_input("keep", {DType::boolean, Shape{2, 1, 7, 9}});
      return where(keep, s, masked) + g.add_input("bias", {DType::f32, Shape{2, 1, 1, 9}});
    }});
    EXPECT_FLOAT_EQ(static_cast<float>(find(after, "steep.Attention").attrs().real("masked", 0)),
                    static_cast<float>(masked));
  }
}

TEST(FuseAttention, TakesAMaskThatSaysWhatToDrop) {
  const Graph after =
      expect_fused({.dropout = true, .mask = [](Graph& g, Value s) {
                      return where(g.add_input("gone", {DType::boolean, Shape{7, 9}}), -2.0, s);
                    }});
  EXPECT_EQ(count(after, "Not"), 1);
}

Tensor causal_tensor(int64_t n, float behind) {
  Tensor t = Tensor::zeros(DType::f32, {n, n});
  for (int64_t i = 0; i < n * n; ++i) t.data<float>()[i] = i % n > i / n ? behind : 0.0F;
  return t;
}

TEST(FuseAttention, KnowsCausalMasksAndMasksOfNothing) {
  for (float behind : {-kInfinity, -3e38F}) {
    const Graph after = expect_fused({.queries = 9, .mask = [&](Graph& g, Value s) {
                                        return s + g.add_constant(causal_tensor(9, behind));
                                      }});
    EXPECT_EQ(find(after, "steep.Attention").attrs().integer("causal", 0), 1);
    EXPECT_FALSE(find(after, "steep.Attention").input(3));
  }
  const Graph open = expect_fused({.mask = [&](Graph& g, Value s) {
    return s + g.add_constant(Tensor::zeros(DType::f32, {1, 1, 7, 9}));
  }});
  EXPECT_EQ(find(open, "steep.Attention").input_count(), 3);
  // The number is too small to hide a key.
  const Graph soft = expect_fused({.queries = 9, .mask = [&](Graph& g, Value s) {
                                     return s + g.add_constant(causal_tensor(9, -5));
                                   }});
  EXPECT_TRUE(find(soft, "steep.Attention").input(3));
}

TEST(FuseAttention, KeepsAFiniteCausalMaskBesideAnother) {
  Tensor keep = Tensor::empty(DType::boolean, {1, 9});  // hides the only key of the first query
  for (int64_t i = 0; i < 9; ++i) keep.data<bool>()[i] = i > 0;
  Tensor open = Tensor::empty(DType::boolean, {9, 9});
  for (int64_t i = 0; i < 81; ++i) open.data<bool>()[i] = i % 9 <= i / 9;
  for (const double masked : {double{-kInfinity}, -3e38}) {
    for (const bool made : {false, true}) {
      Model model{.queries = 9, .mask = [&](Graph& g, Value s) {
                    const Value bias = made ? where(g.add_constant(open), scalar(g, 0, DType::f32),
                                                    scalar(g, -3e38, DType::f32))
                                            : g.add_constant(causal_tensor(9, -3e38F));
                    return where(g.add_constant(keep), s, masked) + bias;
                  }};
      SCOPED_TRACE(masked);
      EXPECT_TRUE(find(fused(model.build()), "steep.Attention").input(3));
      expect_same_results(model.build());
    }
  }
}

TEST(FuseAttention, LeavesFactorsThatKeepScoresFinite) {
  for (const double factor : {1e-20, 1e20, 0.0, double{kInfinity}}) {
    const Graph g = fused(Model{.mask = [&](Graph&, Value s) { return s * factor; }}.build());
    EXPECT_EQ(count(g, "steep.Attention"), 0) << factor;
  }
}

TEST(FuseAttention, KnowsTheCausalMaskThatModelsCompute) {
  auto numbers = [](Graph& g, int64_t n, const Dims& dims) {
    Ints values;
    for (int64_t i = 0; i < n; ++i) values.push_back(i);
    return g.add_constant(Tensor::from(values, dims));
  };
  const Graph after = expect_fused(
      {.queries = 9, .mask = [&](Graph& g, Value s) {
         Value keep =
             apply("LessOrEqual", {numbers(g, 9, {1, 1, 1, 9}), numbers(g, 9, {1, 1, 9, 1})});
         Value all = apply("Expand", {keep, ints(g, {2, 1, 9, 9})});
         return s + where(all, scalar(g, 0, DType::f32), scalar(g, -kInfinity, DType::f32));
       }});
  EXPECT_EQ(find(after, "steep.Attention").attrs().integer("causal", 0), 1);
  EXPECT_EQ(count(after, "LessOrEqual"), 0);
  // A mask with keys before queries is not the causal mask.
  Model model{
      .queries = 9, .mask = [&](Graph& g, Value s) {
        return where(apply("Less", {numbers(g, 9, {1, 9}), numbers(g, 9, {9, 1})}), s, -1e30);
      }};
  const Graph other = fused(model.build());
  EXPECT_EQ(find(other, "steep.Attention").attrs().integer("causal", 0), 0);
  expect_same_results(model.build());
}

TEST(FuseAttention, LeavesProbabilitiesThatOthersRead) {
  expect_untouched({.look = [](Graph& g, Value p) { g.add_output("probabilities", p); }});
  expect_untouched({.look = [](Graph& g, Value p) { g.add_output("sum", sum(p, {-1}, false)); }});
  expect_untouched({.mask = [](Graph& g, Value s) {
    g.add_output("scores", s);
    return s;
  }});
}

TEST(FuseAttention, LeavesAMaskThatIsTrained) {
  Model model;
  model.mask = [&](Graph& g, Value s) {
    Value bias = g.add_input("bias", {DType::f32, Shape{3, 7, 9}});
    model.more = {bias};
    return s + bias;
  };
  const Graph g = model.build();
  EXPECT_EQ(count(fused(g), "steep.Attention"), 0);
  expect_same_results(g);
}

TEST(FuseAttention, LeavesDoublePrecision) { expect_untouched({.dtype = DType::f64}); }

TEST(FuseAttention, TakesLongSequencesAloneInHalfPrecision) {
  for (const auto& [keys, expected] : {std::pair{1000, 0}, std::pair{1024, 1}}) {
    Graph g = Model{.batch = 1, .heads = 1, .keys = keys}.build();
    run_passes(g, {.precision = Precision::bf16});
    EXPECT_EQ(count(g, "steep.Attention"), expected);
    EXPECT_EQ(count(g, "steep.AttentionGrad"), expected);
  }
}

TEST(FuseAttention, TakesForwardAlone) {
  Graph g;
  const Type heads{DType::f32, Shape{6, 10, 4}};  // batch and heads in one
  Value q = g.add_input("q", heads), k = g.add_input("k", heads), v = g.add_input("v", heads);
  Value p = apply("Softmax", {matmul(q, swap_last(k)) * 0.5}, {{"axis", int64_t{2}}});
  g.add_output("y", matmul(p, v));
  const Graph after = fused(g);
  EXPECT_EQ(count(after, "steep.Attention"), 1) << to_text(after);
  EXPECT_EQ(count(after, "MatMul"), 0);
  expect_same_results(g);
}

TEST(FuseAttention, NeedsNoGradientOfEverything) {
  Graph g;
  const Type heads{DType::f32, Shape{2, 3, 10, 4}};
  Value q = g.add_input("q", heads), k = g.add_input("k", heads), v = g.add_input("v", heads);
  Value p = apply("Softmax", {matmul(q, swap_last(k))}, {{"axis", int64_t{-1}}});
  Value y = matmul(p, v), dy = g.add_input("dy", heads);
  g.add_output("y", y);
  for (Value d : add_gradients(g, std::vector{y}, std::vector{dy}, std::vector{k}, Phase::forward))
    g.add_output("dk", d);
  g.prune();
  const Graph after = fused(g);
  EXPECT_EQ(count(after, "steep.AttentionGrad"), 1) << to_text(after);
  EXPECT_EQ(count(after, "MatMul"), 0);
  expect_same_results(g);
}

/// Two layers of self-attention over [batch, time, 64] with a residual, trained.
Graph layers(int64_t time) {
  Graph g;
  const int64_t heads = 4, width = 16;
  const Type type{DType::f32, Shape{1, time, heads * width}};
  Value x = g.add_input("x", type);
  Value first = x;
  for (int layer = 0; layer < 2; ++layer) {
    auto split = [&](Value v) {
      return transpose(reshape(v, Ints{1, time, heads, width}), {0, 2, 1, 3});
    };
    Value p =
        apply("Softmax", {matmul(split(tanh(x)), swap_last(split(x)))}, {{"axis", int64_t{-1}}});
    p = apply("steep.Dropout", {p, seed_of(g)}, {{"ratio", 0.1}, {"stream", int64_t{layer}}});
    Value y = transpose(matmul(p, split(x)), {0, 2, 1, 3});
    x = x + reshape(y, Ints{1, time, heads * width});
  }
  g.add_output("y", x);
  Value dy = g.add_input("dy", type);
  g.add_output("dx", add_gradients(g, std::vector{x}, std::vector{dy}, std::vector{first},
                                   Phase::forward)[0]);
  return g;
}

size_t arena(int64_t time, const std::set<std::string>& disabled = {}) {
  const Graph g = layers(time);
  std::vector<Type> types;
  for (Value v : g.inputs()) {
    if (!is_seed(v)) types.push_back(v.type());
  }
  return Program(g, {.disabled_passes = disabled}).plan(types).arena_bytes;
}

TEST(FuseAttention, MemoryGrowsWithTheLengthAndNotWithItsSquare) {
  const auto at_512 = static_cast<double>(arena(512)), at_1024 = static_cast<double>(arena(1024)),
             at_2048 = static_cast<double>(arena(2048));
  EXPECT_LT(at_1024, 2.1 * at_512);
  EXPECT_LT(at_2048, 2.1 * at_1024);
  EXPECT_GT(static_cast<double>(arena(2048, {"fuse_attention"})), 10 * at_2048);
  expect_same_results(layers(130));
}

}  // namespace
}  // namespace steep
