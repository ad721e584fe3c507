// Plans within a memory limit, compared with the optimum: for a fixed order of backward, the
// cheapest sequence of computing again and of giving up, by Dijkstra's algorithm over the sets of
// values in memory. Bytes are sums there, as in Checkmate (Jain et al., 2020), so that the search
// is exact; the optimum is then laid out and judged like every plan.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <queue>
#include <random>

#include "ops/build.h"
#include "plan/assign_devices.h"
#include "plan/choose_kernels.h"
#include "plan/memory_planner.h"

namespace steep {
namespace {

constexpr int kForward = 10;

/// A net of products, tanh, sums and products of two earlier values, with its gradient. Values that
/// several nodes read are read at several far steps of backward.
class RandomNet {
 public:
  explicit RandomNet(uint32_t seed) : random_(seed) {
    values_.push_back({graph.add_input("x", {DType::f32, Shape{64, 16}})});
    while (made_ < kForward) add();
    graph.add_output("y", values_.back().value);
    const Graph::Scope scope(graph, Phase::backward, "back");
    gradients_.resize(values_.size());
    gradients_.back() = graph.add_input("dy", values_.back().value.type(), Phase::backward);
    for (size_t i = values_.size(); i-- > 1;) {
      if (gradients_[i]) go_back(values_[i], gradients_[i]);
    }
    if (gradients_[0]) graph.add_output("dx", gradients_[0], Phase::backward);
  }

  Graph graph;

 private:
  enum class Kind { input, matmul, tanh, add, multiply };
  struct Made {
    Value value;
    Kind kind = Kind::input;
    size_t a = 0, b = 0;
    Value weight{};
  };

  size_t earlier(int64_t width) {
    std::vector<size_t> fit;
    for (size_t i = 0; i < values_.size(); ++i) {
      if (width_of(i) == width) fit.push_back(i);
    }
    return fit[random_() % fit.size()];
  }
  int64_t width_of(size_t i) const { return values_[i].value.type().dims()[1]; }

  void add() {
    constexpr std::array<int64_t, 3> kWidths{16, 32, 64};
    const size_t last = values_.size() - 1;
    const Value x = values_[last].value;
    const uint32_t kind = random_() % 5;
    if (kind < 2) {
      const int64_t next = kWidths[random_() % kWidths.size()];
      const Value w =
          graph.add_input("w" + std::to_string(made_), {DType::f32, Shape{width_of(last), next}});
      values_.push_back({matmul(x, w), Kind::matmul, last, last, w});
    } else if (kind == 2) {
      values_.push_back({tanh(x), Kind::tanh, last});
    } else {
      const size_t other = earlier(width_of(last));
      const bool sum = kind == 3;
      const Value y = values_[other].value;
      values_.push_back({sum ? x + y : x * y, sum ? Kind::add : Kind::multiply, last, other});
    }
    ++made_;
  }

  void flow(size_t to, Value d) { gradients_[to] = gradients_[to] ? gradients_[to] + d : d; }

  void go_back(const Made& m, Value d) {
    const Value a = values_[m.a].value, b = values_[m.b].value;
    if (m.kind == Kind::matmul) {
      graph.add_output("d" + m.weight.name(), matmul(transpose(a, {1, 0}), d), Phase::backward);
      flow(m.a, matmul(d, transpose(m.weight, {1, 0})));
    } else if (m.kind == Kind::tanh) {
      flow(m.a, d * (1.0 - m.value * m.value));
    } else {
      flow(m.a, m.kind == Kind::add ? d : d * b);
      flow(m.b, m.kind == Kind::add ? d : d * a);
    }
  }

  std::mt19937 random_;
  int made_ = 0;
  std::vector<Made> values_;
  std::vector<Value> gradients_;
};

using Set = uint32_t;  // of values of forward

/// The costs of a graph's values of forward, and what its steps need.
class Model {
 public:
  Model(const Graph& graph, const KernelOf& kernels, const std::vector<char>& can)
      : kernels_(kernels) {
    for (Node n : graph.nodes()) {
      if (n.phase() != Phase::forward || kernels[n.id()] == nullptr) continue;
      const Value y = n.output(0);
      values_.push_back({.value = y,
                         .reads = reads_of(n),
                         .bytes = y.type().nbytes(),
                         .ms = modelled_ms(n, kernels[n.id()]),
                         .can = can[n.id()] != 0});
    }
    for (const Output& o : graph.outputs()) {
      const int at = index_of(o.value);
      if (at >= 0) given_ |= Set{1} << at;  // in the memory of an output: not in the arena
    }
    note_backward(graph);
  }

  size_t count() const { return values_.size(); }

  struct Best {
    double ms = std::numeric_limits<double>::infinity();  ///< of what backward computes again
    RecomputedNodes again{};
  };

  /// The optimum within `limit` bytes of values at each step.
  Best within(size_t limit) const {
    std::vector<Mark> marks = start(limit);
    std::vector<std::vector<Mark>> history;
    for (const Back& step : backward_) {
      settle(step, limit, marks);
      history.push_back(marks);
      for (Set s = 0; s < marks.size(); ++s) {
        const bool runs = (step.reads & ~s) == 0 && bytes(s) + step.bytes <= limit;
        marks[s] = runs ? Mark{marks[s].ms, s, -1} : Mark{};
      }
    }
    const auto end = std::min_element(marks.begin(), marks.end(),
                                      [](const Mark& a, const Mark& b) { return a.ms < b.ms; });
    Best best{.ms = end->ms};
    if (best.ms == std::numeric_limits<double>::infinity()) return best;
    Set s = static_cast<Set>(end - marks.begin());
    for (size_t j = history.size(); j-- > 0;) {
      while (true) {
        const Mark& mark = history[j][s];
        if (mark.computed >= 0)
          best.again.push_back({values_[static_cast<size_t>(mark.computed)].value.producer().id(),
                                static_cast<uint32_t>(j)});
        if (mark.from == s) break;
        s = mark.from;
      }
    }
    std::sort(best.again.begin(), best.again.end());
    best.again.erase(std::unique(best.again.begin(), best.again.end()), best.again.end());
    return best;
  }

  /// The peak if everything is kept that backward reads.
  size_t plain() const {
    Set needed = 0;
    for (const Back& b : backward_) needed |= b.reads;
    size_t most = forward_peak(needed);
    for (const Back& b : backward_) most = std::max(most, bytes(needed) + b.bytes);
    return most;
  }

 private:
  struct Forward {
    Value value;
    Set reads;
    size_t bytes;
    double ms;
    bool can;
  };
  struct Back {
    Set reads;
    size_t bytes = 0;  ///< of values of backward that are in memory during the step
  };
  struct Mark {
    double ms = std::numeric_limits<double>::infinity();
    Set from = 0;       ///< the set before; equal to its own set at the start of a step
    int computed = -1;  ///< the value that was computed; -1: none
  };

  int index_of(Value v) const {
    for (Node p = v.producer(); p && kernels_[p.id()] == nullptr; p = v.producer()) v = p.input(0);
    for (size_t i = 0; i < values_.size(); ++i) {
      if (values_[i].value == v) return static_cast<int>(i);
    }
    return -1;
  }

  Set reads_of(Node n) const {
    Set reads = 0;
    for (int i = 0; i < n.input_count(); ++i) {
      const int at = index_of(n.input(i));
      if (at >= 0) reads |= Set{1} << at;
    }
    return reads;
  }

  void note_backward(const Graph& graph) {
    std::vector<Node> nodes;
    for (Node n : graph.nodes()) {
      if (n.phase() == Phase::backward) nodes.push_back(n);
    }
    for (Node n : nodes) backward_.push_back({.reads = reads_of(n)});
    std::vector<Value> given;
    for (const Output& o : graph.outputs()) given.push_back(o.value);
    for (size_t j = 0; j < nodes.size(); ++j) {
      const Value y = nodes[j].output(0);
      if (kernels_[nodes[j].id()] == nullptr || std::count(given.begin(), given.end(), y) > 0)
        continue;
      for (size_t k = j; k < last_reader(nodes, y, j) + 1; ++k)
        backward_[k].bytes += y.type().nbytes();
    }
  }

  size_t last_reader(const std::vector<Node>& nodes, Value y, size_t last) const {
    for (size_t k = 0; k < nodes.size(); ++k) {
      for (int i = 0; i < nodes[k].input_count(); ++i) {
        Value x = nodes[k].input(i);
        for (Node p = x.producer(); p && kernels_[p.id()] == nullptr; p = x.producer())
          x = p.input(0);
        if (x == y) last = std::max(last, k);
      }
    }
    return last;
  }

  size_t bytes(Set s) const {
    size_t sum = 0;
    for (Set rest = s & ~given_; rest != 0; rest &= rest - 1)
      sum += values_[static_cast<size_t>(std::countr_zero(rest))].bytes;
    return sum;
  }

  size_t forward_peak(Set kept) const {
    size_t most = 0;
    for (size_t i = 0; i < values_.size(); ++i) {
      Set live = (Set{1} << i) | (kept & ((Set{1} << i) - 1));
      for (size_t k = i; k < values_.size(); ++k) live |= values_[k].reads & ((Set{1} << i) - 1);
      most = std::max(most, bytes(live));
    }
    return most;
  }

  /// What forward may have kept.
  std::vector<Mark> start(size_t limit) const {
    std::vector<Mark> marks(size_t{1} << values_.size());
    for (Set s = 0; s < marks.size(); ++s) {
      if ((given_ & ~s) == 0 && forward_peak(s) <= limit) marks[s] = {0, s, -1};
    }
    return marks;
  }

  /// All sets that can be in memory before `step` runs, each at its least cost. What the step's
  /// gradients need is in memory meanwhile, but its results are not.
  void settle(const Back& step, size_t limit, std::vector<Mark>& marks) const {
    using Item = std::pair<double, Set>;
    std::priority_queue<Item, std::vector<Item>, std::greater<>> todo;
    for (Set s = 0; s < marks.size(); ++s) {
      if (marks[s].ms < std::numeric_limits<double>::infinity()) todo.emplace(marks[s].ms, s);
    }
    const auto reach = [&](Set s, double ms, Set from, int computed) {
      if (ms >= marks[s].ms) return;
      marks[s] = {ms, from, computed};
      todo.emplace(ms, s);
    };
    while (!todo.empty()) {
      const auto [ms, s] = todo.top();
      todo.pop();
      if (ms > marks[s].ms) continue;
      for (size_t i = 0; i < values_.size(); ++i) {
        const Set bit = Set{1} << i;
        if ((s & bit) != 0) {
          if ((given_ & bit) == 0) reach(s & ~bit, ms, s, -1);
        } else if (values_[i].can && (values_[i].reads & ~s) == 0 &&
                   bytes(s | bit) + step.bytes <= limit) {
          reach(s | bit, ms + values_[i].ms, s, static_cast<int>(i));
        }
      }
    }
  }

  const KernelOf& kernels_;
  std::vector<Forward> values_;
  Set given_ = 0;
  std::vector<Back> backward_;
};

class ExactPlannerTest : public testing::TestWithParam<uint32_t> {};

TEST_P(ExactPlannerTest, PlansAreWithinFivePercentOfTheOptimum) {
  Graph graph = std::move(RandomNet(GetParam()).graph);
  const Devices devices = Devices::host_alone();
  const KernelGraph kernel_graph = choose_kernels(graph, devices);
  const std::vector<int> device = assign_devices(graph, kernel_graph);
  const KernelOf kernels = kernels_of(graph, kernel_graph);
  const ViewOf views = views_of(graph, kernel_graph);
  MemoryPlanner planner(graph, {kernels, views, device, devices});
  const std::vector<MemoryPoint> found = planner.search();
  const Model model(graph, kernels, planner.can_recompute());
  ASSERT_LE(model.count(), 12U);

  double worst = 0;
  size_t least = std::numeric_limits<size_t>::max();
  for (const size_t percent : {20, 30, 40, 50, 60, 70, 80, 90}) {
    const Model::Best best = model.within(model.plain() * percent / 100);
    if (best.ms == std::numeric_limits<double>::infinity()) continue;
    const MemoryPoint optimum = planner.measure(best.again);
    least = std::min(least, optimum.bytes);
    if (optimum.bytes >= found.back().bytes)
      worst =
          std::max(worst, fastest_within(found, {.bytes = optimum.bytes}, 0).ms / optimum.ms - 1);
  }
  RecordProperty("gap", std::to_string(worst));
  EXPECT_LE(worst, 0.05);
  ASSERT_NE(least, std::numeric_limits<size_t>::max());
  const double more = static_cast<double>(found.back().bytes) / static_cast<double>(least) - 1;
  RecordProperty("least", std::to_string(more));
  EXPECT_LE(more, 0.05);
}

INSTANTIATE_TEST_SUITE_P(RandomNets, ExactPlannerTest, testing::Range(0U, 100U));

}  // namespace
}  // namespace steep
