// The engine's side of include/steep/provider.h: nodes as providers see them, and errors that cross
// the interface.
#pragma once

#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "device/kernel.h"

/// An error in the form that crosses the interface; made from a caught exception.
struct SteepError {
  SteepErrorKind kind;
  std::string what, node, op, expected, received, remedy;
};

namespace steep {

/// Throws the exception that the error stands for, and frees the error.
[[noreturn]] void throw_error(SteepError* error);

/// The table of the engine's functions for providers. Lives as long as the process.
const SteepHost& host_table();

/// A node for SteepHost's functions. Valid as long as this object. Borrows the spec.
class NodeView {
 public:
  explicit NodeView(const NodeSpec& spec);
  ~NodeView();
  NodeView(const NodeView&) = delete;
  NodeView& operator=(const NodeView&) = delete;

  SteepNode* get() const { return node_.get(); }
  /// The outputs that SteepHost::new_output has made; undefined for others.
  std::vector<Tensor> take_outputs();

 private:
  std::unique_ptr<SteepNode> node_;
};

/// The types of a node's outputs, as a provider's SteepOp::infer sets them. Throws the errors that
/// it reports, and ProviderError, which names the node and the provider, for types that are missing
/// or not valid.
std::vector<Type> infer_by(SteepError* (*infer)(SteepNode*), const std::string& provider, Node n);

/// A graph that a provider reads in order to fuse nodes, and the nodes that it claims.
class GraphView {
 public:
  explicit GraphView(Graph& graph);
  ~GraphView();
  GraphView(const GraphView&) = delete;
  GraphView& operator=(const GraphView&) = delete;

  struct Claim {
    std::vector<Node> nodes;
    std::string name;
  };
  SteepGraph* get() const { return graph_.get(); }
  const std::vector<Claim>& claims() const;

 private:
  std::unique_ptr<SteepGraph> graph_;
};

}  // namespace steep
