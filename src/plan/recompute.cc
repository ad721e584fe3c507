#include "plan/recompute.h"

#include <algorithm>
#include <unordered_map>

#include "ir/recompute.h"
#include "plan/assign_devices.h"

namespace steep {
namespace {

class NodeRecomputer {
 public:
  NodeRecomputer(Graph& g, const KernelOf& kernels, const std::vector<char>& chosen)
      : g_(g), kernels_(kernels), chosen_(chosen) {}

  Recomputations run() {
    for (Node n : g_.nodes()) {
      if (n.phase() != Phase::backward) continue;
      for (int i = 0; i < n.input_count(); ++i) {
        const Value x = n.input(i);
        if (x && is_recomputed(x)) n.set_input(i, recompute(x, n));
      }
    }
    g_.prune();
    Recomputations live;
    for (Node n : g_.nodes()) {
      if (const auto it = recomputes_.find(n.id()); it != recomputes_.end())
        live.emplace_back(n.id(), it->second);
    }
    return live;
  }

 private:
  bool is_view(Node n) const {
    return n.id() < kernels_.size() && kernels_[n.id()] == nullptr && n.op() != kCopy;
  }

  bool is_recomputed(Value x) const {
    Node p = x.producer();
    while (p && is_view(p) && p.phase() == Phase::forward) p = p.input(0).producer();
    return p && p.id() < chosen_.size() && p.phase() == Phase::forward && chosen_[p.id()];
  }

  Value recompute(Value x, Node reader) {
    const auto recomputed = [&](Value v) { return is_recomputed(v); };
    return recompute_value(x, copies_, recomputed, [&](Value y) {
      const Node p = y.producer();
      const Graph::Scope scope(g_, Phase::backward, p.name() + "/again");
      const Node n = g_.add_node(p.op(), recomputed_inputs(p, copies_, recomputed),
                                 p.output_count(), p.attrs());
      g_.place_like(n, reader);
      for (int o = 0; o < p.output_count(); ++o) {
        if (!p.output(o)) continue;
        g_.set_type(n.output(o), p.output(o).type());
        copies_[p.output(o).id()] = n.output(o);
      }
      recomputes_[n.id()] = p.id();
    });
  }

  Graph& g_;
  const KernelOf& kernels_;
  const std::vector<char>& chosen_;
  RecomputedValues copies_;
  std::unordered_map<uint32_t, uint32_t> recomputes_;  // by node id: the node of forward
};

}  // namespace

Recomputations recompute_nodes(Graph& graph, const KernelOf& kernels,
                               const std::vector<char>& chosen) {
  return NodeRecomputer(graph, kernels, chosen).run();
}

std::vector<char> can_recompute(const Graph& graph, const KernelOf& kernels) {
  std::vector<char> overwritten(graph.value_count(), 0), can(graph.node_slots(), 0);
  for (const Update& u : graph.updates()) {
    const Node writer = u.value.producer();
    overwritten[u.value.id()] = 1;
    if (!writer || writer.phase() == Phase::forward) overwritten[u.state.id()] = 1;
  }
  for (Node n : graph.nodes()) {
    const NodeKernel* kernel = kernels[n.id()];
    bool may = n.phase() == Phase::forward && kernel != nullptr && kernel->device == 0;
    for (int i = 0; i < n.input_count(); ++i) {
      Value x = n.input(i);
      while (x && x.producer() && kernels[x.producer().id()] == nullptr &&
             x.producer().op() != kCopy)
        x = x.producer().input(0);
      may = may && !(x && overwritten[x.id()]);
    }
    for (int o = 0; o < n.output_count(); ++o)
      may = may && !(n.output(o) && overwritten[n.output(o).id()]);
    can[n.id()] = may ? 1 : 0;
  }
  return can;
}

}  // namespace steep
