// Finds plans within a memory limit: which values of forward are kept for backward, and which are
// computed again. A choice is judged by the size of the arena after every buffer has its offset,
// not by a sum of bytes. Related work: Chen et al., Training Deep Nets with Sublinear Memory Cost,
// 2016; Jain et al., Checkmate, 2020; Zhao et al., Rockmate, 2023. These bound a model of memory;
// here each variant is scheduled and placed.
#pragma once

#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "plan/layout.h"
#include "plan/lives.h"
#include "plan/memory_limit.h"
#include "plan/memory_point.h"
#include "plan/recompute.h"

namespace steep {

/// The estimated milliseconds of a node, from its floating point operations or, without these, from
/// the bytes that it reads and writes, at the rates of a common server (100 GFLOP/s, 10 GB/s). Use
/// it only to compare nodes.
double modelled_ms(Node n, const NodeKernel* kernel);

/// Searches for plans between the fastest and the smallest. The search does not know the limit, so
/// that a greater limit never gives a slower plan. It is greedy: it first gives up the values that
/// free the most bytes at the peak per millisecond, a few at a time, and lays out each variant. A
/// value may be given up between forward and backward or between two readers in backward, so a node
/// may run several times. In small graphs it also starts at the other end, where backward keeps
/// nothing. Then the search adds and removes single choices of the best variants.
/// REQUIRES: graph and `on` outlive it.
class MemoryPlanner {
 public:
  MemoryPlanner(const Graph& graph, LayoutInput on);

  /// Returns points of which none is both slower and larger than another, the fastest and largest
  /// first. The first is the plan without recomputed nodes, or one that is not slower.
  const std::vector<MemoryPoint>& search();

  /// The cost of the graph if these nodes run again. REQUIRES: all of them are in can_recompute().
  MemoryPoint measure(const RecomputedNodes& recomputed) { return look(recomputed).point; }
  /// By node id: whether the node can be recomputed, and backward reads a result of it.
  const std::vector<char>& can_recompute() const { return can_; }
  /// Lays out the plan in which these nodes run again. Adds the kernels of the copies to `kernels`.
  Plan plan(const RecomputedNodes& recomputed,
            std::unordered_map<uint32_t, NodeKernel>& kernels) const;

 private:
  struct State {
    MemoryPoint point;
    size_t arena = 0;
    Lives lives;
  };
  struct Move {
    RecomputedNodes nodes;
    double relief = 0, ms = 0;
    double score() const { return relief / (ms + 1e-4); }
  };
  /// What the copies of a move read at one step.
  struct Needs {
    double bytes = 0;  ///< near the peak, of values that are kept until that step
    double ms = 0;     ///< of further copies, which chosen nodes need there
    Node dearest;      ///< of the values that are kept: of the largest; null if none can be remade
  };

  /// Moves that are tried together, in one layout.
  struct Batch {
    RecomputedNodes nodes, first;  ///< of all moves; of the first move
    size_t count = 0;
  };

  /// The graph with copies of the recomputed nodes, which use the kernels of these nodes.
  struct Variant {
    Graph graph;
    KernelOf kernels;
    ViewOf views;
    Recomputations added{};
  };

  Variant variant(const RecomputedNodes& recomputed) const;
  State look(const RecomputedNodes& recomputed);
  void note(const MemoryPoint& point);
  Value root(Value v) const;
  double relief_of(const State& s, Node n, const Touch& use) const;
  std::vector<Touch> uses_of(const State& s, Node n) const;
  RecomputedNode entry_for(const State& s, Node n, const Touch& use) const;
  const Touch* pulled_copy(const State& s, Value x, const Touch& use, bool* is_new) const;
  Needs needs_of(const State& s, const RecomputedNodes& nodes, const Touch& use) const;
  std::vector<Move> moves(const State& s, bool all) const;
  void grow(const State& s, Node n, const Touch& use, bool all, std::vector<Move>& moves) const;
  RecomputedNodes unneeded(const State& s) const;
  Batch choose(const State& now, double relief, const std::set<RecomputedNodes>& rejects) const;
  void descend();
  RecomputedNodes everything(size_t most) const;
  void ascend();
  void keep_what_is_free(std::span<const RecomputedNode> order);
  std::vector<RecomputedNodes> additions(const State& s) const;
  void expand(const RecomputedNodes& recomputed, size_t width);
  void refine();
  void try_choice(const RecomputedNodes& recomputed);

  const Graph& graph_;
  LayoutInput on_;
  std::vector<Node> forward_;  // in order
  std::vector<char> can_;      // by node id
  std::vector<double> ms_;     // by node id
  size_t nodes_ = 0;
  int looks_left_ = 0;
  std::set<RecomputedNodes> choices_;
  std::vector<MemoryPoint> points_;
};

/// The first of search()'s points that the limit allows. Throws OutOfMemoryError, which names the
/// smallest point, if there is none. `plain`: bytes of the plan without a limit.
const MemoryPoint& fastest_within(std::span<const MemoryPoint> points, const MemoryLimit& limit,
                                  size_t plain);

/// The fastest plan within the limit: the one without recomputed nodes if it fits, else the best
/// that the search finds. Plan::found then has all points. Adds the kernels of copies to `kernels`.
/// Throws OutOfMemoryError, which names the smallest plan, if none fits.
Plan fit(const Graph& graph, const LayoutInput& on, const MemoryLimit& limit,
         std::unordered_map<uint32_t, NodeKernel>& kernels);

/// Like make_plan() of plan.h, but backward computes values again if the plan would exceed the
/// limit. The results have the same bits. Also throws the errors of fit().
Plan plan_within(Graph graph, const Devices& devices, std::vector<Declined> decomposed,
                 const MemoryLimit& limit);

}  // namespace steep
