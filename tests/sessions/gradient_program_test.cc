// A graph that runs forward and backward when an autograd tape calls it.
#include "sessions/gradient_program.h"

#include <gtest/gtest.h>

#include "ops/build.h"
#include "steep/error.h"

namespace steep {
namespace {

const Type kVector{DType::f64, Shape{2}};

double at(const Tensor& t, int64_t i) { return t.data<double>()[i]; }

/// square = x · x, scaled = x · w.
Graph two_products() {
  Graph g;
  Value x = g.add_input("x", kVector);
  Value w = g.add_input("w", kVector);
  g.add_output("square", x * x);
  g.add_output("scaled", x * w);
  return g;
}

/// A run with input x and w = 10, 20.
GradientRun run_of(std::initializer_list<double> x) {
  GradientRun run;
  run.inputs = {Tensor::from<double>(x, {2}), Tensor::from<double>({10, 20}, {2})};
  return run;
}

class GradientPrograms : public ::testing::Test {
 protected:
  GradientProgram program{two_products(), {.input_gradients = {"x", "w", "unknown"}}};
  Tensor ones = Tensor::from<double>({1, 1}, {2});
};

TEST_F(GradientPrograms, GivesWhatTheTapeAsksFor) {
  EXPECT_EQ(program.input_names(), (std::vector<std::string>{"x", "w"}));
  EXPECT_EQ(program.differentiable(), (GradientPattern{true, true}));
  GradientRun run = run_of({2, 3});
  const ForwardResult result = program.forward(run, true);
  EXPECT_EQ(at(result.outputs[0], 1), 9);
  EXPECT_EQ(at(result.outputs[1], 1), 60);
  const Tensor both[] = {ones, ones};
  const std::vector<Tensor> all = program.backward(run, both);
  EXPECT_EQ(at(all[0], 0), 2 * 2 + 10);
  EXPECT_EQ(at(all[1], 1), 3);
  EXPECT_FALSE(all[2].defined());
  const Tensor first[] = {ones, Tensor()};  // again, and with another pattern
  const std::vector<Tensor> some = program.backward(run, first);
  EXPECT_EQ(at(some[0], 0), 4);
  EXPECT_FALSE(some[1].defined());
  EXPECT_EQ(program.program_count(), 2U);
}

TEST_F(GradientPrograms, ForwardThatRunsAgainReadsWhatItReadBefore) {
  Graph g;
  Value x = g.add_input("x", kVector);
  Value w = g.add_input("w", kVector);
  g.add_output("squares", x * w * (x * w));
  g.add_output("scaled", x * w);
  GradientProgram squares(g, {.input_gradients = {"x", "w"}});
  GradientRun run = run_of({2, 3});
  squares.forward(run, true);
  run.inputs[0].data<double>()[0] = 100;
  const Tensor first[] = {ones, Tensor()};  // a pattern that was not planned in advance
  const std::vector<Tensor> made = squares.backward(run, first);
  EXPECT_EQ(at(made[0], 0), 2 * (2 * 10) * 10);   // the product from forward,
  EXPECT_EQ(at(made[1], 0), 2 * (2 * 10) * 100);  // times the input, which backward reads in place
}

/// Both results are exp(x), which backward reads, too.
TEST(GradientProgramsWhoseResultsChange, ReadBytesOfTheirOwn) {
  Graph g;
  const Value x = g.add_input("x", kVector);
  const Value y = apply("Exp", {x});
  g.add_output("all", y);
  g.add_output("again", y);
  for (const bool both : {false, true}) {
    GradientProgram program(g, {.input_gradients = {"x"}, .results_may_change = {true, both}});
    GradientRun run;
    run.inputs = {Tensor::from<double>({0, 0}, {2})};
    ForwardResult result = program.forward(run, true);
    EXPECT_EQ(result.read_by_backward, (std::vector<bool>{false, !both}));
    result.outputs[0].data<double>()[0] = 100;
    EXPECT_EQ(at(result.outputs[1], 0), 1);
    const Tensor ones = Tensor::from<double>({1, 1}, {2});
    const Tensor gradients[] = {ones, ones};
    EXPECT_EQ(at(program.backward(run, gradients)[0], 0), 2);
  }
}

TEST_F(GradientPrograms, RunsMayWaitForEachOther) {
  GradientRun a = run_of({2, 3}), b = run_of({5, 7});
  program.forward(a, true);
  program.forward(b, true);
  const Tensor both[] = {ones, ones};
  EXPECT_EQ(at(program.backward(a, both)[1], 0), 2);
  EXPECT_EQ(at(program.backward(b, both)[1], 0), 5);
}

TEST_F(GradientPrograms, BackwardReadsInputsWhereTheyAre) {
  GradientRun run = run_of({2, 3});
  program.forward(run, true);
  double* before = run.inputs[0].data<double>();
  const Tensor kept = run.inputs[0];
  run.inputs[0] = kept.clone();
  run.moved = true;
  before[0] = before[1] = 1e300;  // like memory that was freed
  const Tensor both[] = {ones, ones};
  EXPECT_EQ(at(program.backward(run, both)[0], 0), 14);
  GradientRun other = run_of({2, 3});
  program.forward(other, true);
  other.inputs[0] = Tensor::from<double>({1, 2, 3}, {3});
  other.moved = true;
  EXPECT_THROW(program.backward(other, both), ShapeError);
}

TEST(GradientProgramsWithoutWork, GiveTheGradientThatCameIn) {
  Graph g;
  Value x = g.add_input("x", kVector);
  Value y = g.add_input("y", kVector);
  g.add_output("sum", x + y);
  GradientProgram program{std::move(g), {.input_gradients = {"x"}}};
  GradientRun run = run_of({2, 3});
  program.forward(run, true);
  const Tensor seed[] = {Tensor::from<double>({5, 7}, {2})};
  EXPECT_EQ(at(program.backward(run, seed)[0], 1), 7);
}

TEST(GradientProgramsInSegments, KeepTheirInputsInPlace) {
  Graph g;
  Value x = g.add_input("x", kVector);
  Value places = apply("NonZero", {x});
  g.add_output("y", apply("Gather", {x * x, places}, {{"axis", int64_t{0}}}));
  GradientProgram program(std::move(g), {.input_gradients = {"x"}});
  GradientRun run;
  run.inputs = {Tensor::from<double>({2, 3}, {2})};
  const ForwardResult result = program.forward(run, true);
  const Tensor ones[] = {Tensor::from<double>({1, 1}, {1, 2})};
  EXPECT_EQ(at(program.backward(run, ones)[0], 1), 6);
  program.forward(run, true);
  run.moved = true;
  EXPECT_THROW(program.backward(run, ones), ProviderError);
}

TEST_F(GradientPrograms, ARunBelongsToItsProgram) {
  GradientRun run = run_of({2, 3});
  const Tensor both[] = {ones, ones};
  EXPECT_THROW(program.backward(run, both), DataError);
}

}  // namespace
}  // namespace steep
