#include "autodiff/gradient.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "ops/build.h"
#include "program/program.h"
#include "steep/error.h"

namespace steep {
namespace {

const Type kVector{DType::f64, Shape{3}};

double at(const Tensor& t, int64_t i) { return t.data<double>()[i]; }

TEST(Gradient, AccumulatesOverEveryUse) {
  Graph g;
  Value x = g.add_input("x", kVector);
  Value loss = sum(x * x * x, {}, false);
  const Value targets[] = {loss}, wrt[] = {x};
  g.add_output("dx", add_gradients(g, targets, {}, wrt, Phase::forward)[0]);
  const Tensor in = Tensor::from<double>({1, 2, -3}, {3});
  const Tensor dx = evaluate(g, std::span(&in, 1))[0];
  EXPECT_DOUBLE_EQ(at(dx, 0), 3);
  EXPECT_DOUBLE_EQ(at(dx, 1), 12);
  EXPECT_DOUBLE_EQ(at(dx, 2), 27);
}

TEST(Gradient, SumsOverBroadcastAxes) {
  Graph g;
  Value x = g.add_input("x", kVector);
  Value b = g.add_input("b", {DType::f64, Shape{}});
  Value loss = sum(x * b, {}, false);
  const Value targets[] = {loss}, wrt[] = {b};
  g.add_output("db", add_gradients(g, targets, {}, wrt, Phase::forward)[0]);
  const Tensor in[] = {Tensor::from<double>({1, 2, 4}, {3}), Tensor::scalar(5.0)};
  EXPECT_DOUBLE_EQ(at(evaluate(g, in)[0], 0), 7);
}

TEST(Gradient, IsZeroForWhatIsNotTheGreatest) {
  for (const char* op : {"Max", "Min"}) {
    Graph g;
    Value x = g.add_input("x", kVector);
    Value loss = sum(sqrt(apply(op, {x, scalar(g, 0, DType::f64)})), {}, false);
    const Value targets[] = {loss}, wrt[] = {x};
    g.add_output("dx", add_gradients(g, targets, {}, wrt, Phase::forward)[0]);
    const double beaten = op[1] == 'a' ? -1 : 1;  // sqrt of the held value 0 has an infinite slope
    const Tensor in = Tensor::from<double>({beaten, beaten, beaten}, {3});
    EXPECT_EQ(at(evaluate(g, std::span(&in, 1))[0], 0), 0) << op;
  }
}

TEST(Gradient, IsNullWhereNothingFlows) {
  Graph g;
  Value x = g.add_input("x", kVector);
  Value y = g.add_input("y", kVector);
  Value loss = sum(x + cast(cast(y, DType::i64), DType::f64), {}, false);
  const Value targets[] = {loss}, wrt[] = {x, y};
  const auto gradients = add_gradients(g, targets, {}, wrt);
  EXPECT_TRUE(gradients[0]);
  EXPECT_FALSE(gradients[1]);
}

TEST(Gradient, StopsAtTheLowestTrainableNode) {
  Graph g;
  Value x = g.add_input("x", kVector);
  Value w = g.add_input("w", kVector);
  Value frozen = tanh(tanh(tanh(x)));
  Value loss = sum(frozen * w, {}, false);
  const size_t before = g.node_count();
  const Value targets[] = {loss}, wrt[] = {w};
  g.add_output("dw", add_gradients(g, targets, {}, wrt)[0], Phase::backward);
  g.add_output("loss", loss);
  g.prune();
  // Nodes for the Expand of the seed along the sum, and for the product; none for the three Tanh.
  EXPECT_LE(g.node_count(), before + 4);
  for (Node n : g.nodes()) {
    if (n.phase() == Phase::backward) {
      EXPECT_NE(n.op(), "Tanh");
    }
  }
}

TEST(Gradient, ListsEveryObstacle) {
  Graph g;
  Value x = g.add_input("x", kVector);
  Value a = g.add_node("NoSuchOp", std::vector<Value>{x}, 1, {}, "first").output(0);
  g.set_type(a, kVector);
  Value b = g.add_node("NoSuchOp", std::vector<Value>{a}, 1, {}, "second").output(0);
  g.set_type(b, kVector);
  Value loss = sum(b, {}, false);
  const Value targets[] = {loss}, wrt[] = {x};
  const auto obstacles = find_obstacles(g, targets, wrt);
  ASSERT_EQ(obstacles.size(), 2U);
  EXPECT_EQ(obstacles[0].node, "first");
  EXPECT_EQ(obstacles[0].path, "first → second → ReduceSum → ReduceSum");
  EXPECT_THROW(add_gradients(g, targets, {}, wrt), ModelError);
}

TEST(Gradient, TwiceGivesSecondDerivatives) {
  Graph g;
  Value x = g.add_input("x", kVector);
  const Value first_target[] = {sum(exp(x * 2.0), {}, false)}, wrt[] = {x};
  const Value second_target[] = {
      sum(add_gradients(g, first_target, {}, wrt, Phase::forward)[0], {}, false)};
  g.add_output("ddx", add_gradients(g, second_target, {}, wrt, Phase::forward)[0]);
  const Tensor in = Tensor::from<double>({0, 0.5, 1}, {3});
  const Tensor ddx = evaluate(g, std::span(&in, 1))[0];
  for (int i = 0; i < 3; ++i) EXPECT_NEAR(at(ddx, i), 4 * std::exp(2 * at(in, i)), 1e-9);
}

TEST(Program, RunsForwardAndBackwardApartWithSeveralOutstanding) {
  Graph g;
  Value x = g.add_input("x", {DType::f64, Shape{Dim::symbol("n")}});
  Value y = tanh(x);
  g.add_output("y", y);
  Value dy = g.add_gradient_input("dy", y);
  const Value targets[] = {y}, seeds[] = {dy}, wrt[] = {x};
  g.add_output("dx", add_gradients(g, targets, seeds, wrt)[0], Phase::backward);
  Program program(std::move(g));
  const Tensor a = Tensor::from<double>({0.1, 0.2}, {2}),
               b = Tensor::from<double>({0.5, -1, 2}, {3});
  ForwardResult ra = program.forward(std::span(&a, 1));
  ForwardResult rb = program.forward(std::span(&b, 1));
  ForwardResult ra2 = program.forward(std::span(&a, 1));
  const Tensor ones2 = Tensor::from<double>({1, 1}, {2}),
               ones3 = Tensor::from<double>({1, 1, 1}, {3});
  const Tensor db = program.backward(std::move(rb.pending), std::span(&ones3, 1))[0];
  const Tensor da = program.backward(std::move(ra.pending), std::span(&ones2, 1))[0];
  for (int i = 0; i < 3; ++i) EXPECT_NEAR(at(db, i), 1 - std::pow(std::tanh(at(b, i)), 2), 1e-12);
  for (int i = 0; i < 2; ++i) EXPECT_NEAR(at(da, i), 1 - std::pow(std::tanh(at(a, i)), 2), 1e-12);
  EXPECT_THROW(program.backward(std::move(ra2.pending), std::span(&ones3, 1)), ShapeError);
  EXPECT_THROW(program.backward(nullptr, std::span(&ones2, 1)), DataError);
}

TEST(Program, KnowsTheGradientOfAnOutputThatIsTakenApart) {
  Graph g;
  Value x = g.add_input("x", {DType::f64, Shape{Dim::symbol("n"), 1, 1, 3}});
  Value y = apply("MeanVarianceNormalization", {x});  // has no vjp
  g.add_output("y", y);
  const Value targets[] = {y}, seeds[] = {g.add_gradient_input("dy", y)}, wrt[] = {x};
  g.add_output("dx", add_gradients(g, targets, seeds, wrt)[0], Phase::backward);
  Program program(std::move(g));
  const Tensor in = Tensor::from<double>({0, 1, 5}, {1, 1, 1, 3});
  ForwardResult r = program.forward(std::span(&in, 1));
  const Tensor unit = r.outputs[0], dy = Tensor::from<double>({1, 0, 0}, {1, 1, 1, 3});
  const Tensor dx = program.backward(std::move(r.pending), std::span(&dy, 1))[0];
  const double deviation = std::sqrt((4.0 + 1 + 9) / 3);
  for (int i = 0; i < 3; ++i) {
    const double wanted = (at(dy, i) - 1.0 / 3 - at(unit, i) * at(unit, 0) / 3) / deviation;
    EXPECT_NEAR(at(dx, i), wanted, 1e-8);
  }
}

TEST(Program, AnOutputThatBackwardDoesNotReadIsTheCallersAlone) {
  Graph g;
  Value x = g.add_input("x", {DType::f32, Shape{Dim::symbol("n")}});
  Value free = x * 2.0;
  Value held = tanh(x);  // backward reads it
  g.add_output("free", free);
  g.add_output("held", held);
  const Value targets[] = {free, held}, wrt[] = {x};
  const Value seeds[] = {g.add_gradient_input("da", free), g.add_gradient_input("db", held)};
  g.add_output("dx", add_gradients(g, targets, seeds, wrt)[0], Phase::backward);
  Program program(std::move(g));
  const Tensor in = Tensor::zeros(DType::f32, {100'000});
  ForwardResult first = program.forward(std::span(&in, 1));
  const std::set<const void*> before = {first.outputs[0].data(), first.outputs[1].data()};
  const void* kept = first.outputs[1].data();
  first.outputs.clear();
  const ForwardResult second = program.forward(std::span(&in, 1));
  int reused = 0;
  for (const Tensor& t : second.outputs) {
    EXPECT_NE(t.data(), kept);
    reused += static_cast<int>(before.count(t.data()));
  }
  EXPECT_EQ(reused, 1);
}

TEST(Program, RefusesWrongInputsByName) {
  Graph g;
  Value x = g.add_input("x", {DType::f64, Shape{Dim::symbol("n"), 2}});
  Value z = g.add_input("z", {DType::f64, Shape{Dim::symbol("n"), 2}});
  g.add_output("y", x + z);
  Program program(std::move(g));
  const Tensor good = Tensor::zeros(DType::f64, {3, 2});
  auto node_of = [&](const Tensor& a, const Tensor& b) {
    const Tensor in[] = {a, b};
    try {
      program.forward(in);
    } catch (const Error& e) {
      return e.parts().node;
    }
    return std::string("accepted");
  };
  EXPECT_EQ(node_of(good, good), "accepted");
  EXPECT_EQ(node_of(good, Tensor::zeros(DType::f32, {3, 2})), "z");
  EXPECT_EQ(node_of(good, Tensor::zeros(DType::f64, {3, 3})), "z");
  EXPECT_EQ(node_of(Tensor::zeros(DType::f64, {3}), good), "x");
  EXPECT_EQ(node_of(good, Tensor::zeros(DType::f64, {4, 2})), "z") << "n is 3 already";
  EXPECT_EQ(node_of(good, Tensor()), "z");
  EXPECT_EQ(node_of(good, good), "accepted") << "usable afterwards";
  EXPECT_THROW(program.forward(std::span(&good, 1)), DataError);
}

TEST(Program, UpdatesStates) {
  Graph g;
  Value step = g.add_input("step", {DType::f64, Shape{}});
  Value w = g.add_state("w", {DType::f64, Shape{}});
  g.add_output("before", w * 1.5);
  g.add_update(w, w - step);
  Program program(std::move(g));
  const Tensor bytes = Tensor::scalar(10.0);
  program.bind_state("w", bytes);
  const Tensor two = Tensor::scalar(2.0);
  EXPECT_DOUBLE_EQ(at(program.forward(std::span(&two, 1)).outputs[0], 0), 15);
  EXPECT_DOUBLE_EQ(at(program.forward(std::span(&two, 1)).outputs[0], 0), 12);
  EXPECT_DOUBLE_EQ(at(bytes, 0), 6);
}

TEST(Program, NamesTheFirstNodeThatIsNotFinite) {
  Graph g;
  Value x = g.add_input("x", kVector);
  Value bad = log(x);
  g.add_output("y", tanh(bad) + 1.0);
  Program program(std::move(g), {.disabled_passes = {"fuse_elementwise"}, .check_finite = true});
  const Tensor in = Tensor::from<double>({1, -1, 2}, {3});
  try {
    program.forward(std::span(&in, 1));
    FAIL() << "a NaN went unseen";
  } catch (const DataError& e) {
    EXPECT_EQ(e.parts().op, "Log");
  }
}

TEST(Program, SeesWhatIsNotFiniteInSixteenBits) {
  for (const DType half : {DType::f16, DType::bf16}) {
    for (const bool nan : {false, true}) {
      Graph g;
      Value x = g.add_input("x", {half, Shape{2}});
      Value y = nan ? log(x) : exp(x);
      g.add_output("y", cast(apply("Relu", {y}), DType::f32));
      Program program(std::move(g),
                      {.disabled_passes = {"fuse_elementwise"}, .check_finite = true});
      Tensor in = Tensor::zeros(half, {2});
      const uint16_t bits = half == DType::f16 ? 0x5C00 : 0x4380;  // 256
      for (int i = 0; i < 2; ++i) {
        static_cast<uint16_t*>(in.data())[i] = nan ? bits | 0x8000 : bits;
      }
      try {
        program.forward(std::span(&in, 1));
        FAIL() << "unseen in " << name_of(half);
      } catch (const DataError& e) {
        EXPECT_EQ(e.parts().op, nan ? "Log" : "Exp");
        EXPECT_EQ(e.parts().received.substr(0, 3), nan ? "NaN" : "inf");
      }
    }
  }
}

}  // namespace
}  // namespace steep
