#include "ir/compact.h"

#include <utility>
#include <vector>

namespace steep {
namespace {

/// Copies the values and nodes of a graph, in order.
class Compaction {
 public:
  explicit Compaction(const Graph& from) : from_(from), copies_(from.value_count()) {
    result_.node_limit = from.node_limit;
  }

  Graph run() {
    for (const Value v : from_.inputs()) add_input(v);
    for (const Value v : from_.states()) {
      const Value copy = keep(v, result_.add_state(v.name(), v.type()));
      if (v.tensor() == nullptr) continue;
      result_.set_tensor(copy, *v.tensor());
    }
    for (const Node n : from_.nodes()) add_node(n);
    for (const auto& [like, stand_in] : awaited_) {
      if (copies_[like.id()]) result_.replace_uses(stand_in, copies_[like.id()]);
    }
    for (const Output& o : from_.outputs()) {
      result_.add_output(o.name, copy_of(o.value), o.phase);
      if (o.may_change) result_.let_output_change(result_.outputs().size() - 1);
    }
    for (const Update& u : from_.updates()) result_.add_update(copy_of(u.state), copy_of(u.value));
    return std::move(result_);
  }

 private:
  Value keep(Value v, Value copy) {
    if (copy.name() != v.name()) result_.rename(copy, v.name());
    if (const Shape* contents = from_.contents(v)) result_.set_contents(copy, *contents);
    return copies_[v.id()] = copy;
  }

  Value copy_of(Value v) {
    if (!v || copies_[v.id()]) return v ? copies_[v.id()] : v;
    return keep(v, result_.add_constant(*v.tensor(), v.name()));
  }

  /// The value whose gradient an input takes is not there yet: something stands in for it.
  void add_input(Value v) {
    const Value like = from_.gradient_of(v);
    if (!like) {
      keep(v, result_.add_input(v.name(), v.type(), from_.input_phase(v)));
      return;
    }
    const Value stand_in = result_.add_constant(Tensor::zeros(DType::f32, {0}), like.name());
    result_.set_type(stand_in, like.type());
    awaited_.emplace_back(like, stand_in);
    result_.set_type(keep(v, result_.add_gradient_input(v.name(), stand_in)), v.type());
  }

  void add_node(Node n) {
    std::vector<Value> inputs;
    for (int i = 0; i < n.input_count(); ++i) inputs.push_back(copy_of(n.input(i)));
    const Graph::Scope scope(result_, n.phase(), "");
    const Node copy = result_.add_node(n.op(), inputs, n.output_count(), n.attrs(), n.name());
    for (int i = 0; i < n.output_count(); ++i) {
      if (!n.output(i)) continue;
      result_.set_type(copy.output(i), n.output(i).type());
      keep(n.output(i), copy.output(i));
    }
  }

  const Graph& from_;
  Graph result_;
  std::vector<Value> copies_;  // by id
  std::vector<std::pair<Value, Value>>
      awaited_{};  // values of `from_`, and what stands in for them
};

}  // namespace

Graph compacted(const Graph& graph) { return Compaction(graph).run(); }

}  // namespace steep
