#include "flow/segment.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "autodiff/gradient.h"
#include "ops/build.h"
#include "program/program.h"
#include "steep/error.h"

namespace steep {
namespace {

Value floats_in(Graph& g, const char* name, Shape shape) {
  return g.add_input(name, {DType::f32, std::move(shape)});
}

/// exp of the nonzero elements of x.
Graph picked() {
  Graph g;
  const Value x = floats_in(g, "x", {Dim::symbol("n")});
  const Value places = transpose(apply("NonZero", {x}), {1, 0});
  g.add_output("y", exp(apply("GatherND", {x, places})));
  return g;
}

TEST(Segment, AShapeThatDependsOnData) {
  Program program(picked());
  const Tensor x = Tensor::from({0.0F, 1.0F, 0.0F, 2.0F}, {4});
  for (int i = 0; i < 2; ++i) {
    const Tensor y = program.forward(std::span(&x, 1)).outputs[0];
    ASSERT_EQ(y.dims(), Dims{2});
    EXPECT_FLOAT_EQ(y.data<float>()[1], std::exp(2.0F));
  }
  const Tensor none = Tensor::zeros(DType::f32, {3});
  EXPECT_EQ(program.forward(std::span(&none, 1)).outputs[0].dims(), Dims{0});
  EXPECT_EQ(program.plan(std::vector<Type>{{DType::f32, Shape{4}}}).kernels, 0U);
  EXPECT_NE(program.dump(std::vector<Type>{{DType::f32, Shape{4}}}).find("NonZero"),
            std::string::npos);
}

TEST(Segment, NoTwoResultsShareAByte) {
  Graph g = picked();
  g.add_output("again", g.outputs()[0].value);
  g.add_output("fed", g.inputs()[0]);
  Program program(std::move(g));
  const Tensor x = Tensor::from({0.0F, 1.0F, 0.0F, 2.0F}, {4});
  std::vector<Tensor> results = program.forward(std::span(&x, 1)).outputs;
  std::fill_n(results[0].data<float>(), 2, 7.0F);
  EXPECT_FLOAT_EQ(results[1].data<float>()[1], std::exp(2.0F));
  EXPECT_NE(results[2].data(), x.data());
  EXPECT_FLOAT_EQ(results[2].data<float>()[3], 2.0F);
}

TEST(Segment, SignaturesBeyondTheCacheAreForgotten) {
  Program program(picked(), {.cache_size = 1});
  for (int64_t n = 1; n < 12; ++n) {
    Tensor x = Tensor::zeros(DType::f32, {n});
    x.data<float>()[0] = 1;
    EXPECT_EQ(program.forward(std::span(&std::as_const(x), 1)).outputs[0].dims(), Dims{1});
  }
}

TEST(Segment, SeveralForwardRunsMayWaitForBackward) {
  Graph g = picked();
  const Value y = g.outputs()[0].value;
  const Value dy = g.add_gradient_input("dy", y);
  const Value x = g.inputs()[0];
  const auto dx = add_gradients(g, std::span(&y, 1), std::span(&dy, 1), std::span(&x, 1));
  g.add_output("dx", dx[0], Phase::backward);
  Program program(std::move(g));
  const Tensor first = Tensor::from({0.0F, 1.0F, 0.0F, 2.0F}, {4});
  const Tensor second = Tensor::from({3.0F, 0.0F}, {2});
  ForwardResult a = program.forward(std::span(&first, 1));
  ForwardResult b = program.forward(std::span(&second, 1));
  ASSERT_TRUE(a.pending && b.pending);
  const Tensor wrong = Tensor::from({1.0F}, {1});
  const Tensor ones = Tensor::from({1.0F, 1.0F}, {2});
  EXPECT_THROW(program.backward(std::move(a.pending), std::span(&wrong, 1)), ShapeError);
  ForwardResult again = program.forward(std::span(&first, 1));
  const Tensor da = program.backward(std::move(again.pending), std::span(&ones, 1))[0];
  const Tensor db = program.backward(std::move(b.pending), std::span(&wrong, 1))[0];
  ASSERT_EQ(da.dims(), Dims{4});
  EXPECT_FLOAT_EQ(da.data<float>()[0], 0);
  EXPECT_FLOAT_EQ(da.data<float>()[3], std::exp(2.0F));
  EXPECT_FLOAT_EQ(db.data<float>()[0], std::exp(3.0F));
}

TEST(Segment, AnUpdateWaitsForEveryReader) {
  Graph g;
  const Value w = g.add_state("w", {DType::f32, Shape{3}});
  const Value kept = apply("GatherND", {w, transpose(apply("NonZero", {w}), {1, 0})});
  g.add_output("sum", sum(kept, {}, false));
  const Value lr = scalar(g, 1, DType::f32);
  const Value gradient = expand_like(scalar(g, 1, DType::f32), w);
  const Value next = w - gradient * lr;
  g.add_update(w, next);
  Program program(std::move(g));
  const Tensor bytes = Tensor::from({1.0F, 0.0F, 3.0F}, {3});
  program.bind_state("w", bytes);
  EXPECT_FLOAT_EQ(*program.forward({}).outputs[0].data<float>(), 4);
  EXPECT_FLOAT_EQ(bytes.data<float>()[1], -1);
  EXPECT_FLOAT_EQ(*program.forward({}).outputs[0].data<float>(), 0.0F + -1.0F + 2.0F);
}

TEST(Segment, BackwardReadsWhatTookThePlaceOfANode) {
  Graph g;
  const Value x = floats_in(g, "x", {1, 2, 1}), w = floats_in(g, "w", {1, 1, 1});
  const Value count = sum(cast(apply("NonZero", {x}), DType::f32), {}, false);
  const Value axis = g.add_constant(Tensor::scalar(int64_t{1}));
  const Value y = apply("DFT", {x * count, Value(), axis}) * w;  // its decomposition runs
  g.add_output("y", y);
  const Value dy = g.add_gradient_input("dy", y);
  const auto dw = add_gradients(g, std::span(&y, 1), std::span(&dy, 1), std::span(&w, 1));
  g.add_output("dw", dw[0], Phase::backward);
  Program program(std::move(g));
  const Tensor fed[] = {Tensor::from({1.0F, 2.0F}, {1, 2, 1}), Tensor::from({1.0F}, {1, 1, 1})};
  ForwardResult run = program.forward(fed);
  const Tensor seed = Tensor::from({1.0F, 0.0F, 0.0F, 0.0F}, {1, 2, 2});
  EXPECT_FLOAT_EQ(*run.outputs[0].data<float>(), 3);  // 1 + 2, once for indices 0 and 1
  EXPECT_FLOAT_EQ(*program.backward(std::move(run.pending), std::span(&seed, 1))[0].data<float>(),
                  3);
}

TEST(Segment, SequencesInAndOut) {
  Graph g;
  const Value s = g.add_input("s", {DType::f32, std::nullopt, Kind::sequence});
  const Value x = floats_in(g, "x", {2});
  g.add_output("t", apply("SequenceInsert", {s, exp(x)}));
  g.add_output("n", apply("SequenceLength", {s}));
  Program program(std::move(g));
  const Tensor zeros = Tensor::zeros(DType::f32, {2});
  const std::vector<Datum> fed{Datum(Datum::Items{zeros}), Datum(zeros)};
  const DataResult result = program.forward_data(fed);
  ASSERT_EQ(result.outputs[0].items().size(), 2U);
  EXPECT_FLOAT_EQ(result.outputs[0].items()[1].tensor().data<float>()[0], 1);
  EXPECT_EQ(*result.outputs[1].tensor().data<int64_t>(), 1);
  const std::vector<Datum> wrong{Datum(zeros), Datum(zeros)};
  EXPECT_THROW(program.forward_data(wrong), DataError);
  EXPECT_THROW(program.forward_data({}), DataError);
}

/// y = x · w², by a loop with two iterations; differentiated twice.
TEST(Loop, SecondDerivatives) {
  auto body = std::make_shared<Graph>();
  body->add_input("i", {DType::i64, Shape{}});
  const Value carried = body->add_input("s", {DType::f64, Shape{}});
  const Value captured = body->add_input("w", {DType::f64, Shape{}});
  body->add_output("next", carried * captured);

  Graph g;
  const Value x = g.add_input("x", {DType::f64, Shape{}});
  const Value w = g.add_input("w", {DType::f64, Shape{}});
  const std::vector<Value> inputs{scalar(g, 2, DType::i64), Value(), x, w};
  const std::vector<Value> y = apply_n("steep.Loop", inputs, 3,
                                       {{"body", Body(body)},
                                        {"condition", int64_t{0}},
                                        {"carried", int64_t{1}},
                                        {"in_axes", Ints{}},
                                        {"in_directions", Ints{}},
                                        {"out_axes", Ints{}},
                                        {"out_directions", Ints{}}});
  const auto first = add_gradients(g, std::span(y.data(), 1), {}, std::span(&w, 1), Phase::forward);
  const Value both[] = {x, w};
  const auto second = add_gradients(g, first, {}, both, Phase::forward);
  g.add_output("dw", first[0]);
  g.add_output("dwdx", second[0]);
  g.add_output("dwdw", second[1]);
  const std::vector<Tensor> fed{Tensor::scalar(3.0), Tensor::scalar(5.0)};
  const std::vector<Tensor> d = evaluate(g, fed);
  EXPECT_DOUBLE_EQ(*d[0].data<double>(), 2 * 3 * 5);
  EXPECT_DOUBLE_EQ(*d[1].data<double>(), 2 * 5);
  EXPECT_DOUBLE_EQ(*d[2].data<double>(), 2 * 3);
}

}  // namespace
}  // namespace steep
