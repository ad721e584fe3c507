#include "ir/compact.h"

#include <vector>

namespace steep {

Graph compacted(const Graph& graph) {
  Graph result;
  result.node_limit = graph.node_limit;
  std::vector<Value> copies(graph.value_count());
  const auto keep = [&](Value from, Value copy) {
    result.rename(copy, from.name());
    if (const Shape* contents = graph.contents(from)) result.set_contents(copy, *contents);
    copies[from.id()] = copy;
    return copy;
  };
  for (const Value v : graph.inputs())
    keep(v, result.add_input(v.name(), v.type(), graph.input_phase(v)));
  for (const Value v : graph.states()) {
    const Value copy = keep(v, result.add_state(v.name(), v.type()));
    if (v.tensor() != nullptr) result.set_tensor(copy, *v.tensor());
  }
  const auto copy_of = [&](Value v) {
    if (!v || copies[v.id()]) return v ? copies[v.id()] : v;
    return keep(v, result.add_constant(*v.tensor(), v.name()));
  };
  for (const Node n : graph.nodes()) {
    std::vector<Value> inputs;
    for (int i = 0; i < n.input_count(); ++i) inputs.push_back(copy_of(n.input(i)));
    const Graph::Scope scope(result, n.phase(), "");
    const Node copy = result.add_node(n.op(), inputs, n.output_count(), n.attrs(), n.name());
    for (int i = 0; i < n.output_count(); ++i) {
      if (!n.output(i)) continue;
      result.set_type(copy.output(i), n.output(i).type());
      keep(n.output(i), copy.output(i));
    }
  }
  for (const Output& o : graph.outputs()) {
    result.add_output(o.name, copy_of(o.value), o.phase);
    if (o.may_change) result.let_output_change(result.outputs().size() - 1);
  }
  for (const Update& u : graph.updates()) result.add_update(copies[u.state.id()], copy_of(u.value));
  return result;
}

}  // namespace steep
