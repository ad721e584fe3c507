// Rows that a loss ignores are not computed, and results do not change.

#include "autodiff/read_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <set>

#include "autodiff/gradient.h"
#include "flow/rows.h"
#include "model/onnx_text.h"
#include "sessions/gradient_program.h"
#include "steep/error.h"

namespace steep {
namespace {

using testing::import_graph;
using testing::ops;

constexpr int64_t kIgnored = -100;

Tensor normal(const Dims& dims, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> numbers;
  Tensor x = Tensor::empty(DType::f32, dims);
  for (int64_t i = 0; i < x.size(); ++i) x.data<float>()[i] = numbers(random);
  return x;
}

/// Labels, each of which counts with probability `counted`.
Tensor some_labels(const Dims& dims, double counted, int64_t classes) {
  std::mt19937 random(5);
  Tensor labels = Tensor::empty(DType::i64, dims);
  for (int64_t i = 0; i < labels.size(); ++i) {
    const bool counts = std::uniform_real_distribution<>()(random) < counted;
    labels.data<int64_t>()[i] =
        counts ? std::uniform_int_distribution<int64_t>(0, classes - 1)(random) : kIgnored;
  }
  return labels;
}

/// The loss and the gradients of x, w and v, from a program of the graph.
std::vector<Tensor> run(const Graph& graph, std::vector<Tensor> inputs, bool ignoring) {
  Graph g = graph;
  std::vector<Tensor> results;
  std::vector<Value> wrt;
  for (Value v : g.inputs()) {
    if (is_float(v.dtype())) wrt.push_back(v);
  }
  if (ignoring) compute_read_rows(g);
  verify(g, "compute_read_rows");
  const std::vector<Value> losses{g.outputs()[0].value};
  for (Value gradient : add_gradients(g, losses, {}, wrt, Phase::forward)) {
    if (gradient) g.add_output("gradient", gradient);
  }
  return Program(std::move(g), {.seed = 11}).forward(inputs).outputs;
}

struct Case {
  const char* name;
  const char* text;
  Dims labels;
  bool applies = true;
};

constexpr int64_t kRows = 100;  // 4 × 25

// x[4, 25, 8], w[8, 8], v[8, 12]
const Case kCases[] = {
    {"rows",
     "f = Reshape(x, flat) a = MatMul(f, w) b = Tanh(a) s = MatMul(b, v) "
     "loss = SoftmaxCrossEntropyLoss<ignore_index = -100>(s, label)",
     {kRows}},
    {"joined",
     "a = MatMul(x, w) b = Tanh(a) s = MatMul(b, v) t = Reshape(s, classes) "
     "loss = SoftmaxCrossEntropyLoss<ignore_index = -100>(t, label)",
     {kRows}},
    {"sum",
     "a = MatMul(x, w) s = MatMul(a, v) t = Reshape(s, classes) "
     "loss = SoftmaxCrossEntropyLoss<ignore_index = -100, reduction = \"sum\">(t, label)",
     {kRows}},
    {"classes in the middle",
     "a = MatMul(x, w) s = MatMul(a, v) t = Transpose<perm = [0, 2, 1]>(s)"
     "loss = SoftmaxCrossEntropyLoss<ignore_index = -100>(t, label)",
     {4, 25}},
    {"likelihood",
     "a = MatMul(x, w) s = MatMul(a, v) p = LogSoftmax<axis = -1>(s) t = Reshape(p, classes) "
     "loss = NegativeLogLikelihoodLoss<ignore_index = -100>(t, label)",
     {kRows}},
    {"shifted",
     "a = MatMul(x, w) s = MatMul(a, v) c = Slice(s, zero, minus, one) t = Reshape(c, classes) "
     "l = Slice(label, one, far, one) m = Reshape(l, all) "
     "loss = SoftmaxCrossEntropyLoss<ignore_index = -100>(t, m)",
     {4, 25}},
    {"residual, normalised, dropped",
     "a = MatMul(x, w) d = Dropout(a, ratio, yes) r = Add(d, x)"
     "n = LayerNormalization<axis = -1>(r, scale) s = MatMul(n, v) t = Reshape(s, classes) "
     "loss = SoftmaxCrossEntropyLoss<ignore_index = -100>(t, label)",
     {kRows}},
    {"Gemm",
     "f = Reshape(x, flat) a = Gemm(f, w, scale) s = MatMul(a, v) "
     "loss = SoftmaxCrossEntropyLoss<ignore_index = -100>(s, label)",
     {kRows}},
    {"scores read by others",
     "a = MatMul(x, w) s = MatMul(a, v) t = Reshape(s, classes) "
     "l = SoftmaxCrossEntropyLoss<ignore_index = -100>(t, label) "
     "q = Mul(s, s) m = ReduceMean<keepdims = 0>(q) loss = Add(l, m)",
     {kRows}},
    {"a loss for each row",
     "a = MatMul(x, w) s = MatMul(a, v) t = Reshape(s, classes) "
     "l = SoftmaxCrossEntropyLoss<ignore_index = -100, reduction = \"none\">(t, label) "
     "loss = ReduceMean<keepdims = 0>(l)",
     {kRows},
     false},
    {"every label counts",
     "a = MatMul(x, w) s = MatMul(a, v) t = Reshape(s, classes) "
     "loss = SoftmaxCrossEntropyLoss(t, label)",
     {kRows},
     false},
    {"rows that meet",
     "m = ReduceMax<keepdims = 1>(x, one) c = Sub(x, m) p = Softmax<axis = 1>(c)"
     "t = Reshape(p, eight) loss = SoftmaxCrossEntropyLoss<ignore_index = -100>(t, label)",
     {kRows},
     false},
};

Graph graph_of(const Case& c) {
  std::string dims;
  for (const int64_t d : c.labels) dims += (dims.empty() ? "" : ", ") + std::to_string(d);
  return import_graph(
             18,
             "g (float[4, 25, 8] x, float[8, 8] w, float[8, 12] v, int64[" + dims +
                 "] label) => (float loss) <int64[2] flat = {-1, 8}, int64[2] "
                 "classes = {-1, 12}, int64[2] eight = {-1, 8}, int64[1] zero = {0}, "
                 "int64[1] one = {1}, int64[1] minus = {-1}, int64[1] far = {99}, "
                 "int64[1] all = {-1}, float[8] scale = {1.0, 2.0, 1.0, 3.0, 1.0, 1.0, 0.5, 2.0}, "
                 "float ratio = {0.3}, bool yes = {1}> {" +
                 std::string(c.text) + "}")
      .graph;
}

TEST(CountedRows, ChangeNoResult) {
  for (const Case& c : kCases) {
    for (const double counted : {0.0, 0.05, 0.2, 0.7, 1.0}) {
      SCOPED_TRACE(std::string(c.name) + ", " + std::to_string(counted));
      if (counted < 1 && std::string(c.text).find("ignore_index") == std::string::npos) continue;
      const Graph g = graph_of(c);
      const bool eight = std::string(c.name) == "rows that meet";
      const std::vector<Tensor> inputs{normal({4, 25, 8}, 1), normal({8, 8}, 2), normal({8, 12}, 3),
                                       some_labels(c.labels, counted, eight ? 8 : 12)};
      std::vector<Tensor> fed;
      for (Value v : g.inputs()) {
        for (size_t i = 0; i < 4; ++i) {
          const char* names[] = {"x", "w", "v", "label"};
          if (v.name() == names[i]) fed.push_back(inputs[i]);
        }
      }
      const std::vector<Tensor> want = run(g, fed, false), got = run(g, fed, true);
      ASSERT_EQ(got.size(), want.size());
      for (size_t i = 0; i < got.size(); ++i) {
        ASSERT_EQ(got[i].dims(), want[i].dims());
        for (int64_t k = 0; k < got[i].size(); ++k) {
          const float a = got[i].data<float>()[k], b = want[i].data<float>()[k];
          ASSERT_TRUE(std::isnan(a) == std::isnan(b)) << "result " << i << ": " << a << ", " << b;
          if (std::isnan(b)) continue;
          ASSERT_NEAR(a, b, 1e-5 * (1 + std::abs(b))) << "result " << i;
        }
      }
    }
  }
}

TEST(CountedRows, AreTakenWhereSomethingIsSaved) {
  for (const Case& c : kCases) {
    Graph g = graph_of(c);
    compute_read_rows(g);
    const auto names = ops(g);
    EXPECT_EQ(std::count(names.begin(), names.end(), "steep.CountedRows"), c.applies ? 1 : 0)
        << c.name;
  }
}

TEST(CountedRows, LabelsOfWeightsAreComputedInOrder) {
  Graph g = import_graph(18,
                         "g (float[9, 8] x, float[8, 8] w) => (float loss) {"
                         "s = MatMul(x, w) label = ArgMax<axis = 1, keepdims = 0>(s) t = Tanh(s)"
                         "loss = SoftmaxCrossEntropyLoss<ignore_index = 2>(t, label)}")
                .graph;
  compute_read_rows(g);
  const auto names = ops(g);
  EXPECT_EQ(std::count(names.begin(), names.end(), "steep.CountedRows"), 0);
}

TEST(CountedRows, LabelsCutToWhatStatesMakeAreComputedInOrder) {
  const std::string text =
      "g (float[b, 8] x, int64[n] given) => (float loss) <float[8, 3] w = {"
      "1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, "
      "1.0, 2.0, 3.0, 4.0, 5.0, 6.0}, int64[1] zero = {0}> {"
      "s = MatMul(x, w) t = MatMul(x, w) e = Shape<end = 1>(t) label = Slice(given, zero, e, zero)"
      "loss = SoftmaxCrossEntropyLoss<ignore_index = 2>(s, label)}";
  for (const bool trained : {false, true}) {
    Graph g = import_graph(18, text).graph;
    if (trained) g.make_state(g.find("w"));
    EXPECT_EQ(makers_of_labels(g.find("label")).has_value(), !trained);
    compute_read_rows(g);
    const auto names = ops(g);
    EXPECT_EQ(std::count(names.begin(), names.end(), "steep.CountedRows"), trained ? 0 : 1);
  }
}

TEST(CountedRows, OneTokenOfASequenceLeavesTheOthers) {
  const Graph g =
      import_graph(18,
                   "g (float[b, t, 8] x, float[8, 8] w, float[8, 3] v) => (float[b, 3] y)"
                   "<int64 first = {0}> { a = MatMul(x, w) r = Add(a, x) h = Tanh(r)"
                   "  c = Gather<axis = 1>(h, first) y = MatMul(c, v) }")
          .graph;
  Graph some = g;
  compute_read_rows(some);
  const std::vector<Tensor> inputs{normal({3, 7, 8}, 1), normal({8, 8}, 2), normal({8, 3}, 3)};
  const Tensor want = evaluate(g, inputs)[0], got = evaluate(some, inputs)[0];
  ASSERT_EQ(got.dims(), want.dims());
  for (int64_t i = 0; i < got.size(); ++i)
    EXPECT_NEAR(got.data<float>()[i], want.data<float>()[i], 1e-5);
  std::vector<Type> types;
  for (const Tensor& t : inputs) types.push_back({t.dtype(), to_shape(t.dims())});
  EXPECT_NE(Program(some).dump(types).find("float32[3, 8] = MatMul"), std::string::npos);
}

/// Attention over x[b, t, 8] with two heads, a residual, and the selection of a token. `mask`:
/// computes the softmax operand m from scores s; `take`: computes y from h.
Graph one_token(const std::string& mask, const std::string& take, bool dropout = false) {
  return import_graph(
             18,
             "g (float[b, t, 8] x, float[8, 8] w, float[8, 8] k, float[8, 3] v, bool[b, 1, t, t] "
             "keep,"
             "   float[b, 1, 1, t] added) => (float loss) <int64 first = {0}, int64 last = {-1}, "
             "int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, "
             "int64[4] heads = {0, 0, 2, 4}, int64[3] joined = {0, 0, 8}, float half = {0.5}, "
             "float low = {-3e38}, float ratio = {0.4}, bool yes = {1}> {"
             "qa = MatMul(x, w) ka = MatMul(x, k) qb = Reshape(qa, heads) kb = Reshape(ka, heads)"
             "vb = Reshape(x, heads) q = Transpose<perm = [0, 2, 1, 3]>(qb)"
             "kt = Transpose<perm = [0, 2, 3, 1]>(kb) vt = Transpose<perm = [0, 2, 1, 3]>(vb)"
             "r = MatMul(q, kt) s = Mul(r, half)" +
                 mask + "p = Softmax<axis = -1>(m)" +
                 (dropout ? "d = Dropout(p, ratio, yes)" : "d = Identity(p)") +
                 "a = MatMul(d, vt) c = Transpose<perm = [0, 2, 1, 3]>(a) o = Reshape(c, joined)"
                 "u = MatMul(o, w) f = Add(u, x) h = Tanh(f)" +
                 take + "z = MatMul(y, v) n = Mul(z, z) loss = ReduceMean<keepdims = 0>(n) }")
      .graph;
}

Tensor truths(const Dims& dims) {
  Tensor keep = Tensor::empty(DType::boolean, dims);
  for (int64_t i = 0; i < keep.size(); ++i) keep.data<bool>()[i] = i % 3 != 1;
  return keep;
}

TEST(CountedRows, OneTokenLeavesTheOtherQueries) {
  for (const std::string mask : {"m = Identity(s)", "m = Add(s, added)", "m = Where(keep, s, low)",
                                 "e = Add(s, added) m = Where(keep, e, low)"}) {
    for (const std::string take :
         {"y = Gather<axis = 1>(h, first)", "y = Gather<axis = 1>(h, last)",
          "y = Slice(h, zero, one, one)", "y = Slice(h, one, two, one)"}) {
      for (const bool dropout : {false, true}) {
        SCOPED_TRACE(mask);
        SCOPED_TRACE(take);
        const Graph g = one_token(mask, take, dropout);
        for (const int64_t length : {7, 4}) {
          std::vector<Tensor> inputs;
          for (Value v : g.inputs()) {
            const std::string name(v.name());
            if (name == "x") inputs.push_back(normal({3, length, 8}, 1));
            if (name == "w") inputs.push_back(normal({8, 8}, 2));
            if (name == "k") inputs.push_back(normal({8, 8}, 3));
            if (name == "v") inputs.push_back(normal({8, 3}, 4));
            if (name == "keep") inputs.push_back(truths({3, 1, length, length}));
            if (name == "added") inputs.push_back(normal({3, 1, 1, length}, 5));
          }
          const std::vector<Tensor> want = run(g, inputs, false), got = run(g, inputs, true);
          ASSERT_EQ(got.size(), want.size());
          for (size_t i = 0; i < got.size(); ++i) {
            ASSERT_EQ(got[i].dims(), want[i].dims());
            for (int64_t j = 0; j < got[i].size(); ++j) {
              const float a = got[i].data<float>()[j], b = want[i].data<float>()[j];
              ASSERT_NEAR(a, b, 1e-5 * (1 + std::abs(b))) << "result " << i;
            }
          }
        }
      }
    }
  }
}

/// The type of the probabilities in a plan for 3 sequences of 7 tokens.
std::string type_of_softmax(const Graph& graph) {
  Graph g = graph;
  compute_read_rows(g);
  std::vector<Type> types;
  for (Value v : g.inputs()) {
    const std::string name(v.name());
    if (name == "x") types.push_back({v.dtype(), Shape{3, 7, 8}});
    if (name == "keep") types.push_back({v.dtype(), Shape{3, 1, 7, 7}});
    if (name == "added") types.push_back({v.dtype(), Shape{3, 1, 1, 7}});
    if (v.rank() == 2) types.push_back(v.type());
  }
  const std::string text = Program(g, {.disabled_passes = {"fuse_attention"}}).dump(types);
  const size_t at = text.find(" = Softmax");
  const size_t line = text.rfind('\n', at);
  return text.substr(text.find("float32", line), at - text.find("float32", line));
}

TEST(CountedRows, OneTokenHasOneRowOfScores) {
  const std::string all = "float32[3, 2, 7, 7]", one = "float32[3, 2, 1, 7]";
  const std::string first = "y = Gather<axis = 1>(h, first)";
  EXPECT_EQ(type_of_softmax(one_token("m = Identity(s)", first)), one);
  EXPECT_EQ(type_of_softmax(one_token("m = Add(s, added)", first)), one);
  EXPECT_EQ(type_of_softmax(one_token("m = Where(keep, s, low)", first)), one);
  // Other nodes read the result, or the hidden states.
  EXPECT_EQ(type_of_softmax(one_token("m = Identity(s)",
                                      "t = ReduceMax<keepdims = 0>(o)"
                                      "i = Gather<axis = 1>(h, first)"
                                      "y = Add(i, t)")),
            all);
  EXPECT_EQ(type_of_softmax(one_token("m = Identity(s)",
                                      "t = ReduceMax<keepdims = 0>(h)"
                                      "i = Gather<axis = 1>(h, first)"
                                      "y = Add(i, t)")),
            all);
}

TEST(CountedRows, ScoresAndLabelsOfOtherShapesAreRefused) {
  const Graph g =
      import_graph(
          18,
          "g (float[n, 8] x, float[8, 12] v, int64[m] label) => (float loss)"
          "{ s = MatMul(x, v) loss = SoftmaxCrossEntropyLoss<ignore_index = -100>(s, label)}")
          .graph;
  Graph some = g;
  compute_read_rows(some);
  Program program(some);
  for (const int64_t labels : {99, 101, 1}) {
    const std::vector<Tensor> inputs{normal({100, 8}, 1), normal({8, 12}, 2),
                                     some_labels({labels}, 0.1, 12)};
    EXPECT_THROW(program.forward(inputs), ShapeError) << labels;
  }
}

TEST(CountedRows, HaveFewPlans) {
  for (const bool even : {false, true}) {
    std::set<int64_t> numbers;
    for (int64_t counted = 0; counted <= 2048; ++counted) {
      const int64_t computed = computed_rows(counted, 2048, even);
      EXPECT_GE(computed, counted);
      EXPECT_LE(computed, even ? std::max(counted + 256, int64_t{256}) : 2048);
      numbers.insert(computed);
    }
    EXPECT_LE(numbers.size(), 8U);
  }
  EXPECT_EQ(computed_rows(10, 20), 20);
  EXPECT_EQ(computed_rows(0, 0), 0);
}

TEST(CountedRows, AreAscendingAndHoldAllThatCount) {
  const Tensor labels = some_labels({10, 20}, 0.2, 5);
  const Tensor rows = counted_rows(labels, kIgnored);
  std::set<int64_t> taken;
  for (int64_t i = 0; i < rows.size(); ++i) {
    const int64_t row = rows.data<int64_t>()[i];
    EXPECT_TRUE(i == 0 || row > rows.data<int64_t>()[i - 1]);
    taken.insert(row);
  }
  for (int64_t i = 0; i < labels.size(); ++i)
    EXPECT_TRUE(labels.data<int64_t>()[i] == kIgnored || taken.count(i) == 1) << i;
}

}  // namespace
}  // namespace steep
