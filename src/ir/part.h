// Some nodes of a graph as a graph of their own.
#pragma once

#include <unordered_map>
#include <vector>

#include "ir/graph.h"

namespace steep {

class Part {
 public:
  /// `one_phase`: all inputs are forward inputs.
  explicit Part(const Graph& from, bool one_phase = false) : from_(from), one_phase_(one_phase) {}

  /// Copies a node; producers must come first. Types come along.
  void add(Node n, Phase phase);
  /// The copy of `v`. A value that no copied node computes becomes an input. Constants and states
  /// stay so (a state without its tensor). Null gives null.
  Value take(Value v);
  /// `copy`, of graph(), stands for `v` from now on.
  void put(Value v, Value copy) { copies_[v.id()] = copy.id(); }

  Graph& graph() { return graph_; }
  /// By input of graph(): the value of the original for which it stands.
  const std::vector<Value>& sources() const { return sources_; }

 private:
  const Graph& from_;
  bool one_phase_;
  Graph graph_;
  std::unordered_map<uint32_t, uint32_t> copies_;  // id there → id here
  std::vector<Value> sources_;
};

}  // namespace steep
