// Who reads the values of a graph.
#pragma once

#include <vector>

#include "ir/graph.h"

namespace steep {

/// Readers as they were when this was made; a value that is newer has none. Not for longer than the
/// graph lives.
class Readers {
 public:
  explicit Readers(const Graph& graph) : graph_(&graph), by_value_(graph.users()) {}

  /// A node that reads the value twice stands there twice. Outputs and updates are no nodes. None
  /// of a null value.
  const std::vector<Node>& of(Value v) const {
    static const std::vector<Node> kNone;
    return v && v.id() < by_value_.size() ? by_value_[v.id()] : kNone;
  }

  /// The one node that reads `v`, once, where no output or update is `v`; null otherwise.
  Node only(Value v) const {
    const std::vector<Node>& readers = of(v);
    return readers.size() == 1 && !graph_->is_output(v) ? readers[0] : Node();
  }

 private:
  const Graph* graph_;
  std::vector<std::vector<Node>> by_value_;
};

}  // namespace steep
