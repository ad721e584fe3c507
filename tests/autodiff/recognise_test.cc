// Subgraphs of small operators become one operator, with the same results.

#include "autodiff/recognise.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "autodiff/unrolled_scan.h"
#include "model/onnx_text.h"
#include "ops/build.h"
#include "program/program.h"

namespace steep {
namespace {

using testing::import_graph;
using testing::ops;
using Ops = std::vector<std::string>;

std::vector<double> results(const Graph& g, const Tensor& x) {
  const Tensor y = Program(g).forward(std::vector{x}).outputs[0];
  if (y.dtype() == DType::f64) return {y.data<double>(), y.data<double>() + y.size()};
  return {y.data<float>(), y.data<float>() + y.size()};
}

template <typename T>
Tensor normal(const Dims& dims) {
  std::mt19937 random(1);
  std::normal_distribution<T> numbers(0, 2);
  Tensor x = Tensor::empty(dtype_of<T>(), dims);
  for (int64_t i = 0; i < x.size(); ++i) x.data<T>()[i] = numbers(random);
  return x;
}

/// Applies recognise() to the readers of `x`; results before and after must agree.
template <typename T = float>
Graph recognised(Graph g, const Dims& dims = {3, 8}) {
  const Tensor x = normal<T>(dims);
  const auto want = results(g, x);
  recognise(g);
  verify(g, "recognise");
  const auto got = results(g, x);
  EXPECT_EQ(got.size(), want.size());
  const double tolerance = sizeof(T) == 8 ? 1e-10 : 2e-6;
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_NEAR(got[i], want[i], tolerance * (1 + std::abs(want[i]))) << "element " << i;
  }
  return g;
}

/// A model with the constants that exporters write, and `body`, which computes y from x.
Graph model(const std::string& body, const std::string& type = "float") {
  return import_graph(13, "g (" + type + "[N, 8] x) => (" + type + "[N, 8] y) <" + type +
                              " half = {0.5}, " + type + " one = {1.0}, " + type +
                              " two = {2.0}, " + type + " three = {3.0}, " + type +
                              " root = {1.4142135623730951}, " + type +
                              " slope = {0.7978845608028654}, " + type + " cubic = {0.044715}> {" +
                              body + "}")
      .graph;
}

const std::string kByErf = R"(
  a = Div(x, root)  b = Erf(a)  c = Add(b, one)  d = Mul(x, c)  y = Mul(d, half))";
const std::string kByTanh = R"(
  h = Mul(x, half)  a = Pow(x, three)  b = Mul(a, cubic)  c = Add(x, b)  d = Mul(c, slope)
  e = Tanh(d)  f = Add(e, one)  y = Mul(h, f))";

TEST(Recognise, GeluByErf) {
  const Graph g = recognised(model(kByErf));
  EXPECT_EQ(ops(g), Ops{"Gelu"});
  EXPECT_EQ(g.nodes()[0].attrs().string("approximate", ""), "none");
  for (const char* body : {
           "a = Div(x, root)  b = Erf(a)  c = Add(one, b)  d = Mul(half, c)  y = Mul(x, d)",
           "a = Div(x, root)  b = Erf(a)  c = Add(b, one)  d = Mul(half, x)  y = Mul(d, c)",
           "a = Div(x, root)  b = Erf(a)  c = Add(b, one)  d = Div(x, two)  y = Mul(c, d)",
           "h = Div(root, two)  a = Mul(x, h)  b = Erf(a)  c = Add(b, one)  d = Mul(x, c)"
           "  y = Div(d, two)",
       }) {
    SCOPED_TRACE(body);
    EXPECT_EQ(ops(recognised(model(body))), Ops{"Gelu"});
  }
}

TEST(Recognise, GeluByTanh) {
  const Graph g = recognised(model(kByTanh));
  EXPECT_EQ(ops(g), Ops{"Gelu"});
  EXPECT_EQ(g.nodes()[0].attrs().string("approximate", ""), "tanh");
  // x (√(2/π) (1 + 0.044715 x x))
  EXPECT_EQ(ops(recognised(model(R"(
    a = Mul(x, cubic)  b = Mul(a, x)  c = Add(one, b)  d = Mul(x, slope)  e = Mul(d, c)
    f = Tanh(e)  g = Add(one, f)  h = Mul(half, x)  y = Mul(h, g))"))),
            Ops{"Gelu"});
}

TEST(Recognise, GeluOfFloat64) {
  EXPECT_EQ(ops(recognised<double>(model(kByErf, "double"))), Ops{"Gelu"});
  EXPECT_EQ(ops(recognised<double>(model(kByTanh, "double"))), Ops{"Gelu"});
}

TEST(Recognise, GeluOfWhatIsAProductItself) {
  const Graph g = recognised(model("w = Mul(x, two)  v = Mul(w, half)" +
                                   std::string("a = Div(v, root)  b = Erf(a)  c = Add(b, one)"
                                               "  d = Mul(v, c)  y = Mul(d, half)")));
  EXPECT_EQ(ops(g), (Ops{"Mul", "Mul", "Gelu"}));
}

TEST(Recognise, LeavesWhatIsNoGelu) {
  for (const char* body : {
           // another factor, slope, argument or cubic; no 1
           "a = Div(x, root)  b = Erf(a)  c = Add(b, one)  y = Mul(x, c)",
           "a = Div(x, two)  b = Erf(a)  c = Add(b, one)  d = Mul(x, c)  y = Mul(d, half)",
           "s = Neg(x) a = Div(s, root)  b = Erf(a)  c = Add(b, one)  d = Mul(x, c)  y = Mul(d, "
           "half)",
           "h = Mul(x, half)  a = Pow(x, two)  b = Mul(a, cubic)  c = Add(x, b)  d = Mul(c, slope)"
           "  e = Tanh(d)  f = Add(e, one)  y = Mul(h, f)",
           "a = Div(x, root)  b = Erf(a)  c = Add(b, half)  d = Mul(x, c)  y = Mul(d, half)",
       }) {
    SCOPED_TRACE(body);
    const Graph g = model(body);
    EXPECT_EQ(ops(recognised(g)), ops(g));
  }
}

TEST(Recognise, LeavesConstantsThatAreTrained) {
  Graph g = model(kByErf);
  const Ops before = ops(g);
  g.make_state(g.find("half"));
  recognise(g);
  EXPECT_EQ(ops(g), before);
}

TEST(Recognise, KeepsWhatOthersRead) {
  Graph g = model(kByErf);
  g.add_output("gate", g.find("c"));
  EXPECT_EQ(ops(recognised(g)), (Ops{"Div", "Erf", "Add", "Gelu"}));
}

/// torch.nn.LayerNorm as PyTorch's exporters write it before opset 17.
Graph layer_normalization(const std::string& axes, const std::string& rest,
                          const std::string& weights = "float[8]") {
  return import_graph(13, "g (float[N, 8] x) => (float[N, 8] y) <" + weights +
                              " scale = {1, 2, 3, 4, 5, 6, 7, 8}, float[8] bias = "
                              "{8, 7, 6, 5, 4, 3, 2, 1}, float two = {2.0}, "
                              "float epsilon = {0.001}> { m = ReduceMean <axes = [" +
                              axes + "]> (x)  d = Sub(x, m) " + rest + " }")
      .graph;
}

TEST(Recognise, LayerNormalization) {
  const std::string usual = R"(
    p = Pow(d, two)  v = ReduceMean <axes = [-1]> (p)  e = Add(v, epsilon)  s = Sqrt(e)
    n = Div(d, s)  a = Mul(n, scale)  y = Add(a, bias))";
  const Graph g = recognised(layer_normalization("-1", usual));
  EXPECT_EQ(ops(g), Ops{"LayerNormalization"});
  EXPECT_FLOAT_EQ(static_cast<float>(g.nodes()[0].attrs().real("epsilon", 0)), 0.001F);
  EXPECT_EQ(ops(recognised(layer_normalization("1", R"(
    d2 = Sub(x, m)  p = Mul(d2, d2)  v = ReduceMean <axes = [1]> (p)  e = Add(v, epsilon)
    s = Sqrt(e)  n = Div(d, s)  a = Mul(scale, n)  y = Add(bias, a))"))),
            Ops{"LayerNormalization"});
  // Another axis; the variance of another value.
  for (const Graph& other : {layer_normalization("0", usual), layer_normalization("-1", R"(
          p = Pow(x, two)  v = ReduceMean <axes = [-1]> (p)  e = Add(v, epsilon)  s = Sqrt(e)
          n = Div(d, s)  a = Mul(n, scale)  y = Add(a, bias))")}) {
    EXPECT_EQ(ops(recognised(other)), ops(other));
  }
  // A scale of another shape.
  const Graph tall = layer_normalization("-1", usual, "float[8, 1]");
  Graph same = tall;
  recognise(same);
  EXPECT_EQ(ops(same), ops(tall));
}

/// A convolution with filters of 2 × 2 that reads a padded value.
Graph padded_convolution(const std::string& pads, const std::string& pad = "Pad(x, pads)",
                         const std::string& conv = "Conv <pads = [0, 1, 0, 0]> (p, w)") {
  return import_graph(18, "g (float[N, 2, 5, 6] x) => (float[n, c, h, v] y) <int64[8] pads = {" +
                              pads +
                              "}, float one = {1.0}, float zero = {0.0}, float[1, 2, 2, 2] w = "
                              "{1, -2, 3, 4, 0.5, 6, -7, 8}> { p = " +
                              pad + "  y = " + conv + " }")
      .graph;
}

TEST(Recognise, ZerosAroundWhatAConvolutionReads) {
  const Dims dims{3, 2, 5, 6};
  const Graph g = recognised(padded_convolution("0, 0, 1, 0, 0, 0, 0, 1"), dims);
  ASSERT_EQ(ops(g), Ops{"Conv"});
  EXPECT_EQ(g.nodes()[0].attrs().ints("pads"), (Ints{1, 1, 0, 1}));
  EXPECT_EQ(ops(recognised(padded_convolution("0, 0, 1, 0, 0, 0, 1, 1",
                                              "Pad <mode = \"constant\"> (x, pads, zero)",
                                              "Conv <dilations = [2, 1], strides = [2, 2]> (p, w)"),
                           dims)),
            Ops{"Conv"});
  const Graph others[] = {
      padded_convolution("0, 0, 1, 0, 0, 0, 0, 1", "Pad(x, pads, one)"),
      padded_convolution("0, 0, 1, 0, 0, 0, 0, 1", "Pad <mode = \"edge\"> (x, pads)"),
      padded_convolution("0, 0, -1, 0, 0, 0, 0, 1"),
      padded_convolution("1, 0, 1, 0, 0, 0, 0, 1"),
      padded_convolution("0, 0, 1, 1, 0, 0, 0, 1"),  // more than a filter spans
      padded_convolution("0, 0, 0, 0, 0, 0, 0, 0", "Pad(x, pads)",
                         "Conv <auto_pad = \"SAME_UPPER\"> (p, w)"),
  };
  for (const Graph& other : others) EXPECT_EQ(ops(recognised(other, dims)), ops(other));
}

TEST(Recognise, LevelsOfAnAssociativeScan) {
  for (int64_t rows = 2; rows < 18; ++rows) {
    SCOPED_TRACE(rows);
    Graph g;
    const Value x = g.add_input("x", {DType::f32, Shape{rows, 3}});
    g.add_output("y", testing::unrolled_scan(x * 0.25, x, rows));
    g = recognised(std::move(g), {rows, 3});
    ASSERT_EQ(ops(g), (Ops{"Mul", "steep.Recurrence"}));
  }
}

TEST(Recognise, ScansAlongAnotherAxisAndInDouble) {
  Graph g;
  const Value x = g.add_input("x", {DType::f64, Shape{2, 5, 3}});
  const Value scan =
      testing::unrolled_scan(transpose(x * 0.25, {1, 0, 2}), transpose(x, {1, 0, 2}), 5);
  g.add_output("y", transpose(scan, {1, 0, 2}));
  g = recognised<double>(std::move(g), {2, 5, 3});
  const auto nodes = g.nodes();
  const auto found =
      std::find_if(nodes.begin(), nodes.end(), [](Node n) { return n.op() == "steep.Recurrence"; });
  ASSERT_NE(found, nodes.end());
  EXPECT_EQ(integer_of(*found, "axis"), 1);
  EXPECT_EQ(found->input(0), x);
}

/// The scan has no element before the first one to multiply.
TEST(Recognise, AScanReadsNoFactorOfItsFirstElement) {
  for (const int64_t columns : {1, 3}) {
    Graph g;
    const Value x = g.add_input("x", {DType::f32, Shape{4, columns}});
    const Value row = apply("Slice", {x, ints(g, {1}), ints(g, {4}), ints(g, {0})});
    const Value infinite =
        apply("Expand", {scalar(g, INFINITY, DType::f32), ints(g, {1, columns})});
    g.add_output("y", testing::unrolled_scan(concat({infinite, row}, 0), x, 4));
    for (const double y :
         results(recognised(std::move(g), {4, columns}), normal<float>({4, columns})))
      EXPECT_TRUE(std::isfinite(y));
  }
}

/// Each differs from a scan in one slice, operand or constant.
TEST(Recognise, WhatIsNoScan) {
  for (int64_t rows : {2, 3, 4, 7, 8}) {
    for (int wrong = 1; wrong < testing::kWrongScans; ++wrong) {
      SCOPED_TRACE(::testing::Message() << rows << ", " << wrong);
      Graph g;
      const Value x = g.add_input("x", {DType::f32, Shape{rows, 3}});
      g.add_output("y", testing::unrolled_scan(x * 0.25, x, rows, wrong));
      recognised(std::move(g), {rows, 3});  // the results stay
    }
  }
}

}  // namespace
}  // namespace steep
