// Runs graphs that cannot be planned as a whole: a shape depends on data, or the graph has control
// flow or sequences. While such a graph runs, it is cut into parts that can be planned and the
// nodes between them:
//
//   segment ─ dynamic nodes, which run one by one
//           └ cut, one for each set of types of the values that are known then
//               ├ planned: all nodes whose shapes are known; specialised, and run as any graph
//               └ next:    the segment of the other nodes
//
// Cuts are cached like specialisations.
#pragma once

#include <list>
#include <memory>
#include <unordered_map>
#include <vector>

#include "flow/dynamic.h"

namespace steep {

class Segment;

/// The position of a run between two segments: the remaining graph, and the values of its inputs.
struct SegmentPosition {
  std::shared_ptr<Segment> segment;
  std::vector<Datum> inputs;
};

class Segment {
 public:
  /// The inputs of `graph` begin with its `fed_later` backward inputs. `tried`: nodes of `phase`
  /// with known operands have been tried, and cannot be planned.
  Segment(const Graph& graph, Phase phase, size_t fed_later, bool tried);

  /// The segment of a whole graph, before anything has run.
  static std::shared_ptr<Segment> whole(const Graph& graph);

  /// Runs to the end of the phase, and returns its outputs in order. Sets `at` to the beginning of
  /// the next phase.
  static std::vector<Datum> run(SegmentPosition& at, const RunContext& context);

  const Graph& graph() const { return graph_; }
  /// Text of the parts that are known so far.
  std::string text() const;
  /// The plans of these parts, in the order of text().
  std::vector<const Plan*> plans() const;
  /// The number of cuts in this segment and in those after it.
  size_t size() const;
  void forget() { cuts_.clear(); }

 private:
  struct Cut;
  struct Source {
    bool made;  // the cut's executable computes it; else it is an input of remaining_
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
  Graph remaining_;                                     // graph_ without dynamic_nodes_
  std::vector<uint32_t> remaining_inputs_;              // by its input: value id in graph_
  std::list<std::shared_ptr<Cut>> cuts_;                // most recently used first
  std::shared_ptr<Segment> next_phase_;
};

}  // namespace steep
