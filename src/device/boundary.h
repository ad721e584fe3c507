// The engine's side of include/steep/provider.h: nodes as providers see them, and errors on their
// way through.
#pragma once

#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "device/kernel.h"

/// Every side of the boundary that throws makes one of these of what it caught.
struct SteepError {
  SteepErrorKind kind;
  std::string what, node, op, expected, received, remedy;
};

namespace steep {

/// Throws what the error stands for, and frees it.
[[noreturn]] void throw_error(SteepError* error);

/// What providers are given. Lives as long as the process.
const SteepHost& host_table();

/// A node as SteepHost's functions read it, for as long as it lives. Borrows the spec.
class NodeView {
 public:
  explicit NodeView(const NodeSpec& spec);
  ~NodeView();
  NodeView(const NodeView&) = delete;
  NodeView& operator=(const NodeView&) = delete;

  SteepNode* get() const { return node_.get(); }
  /// What SteepHost::new_output made, by output; undefined where nothing was made.
  std::vector<Tensor> take_outputs();

 private:
  std::unique_ptr<SteepNode> node_;
};

/// The types of a node's outputs as a provider's SteepOp::infer tells them. Throws what it reports;
/// ProviderError, naming the node and the provider, for what it does not tell or cannot be.
std::vector<Type> infer_by(SteepError* (*infer)(SteepNode*), const std::string& provider, Node n);

/// A graph as a provider reads it to fuse nodes, and what it claims.
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
