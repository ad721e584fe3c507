// Graphs that cannot be planned as a whole, because a shape depends on data, or because of control
// flow or sequences. Such a graph is cut, as it runs, into the parts that can be planned and the
// nodes between them:
//
//   segment ─ dynamic nodes, which run on their own, on what is there
//           └ cut, one per signature of all that is there after these
//               ├ planned: every node whose shapes are known; specialised, run as any graph
//               └ next:    the segment of the others
//
// Cuts are cached as specialisations are.
#pragma once

#include <list>
#include <memory>
#include <unordered_map>
#include <vector>

#include "flow/dynamic.h"

namespace steep {

class Segment;

/// Between two steps of a segmented run: what is left to run, and the values of its inputs.
struct Progress {
  std::shared_ptr<Segment> segment;
  std::vector<Datum> inputs;
};

class Segment {
 public:
  /// `graph`'s inputs begin with its `fed_later` backward inputs. `tried`: nodes of `phase` whose
  /// inputs are all there have been found impossible to plan.
  Segment(const Graph& graph, Phase phase, size_t fed_later, bool tried);

  /// What is left of `graph`, a whole program, before anything has run.
  static std::shared_ptr<Segment> whole(const Graph& graph);

  /// Runs to the end of the phase, and returns its outputs in order. `at` is then where the next
  /// phase begins.
  static std::vector<Datum> run(Progress& at, const RunContext& context);

  const Graph& graph() const { return graph_; }
  /// Text of the parts known so far.
  std::string text() const;
  /// Their plans, in the order of text().
  std::vector<const Plan*> plans() const;
  /// Cuts below this segment.
  size_t size() const;
  void forget() { cuts_.clear(); }

 private:
  struct Cut;
  struct Source {
    bool made;  // by the cut's executable; else an input of remaining_
    size_t index;
  };

  bool finished() const;
  std::vector<int> count_readers() const;
  std::vector<Datum> run_dynamic_nodes(std::vector<Datum> inputs, const RunContext& context);
  std::shared_ptr<Cut> cut_for(std::span<const Datum> inputs, const RunContext& context);
  std::shared_ptr<Cut> make_cut(std::vector<Type> types, const RunContext& context) const;
  static std::vector<Datum> run_planned(const Cut& cut, std::span<const Datum> inputs,
                                        const RunContext& context);

  Graph graph_;
  Phase phase_;
  size_t fed_later_;
  std::vector<Node> dynamic_nodes_;                     // of graph_
  std::unordered_map<uint32_t, NodePlans> node_plans_;  // by node of dynamic_nodes_
  Graph remaining_;                                     // graph_ without them
  std::vector<uint32_t> remaining_inputs_;              // by input of remaining_: id in graph_
  std::list<std::shared_ptr<Cut>> cuts_;                // most recently used first
  std::shared_ptr<Segment> next_phase_;
};

}  // namespace steep
