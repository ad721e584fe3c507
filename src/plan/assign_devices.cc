#include "plan/assign_devices.h"

#include <map>
#include <tuple>

namespace steep {
namespace {

class DeviceAssigner {
 public:
  DeviceAssigner(Graph& graph, const KernelGraph& kernel_graph)
      : graph_(graph), kernel_graph_(kernel_graph), device_(graph.value_count(), 0) {}

  std::vector<int> run() {
    for (Node n : graph_.nodes()) visit(n);
    std::vector<Output> outputs = graph_.outputs();
    for (Output& o : outputs) o.value = on(o.value, 0, o.phase, o.value.producer());
    graph_.set_outputs(std::move(outputs));
    std::vector<Update> updates = graph_.updates();
    for (Update& u : updates) {
      const Node maker = u.value.producer();
      u.value = on(u.value, 0, maker ? maker.phase() : Phase::forward, maker);
    }
    graph_.set_updates(std::move(updates));
    return std::move(device_);
  }

 private:
  void visit(Node n) {
    const auto it = kernel_graph_.kernels.find(n.id());
    if (it == kernel_graph_.kernels.end()) {  // a view, on the device of its base
      for (int i = 0; i < n.output_count(); ++i) {
        if (n.output(i)) device_[n.output(i).id()] = device_[n.input(0).id()];
      }
      return;
    }
    const NodeKernel& choice = it->second;
    for (int i = 0; i < n.input_count(); ++i) {
      if (!n.input(i)) continue;
      const int to = choice.kernel->wants_on_host(i) ? 0 : choice.device;
      n.set_input(i, on(n.input(i), to, n.phase(), n));
    }
    for (int i = 0; i < n.output_count(); ++i) {
      if (n.output(i)) device_[n.output(i).id()] = choice.device;
    }
  }

  /// The value on device `to`, for a reader of a phase. A new copy is placed beside the node.
  Value on(Value v, int to, Phase phase, Node beside) {
    const int from = device_[v.id()];
    if (from == to) return v;
    if (from != 0 && to != 0) return on(on(v, 0, phase, beside), to, phase, beside);
    // A copy that forward makes serves backward, too, but not the reverse.
    for (const Phase candidate : {Phase::forward, phase}) {
      if (auto it = copies_.find({v.id(), to, candidate}); it != copies_.end()) return it->second;
    }
    const Graph::Scope scope(graph_, phase, "");
    const Node copy = graph_.add_node(std::string(kCopy), std::span(&v, 1), 1,
                                      {{"to", static_cast<int64_t>(to)}}, v.name() + "/copy");
    if (beside) graph_.place_like(copy, beside);
    const Value y = copy.output(0);
    graph_.set_type(y, v.type());
    device_.resize(graph_.value_count(), 0);
    device_[y.id()] = to;
    copies_.emplace(std::tuple(v.id(), to, phase), y);
    return y;
  }

  Graph& graph_;
  const KernelGraph& kernel_graph_;
  std::vector<int> device_;                                   // by value id
  std::map<std::tuple<uint32_t, int, Phase>, Value> copies_;  // by value, device, phase
};

}  // namespace

int destination(Node copy) { return static_cast<int>(copy.attrs().integer("to")); }

std::vector<int> assign_devices(Graph& graph, const KernelGraph& kernel_graph) {
  bool crosses = false;
  for (const auto& [id, kernel] : kernel_graph.kernels) crosses = crosses || kernel.device != 0;
  if (!crosses) return std::vector<int>(graph.value_count(), 0);
  return DeviceAssigner(graph, kernel_graph).run();
}

}  // namespace steep
