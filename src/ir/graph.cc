#include "ir/graph.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "runtime/budget.h"
#include "steep/error.h"

namespace steep {

// --- handles ------------------------------------------------------------------------------------

const std::string& Value::name() const { return graph_->values_[id_].name; }
const Type& Value::type() const { return graph_->values_[id_].type; }
Role Value::role() const { return graph_->values_[id_].role; }
int Value::output_index() const { return graph_->values_[id_].output_index; }

const Shape& Value::shape() const {
  const Type& t = type();
  if (!t.shape) {
    throw ModelError(
        {.what = "The rank of a value is not known.",
         .node = name(),
         .expected = "a value whose number of dimensions follows from the model",
         .remedy = "Give the model's inputs shapes (named dimensions will do) and export again."});
  }
  return *t.shape;
}

int64_t Value::rank() const { return static_cast<int64_t>(shape().size()); }

const Tensor* Value::tensor() const {
  const auto& data = graph_->values_[id_];
  return data.tensor.defined() ? &data.tensor : nullptr;
}

Node Value::producer() const {
  const int64_t p = graph_->values_[id_].producer;
  return p < 0 ? Node() : Node(graph_, static_cast<uint32_t>(p));
}

const std::string& Node::name() const { return graph_->nodes_[id_].name; }
const std::string& Node::op() const { return graph_->nodes_[id_].op; }
Phase Node::phase() const { return graph_->nodes_[id_].phase; }
const Attrs& Node::attrs() const { return graph_->nodes_[id_].attrs; }
Attrs& Node::mutable_attrs() const { return graph_->nodes_[id_].attrs; }
int Node::input_count() const { return static_cast<int>(graph_->nodes_[id_].inputs.size()); }
int Node::output_count() const { return static_cast<int>(graph_->nodes_[id_].outputs.size()); }

Value Node::input(int i) const {
  const auto& in = graph_->nodes_[id_].inputs;
  if (i < 0 || i >= static_cast<int>(in.size()) || in[i] == Graph::kAbsent) return {};
  return {graph_, in[i]};
}

Value Node::output(int i) const {
  const auto& out = graph_->nodes_[id_].outputs;
  if (i < 0 || i >= static_cast<int>(out.size()) || out[i] == Graph::kAbsent) return {};
  return {graph_, out[i]};
}

void Node::set_input(int i, Value v) const {
  graph_->nodes_[id_].inputs.at(static_cast<size_t>(i)) = v ? v.id() : Graph::kAbsent;
  if (v) graph_->values_[v.id()].readers.push_back({id_, static_cast<uint32_t>(i)});
}

// --- copying ------------------------------------------------------------------------------------

Graph::Graph(const Graph& other) { rebind(other); }

Graph::Graph(Graph&& other) { take(other); }  // NOLINT(*-noexcept-move-*): see the header

Graph& Graph::operator=(Graph other) {
  take(other);
  return *this;
}

void Graph::take(Graph& other) noexcept {
  values_.swap(other.values_);
  nodes_.swap(other.nodes_);
  names_.swap(other.names_);
  name_counts_.swap(other.name_counts_);
  node_limit = other.node_limit;
  auto mine = [this](Value v) { return Value(this, v.id()); };
  inputs_.swap(other.inputs_);
  states_.swap(other.states_);
  outputs_.swap(other.outputs_);
  updates_.swap(other.updates_);
  for (Value& v : inputs_) v = mine(v);
  for (Value& v : states_) v = mine(v);
  for (Output& o : outputs_) o.value = mine(o.value);
  for (Update& u : updates_) u = {mine(u.state), mine(u.value)};
  other.inputs_.clear();
  other.states_.clear();
  other.outputs_.clear();
  other.updates_.clear();
}

void Graph::rebind(const Graph& from) {
  values_ = from.values_;
  nodes_ = from.nodes_;
  names_ = from.names_;
  name_counts_ = from.name_counts_;
  node_limit = from.node_limit;
  auto mine = [this](Value v) { return Value(this, v.id()); };
  for (Value v : from.inputs_) inputs_.push_back(mine(v));
  for (Value v : from.states_) states_.push_back(mine(v));
  for (const Output& o : from.outputs_) {
    outputs_.push_back({o.name, mine(o.value), o.phase, o.may_change});
  }
  for (const Update& u : from.updates_) updates_.push_back({mine(u.state), mine(u.value)});
}

// --- building -----------------------------------------------------------------------------------

std::string Graph::unique_name(std::string wanted) {
  if (wanted.empty()) wanted = "v";
  int& count = name_counts_[wanted];
  if (count++ == 0) return wanted;
  std::string name;
  do {
    name = wanted + "." + std::to_string(name_counts_[wanted]++);
  } while (name_counts_.count(name) != 0);
  name_counts_[name] = 1;
  return name;
}

Value Graph::add_value(ValueData data) {
  data.name = unique_name(std::move(data.name));
  const auto id = static_cast<uint32_t>(values_.size());
  names_.emplace(data.name, id);
  values_.push_back(std::move(data));
  return {this, id};
}

Value Graph::add_input(std::string name, Type type, Phase phase) {
  Value v = add_value(
      {.name = std::move(name), .type = std::move(type), .role = Role::input, .phase = phase});
  inputs_.push_back(v);
  return v;
}

Value Graph::add_gradient_input(std::string name, Value like) {
  Value v = add_input(std::move(name), like.type(), Phase::backward);
  values_[v.id()].gradient_of = like.id();
  values_[like.id()].gradients.push_back(v.id());
  return v;
}

Value Graph::add_constant(Tensor tensor, std::string name) {
  Type type{tensor.dtype(), to_shape(tensor.dims())};
  if (name.empty()) name = "const";
  return add_value({.name = std::move(name),
                    .type = std::move(type),
                    .role = Role::constant,
                    .tensor = std::move(tensor)});
}

Value Graph::add_state(std::string name, Type type) {
  Value v = add_value({.name = std::move(name), .type = std::move(type), .role = Role::state});
  states_.push_back(v);
  return v;
}

Node Graph::add_node(std::string op, std::span<const Value> inputs, int output_count, Attrs attrs,
                     std::string name) {
  poll();
  if (nodes_.size() >= node_limit) {
    throw ModelError(
        {.what = "The graph has too many nodes.",
         .expected = "at most " + std::to_string(node_limit),
         .remedy = "If this size is intended, raise the limit of nodes (Limits::max_nodes)."});
  }
  NodeData data;
  data.op = std::move(op);
  data.attrs = std::move(attrs);
  data.phase = phase_;
  const std::string_view plain =
      data.op.starts_with("steep.") ? std::string_view(data.op).substr(6) : data.op;
  if (name.empty())
    name = origin_.empty() ? std::string(plain) : origin_ + "/" + std::string(plain);
  data.name = std::move(name);
  const auto id = static_cast<uint32_t>(nodes_.size());
  for (Value v : inputs) {
    if (v) values_[v.id()].readers.push_back({id, static_cast<uint32_t>(data.inputs.size())});
    data.inputs.push_back(v ? v.id() : kAbsent);
  }
  for (int i = 0; i < output_count; ++i) {
    Value v = add_value({.name = data.name, .phase = phase_, .producer = id, .output_index = i});
    data.outputs.push_back(v.id());
  }
  data.position = id;
  nodes_.push_back(std::move(data));
  return {this, id};
}

void Graph::add_output(std::string name, Value value, Phase phase) {
  values_[value.id()].outputs.push_back(static_cast<uint32_t>(outputs_.size()));
  outputs_.push_back({std::move(name), value, phase});
}

void Graph::add_update(Value state, Value value) {
  values_[value.id()].updates.push_back(static_cast<uint32_t>(updates_.size()));
  updates_.push_back({state, value});
}

void Graph::set_outputs(std::vector<Output> outputs) {
  outputs_.clear();
  for (Output& o : outputs) {
    add_output(std::move(o.name), o.value, o.phase);
    outputs_.back().may_change = o.may_change;
  }
}

void Graph::set_updates(std::vector<Update> updates) {
  updates_ = std::move(updates);
  for (uint32_t i = 0; i < updates_.size(); ++i) {
    values_[updates_[i].value.id()].updates.push_back(i);
  }
}

// --- reading ------------------------------------------------------------------------------------

Phase Graph::input_phase(Value input) const { return values_[input.id()].phase; }

Value Graph::gradient_of(Value input) const {
  const int64_t like = values_[input.id()].gradient_of;
  return like < 0 ? Value() : value(static_cast<uint32_t>(like));
}

size_t Graph::node_count() const {
  return static_cast<size_t>(
      std::count_if(nodes_.begin(), nodes_.end(), [](const NodeData& n) { return !n.erased; }));
}

Value Graph::find(std::string_view name) const {
  auto it = names_.find(std::string(name));
  return it == names_.end() ? Value() : value(it->second);
}

std::vector<Node> Graph::nodes() const {
  // Kahn's algorithm with the lowest (phase, position) first, so that the order is the order of
  // insertion wherever dependencies allow it.
  auto* self = const_cast<Graph*>(this);
  std::vector<int> missing(nodes_.size(), 0);
  std::vector<std::vector<uint32_t>> dependents(nodes_.size());
  auto later = [this](uint32_t a, uint32_t b) {
    return std::tuple(nodes_[a].phase, nodes_[a].position, a) >
           std::tuple(nodes_[b].phase, nodes_[b].position, b);
  };
  std::vector<uint32_t> ready;
  for (uint32_t n = 0; n < nodes_.size(); ++n) {
    if (nodes_[n].erased) continue;
    for (uint32_t in : nodes_[n].inputs) {
      if (in == kAbsent || values_[in].producer < 0) continue;
      dependents[static_cast<size_t>(values_[in].producer)].push_back(n);
      ++missing[n];
    }
    if (missing[n] == 0) ready.push_back(n);
  }
  std::make_heap(ready.begin(), ready.end(), later);
  std::vector<Node> order;
  order.reserve(nodes_.size());
  while (!ready.empty()) {
    std::pop_heap(ready.begin(), ready.end(), later);
    const uint32_t n = ready.back();
    ready.pop_back();
    order.emplace_back(self, n);
    for (uint32_t d : dependents[n]) {
      if (--missing[d] == 0) {
        ready.push_back(d);
        std::push_heap(ready.begin(), ready.end(), later);
      }
    }
  }
  for (uint32_t n = 0; n < nodes_.size(); ++n) {
    if (!nodes_[n].erased && missing[n] > 0) {
      throw ModelError({.what = "The graph has a cycle.",
                        .node = nodes_[n].name,
                        .op = nodes_[n].op,
                        .remedy = "Export the model again; an ONNX graph must be acyclic."});
    }
  }
  return order;
}

std::vector<std::vector<Node>> Graph::users() const {
  std::vector<std::vector<Node>> users(values_.size());
  for (Node n : nodes()) {
    for (uint32_t in : nodes_[n.id()].inputs) {
      if (in != kAbsent) users[in].push_back(n);
    }
  }
  return users;
}

// --- rewriting ----------------------------------------------------------------------------------

void Graph::replace_uses(Value from, Value to) {
  if (from == to) return;
  ValueData &old = values_[from.id()], &now = values_[to.id()];
  for (const Reader& r : std::exchange(old.readers, {})) {
    uint32_t& input = nodes_[r.node].inputs[r.input];
    if (nodes_[r.node].erased || input != from.id()) continue;
    input = to.id();
    now.readers.push_back(r);
  }
  auto redirect = [&](auto& list, std::vector<uint32_t> ValueData::*ends) {
    for (uint32_t i : std::exchange(old.*ends, {})) {
      if (i >= list.size() || list[i].value != from) continue;
      list[i].value = to;
      (now.*ends).push_back(i);
    }
  };
  redirect(outputs_, &ValueData::outputs);
  redirect(updates_, &ValueData::updates);
  for (uint32_t input : std::exchange(old.gradients, {})) {
    values_[input].gradient_of = to.id();
    now.gradients.push_back(input);
  }
}

bool Graph::is_output(Value v) const {
  auto in = [&](const auto& list, const std::vector<uint32_t>& ends) {
    return std::any_of(ends.begin(), ends.end(),
                       [&](uint32_t i) { return i < list.size() && list[i].value == v; });
  };
  const ValueData& data = values_[v.id()];
  return in(outputs_, data.outputs) || in(updates_, data.updates);
}

void Graph::remove_input(Value input) { std::erase(inputs_, input); }

void Graph::place_like(Node node, Node other) {
  nodes_[node.id()].position = nodes_[other.id()].position;
}

void Graph::erase(Node node) { nodes_[node.id()].erased = true; }

size_t Graph::prune() {
  std::vector<char> live(nodes_.size(), 0);
  std::vector<uint32_t> stack;
  auto visit = [&](uint32_t value) {
    const int64_t p = values_[value].producer;
    if (p >= 0 && !live[static_cast<size_t>(p)]) {
      live[static_cast<size_t>(p)] = 1;
      stack.push_back(static_cast<uint32_t>(p));
    }
  };
  for (const Output& o : outputs_) visit(o.value.id());
  for (const Update& u : updates_) visit(u.value.id());
  while (!stack.empty()) {
    const uint32_t n = stack.back();
    stack.pop_back();
    for (uint32_t in : nodes_[n].inputs) {
      if (in != kAbsent) visit(in);
    }
  }
  size_t erased = 0;
  for (size_t n = 0; n < nodes_.size(); ++n) {
    if (!nodes_[n].erased && !live[n]) {
      nodes_[n].erased = true;
      ++erased;
    }
  }
  return erased;
}

void Graph::set_type(Value value, Type type) { values_[value.id()].type = std::move(type); }

void Graph::rename(Value value, std::string name) {
  ValueData& data = values_[value.id()];
  if (auto it = names_.find(data.name); it != names_.end() && it->second == value.id())
    names_.erase(it);
  data.name = std::move(name);
  names_[data.name] = value.id();
  name_counts_[data.name] += 1;
}

void Graph::set_tensor(Value value, Tensor tensor) {
  ValueData& data = values_[value.id()];
  data.type = {tensor.dtype(), to_shape(tensor.dims())};
  data.tensor = std::move(tensor);
}

void Graph::make_state(Value value) {
  ValueData& data = values_[value.id()];
  if (data.role == Role::state) return;
  if (data.role == Role::temp) {
    throw InternalError({.what = "A computed value cannot become a state.", .node = data.name});
  }
  if (data.role == Role::input) std::erase(inputs_, value);
  data.role = Role::state;
  states_.push_back(value);
}

void Graph::set_contents(Value value, Shape contents) {
  values_[value.id()].contents = std::move(contents);
}

const Shape* Graph::contents(Value value) const {
  const auto& c = values_[value.id()].contents;
  return c ? &*c : nullptr;
}

Graph::Scope::Scope(Graph& graph, Phase phase, std::string origin)
    : graph_(graph), phase_(graph.phase_), origin_(std::move(graph.origin_)) {
  graph.phase_ = phase;
  graph.origin_ = std::move(origin);
}

Graph::Scope::~Scope() {
  graph_.phase_ = phase_;
  graph_.origin_ = std::move(origin_);
}

}  // namespace steep
