// Plans within a memory limit, on small graphs, compared with all possible choices.
#include "plan/memory_planner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>

#include "ops/build.h"
#include "plan/assign_devices.h"
#include "plan/choose_kernels.h"
#include "plan/memory_limit.h"
#include "plan/memory_report.h"
#include "plan/recompute.h"
#include "steep/error.h"

namespace steep {
namespace {

/// A chain of products and elementwise nodes with skips, and its gradient, written by hand.
/// To try all choices takes at most 12 forward nodes.
Graph random_step(uint32_t seed, int nodes = 10, int64_t rows = 64) {
  constexpr std::array<int64_t, 3> kWidths{8, 16, 32};
  std::mt19937 random(seed);
  Graph g;
  std::vector<Value> made{g.add_input("x", {DType::f32, Shape{rows, 8}})};
  struct Link {
    int from;  // index into `made`
    Value weight;
  };
  std::vector<Link> links{{}};
  for (int i = 0; i < nodes; ++i) {
    const int from = static_cast<int>(made.size()) - 1;
    const Value x = made.back();
    const int64_t width = x.type().dims()[1];
    Link link{from, {}};
    if (random() % 2 == 0) {
      const int64_t next = kWidths[random() % kWidths.size()];
      link.weight = g.add_input("w" + std::to_string(i), {DType::f32, Shape{width, next}});
      made.push_back(matmul(x, link.weight));
    } else {
      made.push_back(tanh(x));
    }
    links.push_back(link);
  }
  g.add_output("y", sum(made.back(), {0, 1}, false));
  const Graph::Scope scope(g, Phase::backward, "back");
  Value d = g.add_input("dy", made.back().type(), Phase::backward);
  for (size_t i = made.size(); i-- > 1;) {
    const Value x = made[static_cast<size_t>(links[i].from)];
    if (links[i].weight) {
      g.add_output("dw" + std::to_string(i), matmul(transpose(x, {1, 0}), d), Phase::backward);
      d = matmul(d, transpose(links[i].weight, {1, 0}));
    } else {
      d = d * (1.0 - made[i] * made[i]);
    }
  }
  g.add_output("dx", d, Phase::backward);
  return g;
}

/// A graph with its kernels on the host.
struct Prepared {
  Graph graph;
  Devices devices = Devices::host_alone();
  KernelGraph kernel_graph;
  std::vector<int> device;
  KernelOf kernels;
  ViewOf views;

  explicit Prepared(Graph g)
      : graph(std::move(g)),
        kernel_graph(choose_kernels(graph, devices)),
        device(assign_devices(graph, kernel_graph)),
        kernels(kernels_of(graph, kernel_graph)),
        views(views_of(graph, kernel_graph)) {}
  MemoryPlanner planner() const { return {graph, {kernels, views, device, devices}}; }
};

/// The milliseconds of the fastest point that needs at most `bytes`; infinite if there is none.
double fastest_within(const std::vector<MemoryPoint>& points, size_t bytes) {
  double ms = std::numeric_limits<double>::infinity();
  for (const MemoryPoint& p : points) {
    if (p.bytes <= bytes) ms = std::min(ms, p.ms);
  }
  return ms;
}

class MemoryPlannerTest : public testing::TestWithParam<uint32_t> {};

TEST_P(MemoryPlannerTest, LargerPlansAreFaster) {
  const Prepared step(random_step(GetParam()));
  MemoryPlanner planner = step.planner();
  const std::vector<MemoryPoint> points = planner.search();
  ASSERT_GT(points.size(), 1U);
  for (size_t i = 1; i < points.size(); ++i) {
    EXPECT_LT(points[i].bytes, points[i - 1].bytes);
    EXPECT_GT(points[i].ms, points[i - 1].ms);
  }
}

TEST_P(MemoryPlannerTest, IsWithinFivePercentOfTheBestOfAllChoices) {
  const Prepared step(random_step(GetParam()));
  MemoryPlanner all = step.planner(), planner = step.planner();
  RecomputedNodes nodes;
  for (uint32_t id = 0; id < all.can_recompute().size(); ++id) {
    if (all.can_recompute()[id] != 0) nodes.push_back({id});
  }
  ASSERT_LE(nodes.size(), 12U);
  std::vector<MemoryPoint> every;
  for (size_t choice = 0; choice < size_t{1} << nodes.size(); ++choice) {
    RecomputedNodes recomputed;
    for (size_t i = 0; i < nodes.size(); ++i) {
      if ((choice >> i & 1U) != 0) recomputed.push_back(nodes[i]);
    }
    every.push_back(all.measure(recomputed));
  }
  const std::vector<MemoryPoint> found = planner.search();
  const size_t least = std::min_element(every.begin(), every.end(), [](auto& a, auto& b) {
                         return a.bytes < b.bytes;
                       })->bytes;
  EXPECT_LE(static_cast<double>(found.back().bytes), 1.05 * static_cast<double>(least));
  double worst = 0;
  for (const MemoryPoint& p : every) {
    if (p.bytes < found.back().bytes) continue;
    const double best = fastest_within(every, p.bytes);
    worst = std::max(worst, fastest_within(found, p.bytes) / best - 1);
  }
  RecordProperty("gap", std::to_string(worst));
  EXPECT_LE(worst, 0.05);
}

TEST_P(MemoryPlannerTest, APlanTakesWhatWasFound) {
  const Prepared step(random_step(GetParam()));
  MemoryPlanner planner = step.planner();
  for (const MemoryPoint& p : planner.search()) {
    const Plan plan = plan_within(step.graph, step.devices, {}, {.bytes = p.bytes});
    EXPECT_EQ(run_bytes(plan), p.bytes);
    for (const Step& s : plan.steps) EXPECT_TRUE(s.kernel != nullptr || s.copy_bytes != 0);
  }
}

TEST_P(MemoryPlannerTest, BelowTheLeastItSaysTheLeast) {
  const Prepared step(random_step(GetParam()));
  MemoryPlanner planner = step.planner();
  const size_t least = planner.search().back().bytes;
  try {
    plan_within(step.graph, step.devices, {}, {.bytes = least - 1});
    FAIL() << "a plan within less than the least";
  } catch (const OutOfMemoryError& e) {
    EXPECT_NE(e.parts().received.find(std::to_string(least) + " bytes"), std::string::npos)
        << e.what();
    EXPECT_NE(e.parts().expected.find(std::to_string(least - 1) + " bytes"), std::string::npos);
  }
  EXPECT_EQ(run_bytes(plan_within(step.graph, step.devices, {}, {.bytes = least + 7, .held = 7})),
            least);
  EXPECT_EQ(run_bytes(plan_within(step.graph, step.devices, {}, {.least = true})), least);
}

TEST_P(MemoryPlannerTest, TheReportIsOfThePlanThatIsMade) {
  const Prepared step(random_step(GetParam()));
  const MemoryReport free = memory_report(step.graph, step.devices, {});
  EXPECT_EQ(free.limit, 0U);
  EXPECT_EQ(free.planned.bytes, free.plain.bytes);
  EXPECT_EQ(free.plain.bytes, run_bytes(make_plan(step.graph, step.devices)));
  for (const MemoryChoice& choice : free.choices) EXPECT_FALSE(choice.again) << choice.node;
  for (const MemoryPlan& plan : free.plans) {
    const MemoryLimit limit{.bytes = plan.bytes + 5, .held = 5};
    const MemoryReport report = memory_report(step.graph, step.devices, limit);
    const size_t made = run_bytes(plan_within(step.graph, step.devices, {}, limit));
    EXPECT_EQ(report.planned.bytes, made + 5);
    EXPECT_LE(report.planned.bytes, report.limit);
    const auto chosen = std::count_if(report.choices.begin(), report.choices.end(),
                                      [](const MemoryChoice& c) { return c.again; });
    EXPECT_EQ(chosen > 0, report.planned.bytes < report.plain.bytes);
  }
  const MemoryLimit none{.bytes = free.plans.back().bytes - 1};
  EXPECT_THROW(memory_report(step.graph, step.devices, none), OutOfMemoryError);
}

TEST_P(MemoryPlannerTest, TheReportTakesWhatThePlanFound) {
  const Prepared step(random_step(GetParam()));
  const MemoryLimit limit{.least = true};
  const Plan plan = plan_within(step.graph, step.devices, {}, limit);
  ASSERT_FALSE(plan.found.empty());
  EXPECT_EQ(memory_report(step.graph, step.devices, limit, plan.found).text(),
            memory_report(step.graph, step.devices, limit).text());
  const std::span<const MemoryPoint> last = std::span(plan.found).last(1);
  EXPECT_EQ(memory_report(step.graph, step.devices, limit, last).plans.size(), 1U);
  EXPECT_TRUE(plan_within(step.graph, step.devices, {}, {.bytes = size_t{1} << 40}).found.empty());
}

INSTANTIATE_TEST_SUITE_P(RandomSteps, MemoryPlannerTest, testing::Range(0U, 12U));

TEST(MemoryPlanner, NoLimitAndALargeOneGiveThePlanWithoutChoices) {
  const Graph g = random_step(1);
  const std::string plain = to_text(make_plan(g, Devices::host_alone()));
  EXPECT_EQ(to_text(plan_within(g, Devices::host_alone(), {}, {.bytes = size_t{1} << 40})), plain);
}

/// The search lays out few variants of a large graph, and must not spend them near the fastest one.
TEST(MemoryPlanner, TheDescentOfALargeGraphComesFar) {
  const Prepared step(random_step(1, 800, 4096));
  MemoryPlanner planner = step.planner();
  const std::vector<MemoryPoint>& points = planner.search();
  const auto least = static_cast<double>(points.back().bytes);
  EXPECT_LT(least, 0.0735 * static_cast<double>(points.front().bytes));
}

TEST(MemoryPlanner, ReadingAFewRowsOfATableTakesLessThanReadingTheTable) {
  Graph g;
  const Value table = g.add_input("table", {DType::f32, Shape{1 << 20, 16}});
  const Value rows = apply("Gather", {table, ints(g, {3, 5})});
  g.add_output("rows", rows);
  g.add_output("all", tanh(table));
  const KernelGraph kernel_graph = choose_kernels(g, Devices::host_alone());
  const auto ms = [&](Node n) { return modelled_ms(n, &kernel_graph.kernels.at(n.id())); };
  for (Node n : g.nodes()) {
    const bool few = n.op() == "Gather";
    EXPECT_EQ(ms(n) < 0.01, few) << n.op();
  }
}

// A running mean has changed by the time of backward.
TEST(MemoryPlanner, WhatReadsAStateThatForwardOverwritesIsNotRecomputed) {
  Graph g;
  const Value x = g.add_input("x", {DType::f32, Shape{8}});
  const Value mean = g.add_state("mean", {DType::f32, Shape{8}});
  const Value weight = g.add_state("weight", {DType::f32, Shape{8}});
  const Value centred = x - reshape(mean, Ints{8});
  const Value scaled = centred * weight;
  const Value moved = mean + x;
  g.add_output("y", tanh(scaled));
  g.add_update(mean, moved);
  {
    const Graph::Scope scope(g, Phase::backward, "back");
    const Value d = g.add_input("d", x.type(), Phase::backward);
    g.add_update(weight, weight - d * centred * scaled);
  }
  const uint32_t reads = centred.producer().id(), writes = moved.producer().id();
  const uint32_t later = scaled.producer().id();
  const Prepared step(std::move(g));
  const std::vector<char> can = can_recompute(step.graph, step.kernels);
  EXPECT_FALSE(can[reads]);
  EXPECT_FALSE(can[writes]);
  EXPECT_TRUE(can[later]);
}

TEST(MemoryLimit, IsReadAsPeopleWriteIt) {
  EXPECT_TRUE(memory_limit_from("").is_none());
  EXPECT_TRUE(memory_limit_from("least").least);
  EXPECT_EQ(memory_limit_from("1048576").bytes, size_t{1} << 20);
  EXPECT_EQ(memory_limit_from("2GiB").bytes, size_t{2} << 30);
  EXPECT_EQ(memory_limit_from("512M").bytes, size_t{512} << 20);
  EXPECT_EQ(memory_limit_from("3K").bytes, size_t{3} << 10);
  EXPECT_EQ(memory_limit_from("1TiB").bytes, size_t{1} << 40);
  for (const char* text : {"2 GB", "2GB", "0", "0GiB", "-1", "8Q", "GiB", "1.5G", "2gib", "+3",
                           " 2G", "2G ", "2Gi", "99999999999999999999", "99999999999T", "auto"}) {
    EXPECT_THROW(memory_limit_from(text), ModelError) << text;
  }
}

}  // namespace
}  // namespace steep
