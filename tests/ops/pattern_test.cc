// What patterns match and capture.

#include "ops/pattern.h"

#include <gtest/gtest.h>

#include "ops/build.h"
#include "steep/error.h"

namespace steep {
namespace {

const Type kMatrix{DType::f32, Shape{4, 4}};

/// A graph with two inputs.
struct Two {
  Graph g;
  Value x = g.add_input("x", kMatrix), y = g.add_input("y", kMatrix);
};

TEST(Pattern, CapturesValuesAndNodes) {
  Two two;
  const Value sum = two.x + tanh(two.y);
  const auto m = match("whole: Add(a, inner: Tanh(b))", sum);
  ASSERT_TRUE(m);
  EXPECT_EQ((*m)["a"], two.x);
  EXPECT_EQ((*m)["b"], two.y);
  EXPECT_EQ(m->node("inner"), sum.producer().input(1).producer());
  EXPECT_EQ(m->node("whole"), sum.producer());
  EXPECT_FALSE(m->node("a"));  // an input
  EXPECT_THROW((*m)["c"], InternalError);
}

TEST(Pattern, WantsOperatorAndOperands) {
  Two two;
  const Value sum = two.x + two.y;
  EXPECT_TRUE(match("Add(_, _)", sum));
  EXPECT_TRUE(match("Add(_, ...)", sum));
  EXPECT_TRUE(match("Sub|Add(_, _)", sum));
  EXPECT_TRUE(match("Add|Sub(_, _)", sum));
  EXPECT_FALSE(match("Ad(_, _)", sum));
  EXPECT_FALSE(match("Sub|Mul(_, _)", sum));
  EXPECT_FALSE(match("Add(_)", sum));
  EXPECT_FALSE(match("Add(_, _, _)", sum));
  EXPECT_FALSE(match("Add(_, _, ...)", two.x));
  EXPECT_FALSE(match("Add(_, Tanh(_))", sum));
}

TEST(Pattern, CountsOnlyOperandsThatAreThere) {
  Two two;
  const Type column{DType::f32, Shape{4}};
  const Value bias = two.g.add_input("bias", column);
  EXPECT_TRUE(match("steep.MatMul(a, b)", apply("steep.MatMul", {two.x, two.y, Value()})));
  EXPECT_FALSE(match("steep.MatMul(a, b)", apply("steep.MatMul", {two.x, two.y, bias})));
  EXPECT_FALSE(match("steep.MatMul(a, b, c)", apply("steep.MatMul", {two.x, two.y, Value()})));
}

TEST(Pattern, ANameIsOneValue) {
  Two two;
  EXPECT_TRUE(match("Mul(a, a)", two.x * two.x));
  EXPECT_FALSE(match("Mul(a, a)", two.x * two.y));
  EXPECT_TRUE(match("Mul(a, b)", two.x * two.y, Match().with("b", two.y)));
  EXPECT_FALSE(match("Mul(a, b)", two.x * two.y, Match().with("b", two.x)));
  // Constants with the same number count as one value, too.
  EXPECT_TRUE(match("Add(Mul(_, c), Mul(_, c))", two.x * 0.5 + two.y * 0.5));
  EXPECT_FALSE(match("Add(Mul(_, c), Mul(_, c))", two.x * 0.5 + two.y * 0.25));
}

TEST(Pattern, NumbersAreConstantsOfOneElement) {
  Two two;
  EXPECT_TRUE(match("Mul(_, 0.125)", two.x * 0.125));
  EXPECT_TRUE(match("Mul(_, 12)", two.x * 12));
  EXPECT_FALSE(match("Mul(_, 0.125)", two.x * 0.25));
  EXPECT_FALSE(match("Mul(_, 1)", two.x * two.y));
  EXPECT_EQ(match("Mul(_, c)", two.x * 0.25)->number("c"), 0.25);
  EXPECT_FALSE(match("Mul(_, c)", two.x * two.y)->number("c"));
}

TEST(Pattern, OperandsInAnyOrder) {
  Two two;
  for (const Value sum : {two.x + tanh(two.y), tanh(two.y) + two.x}) {
    EXPECT_EQ((*match("Add{a, Tanh(b)}", sum))["a"], two.x);
    EXPECT_EQ(static_cast<bool>(match("Add(a, Tanh(b))", sum)), sum.producer().input(0) == two.x);
  }
  EXPECT_TRUE(match("Add{Mul{Tanh(_), a}, a}", two.x + two.x * tanh(two.y)));
  EXPECT_FALSE(match("Add{Mul{Tanh(_), a}, a}", two.x + two.y * tanh(two.y)));
}

TEST(Pattern, TriesOrdersUntilOneIsAccepted) {
  Two two;
  const Value product = (two.x + two.y) * (two.y - two.x);
  std::vector<std::pair<Value, Value>> tried;
  const bool accepted =
      match("Mul{Add{a, b}, c}", product.producer(), Match(), [&](const Match& m) {
        tried.emplace_back(m["a"], m["b"]);
        return tried.size() == 2;
      });
  EXPECT_TRUE(accepted);
  ASSERT_EQ(tried.size(), 2U);
  EXPECT_EQ(tried[0], std::pair(two.x, two.y));  // the written order comes first
  EXPECT_EQ(tried[1], std::pair(two.y, two.x));
  EXPECT_FALSE(match("Add{a, b}", product.producer().input(0).producer(), Match(),
                     [](const Match&) { return false; }));
}

TEST(Pattern, OnlyReader) {
  Two two;
  const Value inner = tanh(two.x), outer = exp(inner);
  EXPECT_TRUE(match("Exp(only Tanh(x))", outer, Match(Readers(two.g))));
  EXPECT_TRUE(match("Exp(only Tanh(only x))", outer, Match(Readers(two.g))));
  EXPECT_TRUE(match("Exp(only t: Tanh(x))", outer, Match(Readers(two.g))));
  two.g.add_output("inner", inner);
  EXPECT_FALSE(match("Exp(only Tanh(x))", outer, Match(Readers(two.g))));
  EXPECT_TRUE(match("Exp(Tanh(x))", outer, Match(Readers(two.g))));
  EXPECT_THROW(match("Exp(only Tanh(x))", outer), InternalError);

  Two twice;
  const Value read = tanh(twice.x);
  EXPECT_FALSE(match("Mul(only Tanh(_), _)", read * read, Match(Readers(twice.g))));
}

TEST(Pattern, ANodeStandsForItsFirstOutput) {
  Two two;
  const std::vector<Value> halves =
      apply_n("Split", std::vector{two.x}, 2, {{"axis", int64_t{0}}, {"num_outputs", int64_t{2}}});
  EXPECT_TRUE(match("Tanh(Split(x, ...))", tanh(halves[0])));
  EXPECT_FALSE(match("Tanh(Split(x, ...))", tanh(halves[1])));
  EXPECT_FALSE(match("Split(x, ...)", halves[1]));
}

constexpr PatternRule<Value&> kRules[] = {
    {.name = "test/power",
     .reason = "Never.",
     .pattern = "Mul(a, a)",
     .then = [](const Match&, Value&) { return false; }},
    {.name = "test/product",
     .reason = "Always.",
     .pattern = "Mul{a, Tanh(b)}",
     .then = [](const Match& m, Value& b) { return static_cast<bool>(b = m["b"]); }},
};

TEST(Rows, TheFirstThatTakesTheMatch) {
  Two two;
  const Value t = tanh(two.y);
  for (const Value product : {two.x * t, t * t}) {
    Value b;
    const auto* rule = apply_rules(kRules, product.producer(), Match(), b);
    ASSERT_NE(rule, nullptr);
    EXPECT_EQ(rule->name, "test/product");
    EXPECT_EQ(b, two.y);
  }
  Value b;
  EXPECT_EQ(apply_rules(kRules, (two.x * two.x).producer(), Match(), b), nullptr);
  const std::vector<PatternRuleInfo> list = list_rules(kRules, kRules);
  ASSERT_EQ(list.size(), 4U);
  EXPECT_EQ(list[1].pattern, "Mul{a, Tanh(b)}");
}

}  // namespace
}  // namespace steep
