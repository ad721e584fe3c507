// The readers of each value of a graph.
#pragma once

#include <vector>

#include "ir/graph.h"

namespace steep {

/// The readers at the time of construction; values added later have none. Must not outlive the
/// graph.
class Readers {
 public:
  explicit Readers(const Graph& graph) : graph_(&graph), by_value_(graph.users()) {}

  /// The nodes that read `v`; a node that reads it twice appears twice. Outputs and updates are not
  /// nodes. Empty for a null value.
  const std::vector<Node>& of(Value v) const {
    static const std::vector<Node> kNone;
    return v && v.id() < by_value_.size() ? by_value_[v.id()] : kNone;
  }

  /// The only node that reads `v`, when it reads `v` once and `v` is no output or update; null
  /// otherwise.
  Node only(Value v) const {
    const std::vector<Node>& readers = of(v);
    return readers.size() == 1 && !graph_->is_output(v) ? readers[0] : Node();
  }

 private:
  const Graph* graph_;
  std::vector<std::vector<Node>> by_value_;
};

}  // namespace steep
