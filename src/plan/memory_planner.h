// Plans within a limit of memory: which values of forward backward keeps, and which it computes
// again. Judged by placed plans, not by sums of bytes: a choice counts by what the arena takes once
// every buffer has its offset. Related work: Chen et al., Training Deep Nets with Sublinear Memory
// Cost, 2016; Jain et al., Checkmate, 2020; Zhao et al., Rockmate, 2023. Those bound a model of
// memory; here each variant is scheduled and placed.
#pragma once

#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "plan/layout.h"
#include "plan/memory_limit.h"
#include "plan/memory_point.h"
#include "plan/repeat.h"

namespace steep {

/// Milliseconds of a node by its floating point operations, or else by the bytes that it reads and
/// writes, at rates of a common server (100 GFLOP/s, 10 GB/s). For comparisons, not for clocks.
double modelled_ms(Node n, const Lowered* kernel);

/// Looks for plans between the fastest and the smallest. The search does not know the limit, so
/// that a greater limit never gives a slower plan. Greedy: it recomputes those values first that
/// free the most bytes at the peak per millisecond, a few at a time, and lays out each variant.
/// Then it removes and adds single choices of the best plans. REQUIRES: graph and `on` outlive it.
class MemoryPlanner {
 public:
  MemoryPlanner(const Graph& graph, LoweredPlan on);

  /// None of which is both slower and larger than another; the fastest and largest first. The first
  /// is the plan without choices or one that takes no longer.
  const std::vector<MemoryPoint>& search();

  /// What the graph costs when these run again. REQUIRES: all can_repeat().
  MemoryPoint measure(const Again& again) { return look(again).point; }
  /// Those of which a choice is made, without what nobody reads in backward.
  const std::vector<char>& can_repeat() const { return can_; }
  /// The plan of a choice; adds the kernels of repetitions to `kernels`.
  Plan plan(const Again& again, std::unordered_map<uint32_t, Lowered>& kernels) const;

 private:
  struct Life {
    int last_forward = -1;  ///< step that reads or writes it
    int first_backward = -1, last_backward = -1;
  };
  struct State {
    MemoryPoint point;
    size_t arena = 0;
    std::vector<Life> lives;       // by value id: of what views start from
    std::vector<int> hot;          // by step: how many before it are near the peak
    std::vector<int> repeated_at;  // by node id: the step that repeats it; -1: none
  };
  struct Move {
    Again nodes;
    double relief = 0, ms = 0;
    double score() const { return relief / (ms + 1e-4); }
  };

  /// Moves that are tried together.
  struct Batch {
    Again nodes, first;  ///< of all moves, of the first
    size_t count = 0;
  };

  /// The graph with repetitions, which have the kernels of what they repeat.
  struct Variant {
    Graph graph;
    KernelOf kernels;
    ViewOf views;
    Repetitions repetitions{};
  };

  Variant variant(const Again& again) const;
  State look(const Again& again);
  std::vector<Value> viewed_by(const Plan& plan, const std::vector<uint32_t>& repeats) const;
  void note_lives(const Plan& plan, const std::vector<uint32_t>& repeats, State& state) const;
  static void note_peak(const Plan& plan, State& state);
  void note(const MemoryPoint& point);
  Value root(Value v) const;
  bool chosen(const State& s, uint32_t node) const;
  double hot_between(const State& s, int from, int to) const;
  double relief_of(const State& s, Node n) const;
  double pulled_bytes(const State& s, const Again& nodes, int wanted) const;
  std::vector<Move> moves(const State& s, bool all) const;
  int first_backward(const State& s, Node n) const;
  void repeat_too(const State& s, Node n, Move& move, std::vector<Value>& kept) const;
  Node dearest(const State& s, const std::vector<Value>& kept, int wanted, double* cost) const;
  void grow(const State& s, Node n, bool all, std::vector<Move>& found) const;
  Again unneeded(const State& s) const;
  Batch choose(const State& now, double relief, const std::set<Again>& failed) const;
  void descend();
  void refine();
  void try_choice(const Again& again);

  const Graph& graph_;
  LoweredPlan on_;
  std::vector<Node> forward_;  // in order
  std::vector<char> can_;      // by node id
  std::vector<double> ms_;     // by node id
  size_t nodes_ = 0;
  int looks_left_ = 0;
  std::set<Again> seen_;
  std::set<Again> expanded_;
  std::vector<MemoryPoint> points_;
};

/// The first of search()'s points that the limit allows. Throws OutOfMemoryError with the least of
/// them where it allows none. `plain`: bytes of the plan without a limit.
const MemoryPoint& fastest_within(std::span<const MemoryPoint> points, const MemoryLimit& limit,
                                  size_t plain);

/// The fastest plan that was found within the limit: the one without choices, where that fits; else
/// with all that the search found.
/// Adds the kernels of repetitions to `kernels`. Throws OutOfMemoryError with the least that was
/// found when none fits.
Plan fit(const Graph& graph, const LoweredPlan& on, const MemoryLimit& limit,
         std::unordered_map<uint32_t, Lowered>& kernels);

/// As make_plan() of plan.h. If the plan exceeds the limit, backward computes values again; the
/// results have the same bits. Throws what fit() throws, too.
Plan make_plan(Graph graph, const Devices& devices, std::vector<Declined> in_parts,
               const MemoryLimit& limit);

}  // namespace steep
