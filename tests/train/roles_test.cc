// The initializers that are trained by default.
#include <gtest/gtest.h>

#include "steep/check.h"
#include "train/models.h"
#include "train/temp_folder.h"

namespace steep {
namespace {

using testing::model_bytes;
using testing::session_of;
using Names = std::vector<std::string>;

/// "mean: shifts or scales an input", …
Names left_out(const TrainingSession& session) {
  Names lines;
  for (const LeftOut& l : session.left_out()) lines.push_back(l.name + ": " + l.reason);
  return lines;
}

TEST(Roles, WhatScalesInputsIsLeftOutAndNamed) {
  const std::string bytes = model_bytes(R"(g (float[n, 2] x) => (float[n, 3] y)
    <float[2] mean = {1.0, 2.0}, float[1, 2] std = {2.0, 4.0}, float[2, 3] w = {1, 2, 3, 4, 5, 6},
     float[3] b = {0, 0, 0}, float[3] gain = {1, 1, 1}>
    { c = Sub(x, mean)  s = Div(c, std)  m = MatMul(s, w)  a = Add(m, b)  y = Mul(a, gain) })");
  const auto session = session_of(bytes, {.loss = "mse"});
  EXPECT_EQ(session.parameter_names(), (Names{"w", "b", "gain"}));
  EXPECT_EQ(left_out(session),
            (Names{"mean: shifts or scales an input", "std: shifts or scales an input"}));
  // Initializers that the user names are trained.
  EXPECT_EQ(session_of(bytes, {.loss = "mse", .trainable = {"mean", "w"}}).parameter_names(),
            (Names{"mean", "w"}));
  const CheckReport report = check_model(testing::as_span(bytes), {.loss = "mse"});
  EXPECT_EQ(report.parameters.size(), 3u);
  EXPECT_EQ(report.left_out.size(), 2u);
}

TEST(Roles, WeightsThatAnExporterMergedOrCopiedAreWarnedOf) {
  const std::string bytes = model_bytes(R"(g (float[n, 2] x) => (float[n, 2] y)
    <float[2, 2] w = {1, 2, 3, 4}, float[2, 2] folded = {1, 3, 2, 4}, float[2] b = {0, 0}>
    { p = Gemm(x, w, b)  r = Relu(p)  y = Gemm(r, folded, b) })");
  const CheckReport report = check_model(testing::as_span(bytes), {.loss = "mse"});
  EXPECT_EQ(report.warnings, session_of(bytes, {.loss = "mse"}).warnings());
  ASSERT_EQ(report.warnings.size(), 2u);
  EXPECT_NE(report.warnings[0].find("'b' as one weight"), std::string::npos);
  EXPECT_NE(report.warnings[1].find("'folded' is the transpose of 'w'"), std::string::npos);
}

TEST(Roles, ElementwiseModelsAreTrained) {
  const std::string bytes = model_bytes(R"(g (float[n, 2] x) => (float[n, 2] y)
    <float[2] w = {1.0, 2.0}, float[2] b = {2.0, 4.0}> { a = Mul(x, w)  y = Add(a, b) })");
  EXPECT_EQ(session_of(bytes, {.loss = "mse"}).parameter_names(), (Names{"w", "b"}));
}

TEST(Roles, SpelledOutNormalisationsLearnedPositionsAndSlopesAreWeights) {
  const std::string bytes = model_bytes(R"(g (float[n, 4, 2] x) => (float[n, 4, 3] y)
    <float[2, 2] v = {1, 2, 3, 4}, float[4, 2] positions = {1, 2, 3, 4, 5, 6, 7, 8},
     float[2] gamma = {1, 1}, float[2] beta = {0, 0}, float[1] slope = {0.25}, float[1] eps = {1e-5},
     float[2, 3] w = {1, 2, 3, 4, 5, 6}>
    { e = MatMul(x, v)  p = Add(e, positions)
      mean = ReduceMean<axes = [-1]>(p)  c = Sub(p, mean)  q = Mul(c, c)
      var = ReduceMean<axes = [-1]>(q)  ve = Add(var, eps)  sd = Sqrt(ve)  z = Div(c, sd)
      g0 = Mul(z, gamma)  g1 = Add(g0, beta)  r = PRelu(g1, slope)  y = MatMul(r, w) })");
  const Names names = session_of(bytes, {.loss = "mse"}).parameter_names();
  EXPECT_EQ(names,
            (Names{"v", "positions", "gamma", "beta", "slope", "w"}));  // eps is a single number
  // Also for the model's input: after an operation with a reduction it is no plain input any more.
  const std::string first = model_bytes(R"(g (float[n, 2] x) => (float[n, 3] y)
    <float[2] gamma = {1, 1}, float[2, 3] w = {1, 2, 3, 4, 5, 6}>
    { mean = ReduceMean<axes = [-1]>(x)  c = Sub(x, mean)  z = Mul(c, gamma)  y = MatMul(z, w) })");
  EXPECT_EQ(session_of(first, {.loss = "mse"}).parameter_names(), (Names{"gamma", "w"}));
}

TEST(Roles, SingleNumbersAreWeightsOfLayersAlone) {
  struct Case {
    const char* what;
    const char* shapes;
    const char* more;  // more initializers
    const char* body;
    Names trained, left;
  };
  const Case cases[] = {
      {"hard swish",
       "float[n, 3]",
       "float[1] three = {3}, float[1] six = {6}, float zero = {0},",
       "a = Add(m, three)  c = Clip(a, zero, top)  p = Mul(m, c)  y = Div(p, six)",
       {"w"},
       {"three: is a single number", "six: is a single number", "top: is a setting of Clip",
        "zero: is a setting of Clip"}},
      {"1 - p",
       "float[n, 3]",
       "float[1] unity = {1},",
       "p = Sigmoid(m)  y = Sub(unity, p)",
       {"w"},
       {"unity: is a single number"}},
      {"as tensors of rank 2",
       "float[n, 3]",
       "float[1, 1] half = {0.5},",
       "y = Mul(m, half)",
       {"w"},
       {"half: is a single number"}},
      {"bias of one channel",
       "float[n, 1]",
       "float[3, 1] v = {1, 2, 3}, float[1] b = {0},",
       "q = MatMul(m, v)  y = Add(b, q)",
       {"w", "v", "b"},
       {}},
      {"bias of a product with a vector",
       "float[n]",
       "float[3] v = {1, 2, 3}, float[1] b = {0},",
       "q = MatMul(m, v)  y = Add(q, b)",
       {"w", "v", "b"},
       {}},
      {"bias of a Gemm",
       "float[n, 1]",
       "float[1, 3] v = {1, 2, 3}, float[1] b = {0},",
       "y = Gemm<transB = 1>(m, v, b)",
       {"w", "v", "b"},
       {}},
      {"bias in a branch",
       "float[n, 1]",
       "float[3, 1] v = {1, 2, 3}, float[1] b = {0}, bool c = {1},",
       "q = MatMul(m, v)  y = If(c)<then_branch = t () => (float[n, 1] o) { o = Sub(q, b) }, "
       "else_branch = e () => (float[n, 1] o) { o = Add(q, b) }>",
       {"w", "v", "b"},
       {}},
      {"slope",
       "float[n, 3]",
       "float[1] slope = {0.25},",
       "y = PRelu(m, slope)",
       {"w", "slope"},
       {}},
  };
  for (const Case& c : cases) {
    const std::string bytes =
        model_bytes("g (float[n, 2] x) => (" + std::string(c.shapes) + " y) <" + c.more +
                    " float top = {6}, float[2, 3] w = {1, 2, 3, 4, 5, 6}> { m = MatMul(x, w) " +
                    c.body + " }");
    const auto session = session_of(bytes, {.loss = "mse"});
    Names trained = session.parameter_names(), wanted = c.trained;
    std::sort(trained.begin(), trained.end());
    std::sort(wanted.begin(), wanted.end());
    EXPECT_EQ(trained, wanted) << c.what;
    Names left;
    for (const std::string& line : left_out(session)) {
      if (line.find("scalar") == std::string::npos) left.push_back(line);
    }
    Names expected = c.left;
    std::sort(left.begin(), left.end());
    std::sort(expected.begin(), expected.end());
    EXPECT_EQ(left, expected) << c.what;
  }
}

TEST(Roles, ComputedWeightsAndTablesAreWeights) {
  const std::string bytes = model_bytes(R"(g (int64[n] ids, int64[n] group) => (float[n, 2] y)
    <float[5, 2] table = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, float[2, 2] direction = {1, 2, 3, 4},
     float[2, 1] length = {1, 2}, float[3, 2] offset = {1, 2, 3, 4, 5, 6}>
    { e = Gather(table, ids)  w = Mul(direction, length)  m = MatMul(e, w)
      o = Gather(offset, group)  y = Add(m, o) })");
  EXPECT_EQ(session_of(bytes, {.loss = "mse"}).parameter_names(),
            (Names{"table", "direction", "length", "offset"}));
}

/// A classifier with its loss: -mean(picked · weights of the picked classes).
std::string weighted_loss(const std::string& weigh) {
  return model_bytes(R"(g (float[n, 2] x, int64[n, 1] target) => (float[n, 3] logits, float loss)
    <float[2, 3] w = {1, 2, 3, 4, 5, 6}, float[3] b = {0, 0, 0}, float[3] class_weight = {1, 2, 3},
     float[1] share = {0.5}, float[2] onoff = {0, 1}, int64 depth = {3}>
    { m = MatMul(x, w)  logits = Add(m, b)  p = LogSoftmax<axis = 1>(logits) )" +
                     weigh + R"( loss = ReduceMean<keepdims = 0>(l) })");
}

TEST(Roles, WhatWeighsTheLossIsLeftOutAndNamed) {
  for (const std::string weigh :
       {"picked = GatherElements<axis = 1>(p, target)  cw = Gather(class_weight, target)  "
        "n0 = Neg(picked)  n1 = Mul(n0, cw)  l = Mul(n1, share)",
        "axes = Constant<value_ints = [1]>()  one = OneHot(target, depth, onoff)  "
        "s = Squeeze(one, axes)  k = Mul(s, class_weight)  "
        "n0 = Mul(p, k)  n1 = Neg(n0)  l = Mul(n1, share)",
        "axes1 = Constant<value_ints = [1]>()  t = Squeeze(target, axes1)  "
        "n1 = SoftmaxCrossEntropyLoss(logits, t, class_weight)  l = Mul(n1, share)"}) {
    const auto session = session_of(weighted_loss(weigh), {});
    EXPECT_EQ(session.parameter_names(), (Names{"w", "b"})) << weigh;
    Names names;
    for (const LeftOut& l : session.left_out()) {
      if (l.reason == "weighs the loss" || l.reason == "shifts or scales an input") {
        names.push_back(l.name);
      }
    }
    EXPECT_EQ(names, (Names{"class_weight", "share"})) << weigh;
  }
}

TEST(Roles, SharesOfTwoLossesAndScalesOfTargetsAreLeftOut) {
  const std::string bytes = model_bytes(R"(g (float[n, 2] x, float[n, 1] t, float[n, 1] u) =>
      (float[n, 1] y, float loss)
    <float[2, 1] w = {1, 2}, float[1] b = {0}, float[1] mean = {1}, float[2] shares = {0.5, 0.5}>
    { m = MatMul(x, w)  y = Add(m, b)  tc = Sub(t, mean)
      d = Sub(y, tc)  d2 = Mul(d, d)  l1 = ReduceMean<keepdims = 0>(d2)
      e = Sub(y, u)  e2 = Abs(e)  l2 = ReduceMean<keepdims = 0>(e2)
      zero = Constant<value_ints = [0]>() a1 = Unsqueeze(l1, zero)  a2 = Unsqueeze(l2, zero)
      both = Concat<axis = 0>(a1, a2)  weighed = Mul(both, shares)
      loss = ReduceSum<keepdims = 0>(weighed) })");
  const auto session = session_of(bytes, {});
  EXPECT_EQ(session.parameter_names(), (Names{"w", "b"}));
  EXPECT_EQ(left_out(session),
            (Names{"mean: shifts or scales an input", "shares: weighs the loss"}));
}

TEST(Roles, ScalesOfQuantisationAreLeftOut) {
  const std::string bytes = model_bytes(R"(g (float[n, 2] x) => (float[n, 3] y)
    <int8[2, 3] q = {1, 2, 3, 4, 5, 6}, float[3] scale = {0.1, 0.2, 0.3}, int8[2, 2] p = {1, 2, 3, 4},
     float[1, 2] step = {0.1, 0.2}, float[3] b = {0, 0, 0}>
    { f = Cast<to = 1>(p)  v = Mul(f, step)  h = MatMul(x, v)
      w = DequantizeLinear<axis = 1>(q, scale)  m = MatMul(h, w)  y = Add(m, b) })");
  const auto session = session_of(bytes, {.loss = "mse"});
  EXPECT_EQ(session.parameter_names(), (Names{"b"}));
  EXPECT_EQ(
      left_out(session),
      (Names{"q: is quantised to int8; name it to train it", "scale: is a scale of quantisation",
             "p: is int8, and a Cast passes no gradient", "step: is a scale of quantisation"}));
}

TEST(Roles, ConstantNodesAreTrainedByName) {
  const std::string bytes = model_bytes(R"(g (float[n, 2] x) => (float[n, 1] y)
    <float[2, 1] w = {1, 2}>
    { m = MatMul(x, w)  b = Constant<value = float[1] {3.0}>()  y = Add(m, b) })");
  EXPECT_EQ(left_out(session_of(bytes, {.loss = "mse"})), (Names{"b: is a Constant node"}));
  const TrainingOptions both{
      .loss = "mse", .trainable = {"w", "b"}, .optimizer = {.kind = "sgd", .lr = 0.1}};
  auto session = session_of(bytes, both);
  EXPECT_EQ(session.parameter_names(), (Names{"w", "b"}));
  session.step({Tensor::from<float>({1, 1}, {1, 2}), Tensor::from<float>({0}, {1, 1})});
  const float now = *session.state("b").data<float>();
  EXPECT_NE(now, 3.0f);
  const std::string trained = session.export_onnx_bytes();
  EXPECT_EQ(*session_of(trained, both).state("b").data<float>(), now);
}

}  // namespace
}  // namespace steep
