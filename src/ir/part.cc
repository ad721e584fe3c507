#include "ir/part.h"

namespace steep {

void Part::add(Node n, Phase phase) {
  std::vector<Value> inputs;
  for (int i = 0; i < n.input_count(); ++i) inputs.push_back(take(n.input(i)));
  const Graph::Scope scope(graph_, phase, "");
  const Node copy = graph_.add_node(n.op(), inputs, n.output_count(), n.attrs(), n.name());
  for (int i = 0; i < n.output_count(); ++i) {
    graph_.set_type(copy.output(i), n.output(i).type());
    copies_[n.output(i).id()] = copy.output(i).id();
  }
}

Value Part::take(Value v) {
  if (!v) return {};
  if (auto it = copies_.find(v.id()); it != copies_.end()) return {&graph_, it->second};
  Value copy;
  if (v.role() == Role::constant) {
    copy = graph_.add_constant(*v.tensor(), v.name());
  } else if (v.role() == Role::state) {
    copy = graph_.add_state(v.name(), v.type());
    graph_.rename(copy, v.name());  // the name identifies a state
  } else {
    const bool fed = v.role() == Role::input && !one_phase_;
    copy = graph_.add_input(v.name(), v.type(), fed ? from_.input_phase(v) : Phase::forward);
    sources_.push_back(v);
  }
  copies_[v.id()] = copy.id();
  return copy;
}

}  // namespace steep
