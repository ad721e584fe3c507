// Copies some nodes of a graph into a graph of their own.
#pragma once

#include <unordered_map>
#include <vector>

#include "ir/graph.h"

namespace steep {

class Part {
 public:
  /// `one_phase`: all inputs are forward inputs.
  explicit Part(const Graph& from, bool one_phase = false) : from_(from), one_phase_(one_phase) {}

  /// Copies a node with the types of its outputs. Producers must be copied before consumers.
  void add(Node n, Phase phase);
  /// The copy of `v`. A value whose producer was not copied becomes an input. Constants stay
  /// constants and states stay states (without their tensors). Null gives null.
  Value take(Value v);
  /// Uses `copy`, a value of graph(), wherever later nodes read `v`.
  void put(Value v, Value copy) { copies_[v.id()] = copy.id(); }

  Graph& graph() { return graph_; }
  /// For each input of graph(): the value of the original graph that it replaces.
  const std::vector<Value>& sources() const { return sources_; }

 private:
  const Graph& from_;
  bool one_phase_;
  Graph graph_;
  std::unordered_map<uint32_t, uint32_t> copies_;  // id in the original → id in graph()
  std::vector<Value> sources_;
};

}  // namespace steep
