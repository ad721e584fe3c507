// Fuses chains of elementwise nodes into one steep.Fused node. It reads the data once, in blocks
// that stay in the first-level cache, instead of once per operator.
//
// A group grows from its last node, the root, towards producers. A producer joins if one of its
// readers is in the group and all other readers run after the root. Then the group's node can run
// at the root's place, and no cycle between groups is possible.

#include <algorithm>
#include <set>
#include <unordered_map>

#include "ops/build.h"
#include "ops/op_def.h"
#include "passes/pipeline.h"

namespace steep {
namespace {

constexpr size_t kMaxNodes = 48;
constexpr size_t kMaxInputs = 16;
constexpr size_t kMaxOutputs = 8;

bool is_scalar_constant(Value v) { return v.role() == Role::constant && v.tensor()->size() == 1; }

bool is_narrow(DType t) { return t == DType::bf16 || t == DType::f16; }

/// A cast between f32 and a 16-bit float. It is free at the border of a group, because loads and
/// stores convert.
bool crosses_border(const Match& m) {
  const DType from = m["x"].dtype(), to = m["y"].dtype();
  return (from == DType::f32 && is_narrow(to)) || (is_narrow(from) && to == DType::f32);
}

constexpr PatternRule<> kBorderCasts[] = {
    {.name = "fuse_elementwise/border_cast",
     .reason = "Loads and stores of a fused node convert 16-bit floats at no cost.",
     .pattern = "y: Cast(x)",
     .then = crosses_border}};

bool is_border_cast(Node n) { return apply_rules(kBorderCasts, n, Match()) != nullptr; }

/// Whether the node is elementwise, in one float type (f32 or f64), bool or both. The seed of a
/// random op is not read by element.
bool can_fuse(Node n) {
  const OpDef* def = find_op(n.op());
  if (def == nullptr || !def->elementwise || n.output_count() != 1) return false;
  if (is_border_cast(n)) return true;
  DType real = DType::undefined;
  auto fits = [&real](Value v) {
    if (v.dtype() == DType::boolean) return true;
    if (v.dtype() != DType::f32 && v.dtype() != DType::f64) return false;
    if (real == DType::undefined) real = v.dtype();
    return real == v.dtype();
  };
  if (!fits(n.output(0))) return false;
  for (int i = 0; i < n.input_count(); ++i) {
    if (n.input(i) && i != def->seed && !fits(n.input(i))) return false;
  }
  return true;
}

class Fuser {
 public:
  explicit Fuser(Graph& g) : g_(g), order_(g.nodes()), users_(g.users()) {
    for (size_t i = 0; i < order_.size(); ++i) position_[order_[i].id()] = i;
    kept_.assign(g.value_count(), 0);
    for (const Output& o : g.outputs()) kept_[o.value.id()] = 1;
    for (const Update& u : g.updates()) kept_[u.value.id()] = 1;
  }

  void run() {
    for (size_t i = order_.size(); i-- > 0;) {
      Node root = order_[i];
      if (group_of_.count(root.id()) != 0 || !can_fuse(root)) continue;
      grow(root);
    }
    for (const auto& group : groups_) {
      if (group.size() > 1) emit(group);
    }
  }

 private:
  void grow(Node root) {
    const size_t id = groups_.size();
    groups_.push_back({root});
    DType type = float_type(root);  // of the group; undefined while all are bool
    group_of_[root.id()] = id;
    // Latest first, so that all readers of a producer are visited before the producer.
    std::set<size_t> frontier;  // positions
    auto look_at_producers = [&](Node n) {
      for (int i = 0; i < n.input_count(); ++i) {
        if (n.input(i) && n.input(i).producer())
          frontier.insert(position_[n.input(i).producer().id()]);
      }
    };
    look_at_producers(root);
    while (!frontier.empty()) {
      Node n = order_[*frontier.rbegin()];
      frontier.erase(std::prev(frontier.end()));
      if (group_of_.count(n.id()) != 0 || !joins(n, root, id, type)) continue;
      groups_[id].push_back(n);
      group_of_[n.id()] = id;
      if (inputs_of(groups_[id]).size() > kMaxInputs || count_outputs(groups_[id]) > kMaxOutputs) {
        groups_[id].pop_back();
        group_of_.erase(n.id());
        continue;
      }
      if (type == DType::undefined) type = float_type(n);
      if (groups_[id].size() >= kMaxNodes) break;
      look_at_producers(n);
    }
    if (groups_[id].size() == 1) group_of_.erase(root.id());
  }

  bool joins(Node n, Node root, size_t id, DType type) {
    if (n.phase() != root.phase() || !can_fuse(n)) return false;
    // Inside of a group a narrow value would have to be rounded.
    if (is_narrow(n.output(0).dtype())) return false;
    Value y = n.output(0);
    if (!provably_equal(y.shape(), root.output(0).shape())) return false;
    const DType own = float_type(n);
    if (own != type && own != DType::undefined && type != DType::undefined) return false;
    for (Node user : users_[y.id()]) {  // in the order of the graph
      auto it = group_of_.find(user.id());
      const bool inside = it != group_of_.end() && it->second == id;
      if (!inside) return position_[user.id()] > position_[root.id()];
    }
    return true;
  }

  /// Undefined if the node has bool only.
  static DType float_type(Node n) {
    if (is_border_cast(n)) return DType::f32;
    if (n.output(0).dtype() != DType::boolean) return n.output(0).dtype();
    for (int i = 0; i < n.input_count(); ++i) {
      if (n.input(i) && is_float(n.input(i).dtype())) return n.input(i).dtype();
    }
    return DType::undefined;
  }

  bool inside(const std::vector<Node>& group, Node n) const {
    return n && std::find(group.begin(), group.end(), n) != group.end();
  }

  bool is_output(const std::vector<Node>& group, Value y) const {
    if (kept_[y.id()]) return true;
    for (Node user : users_[y.id()]) {
      if (!inside(group, user)) return true;
    }
    return false;
  }

  size_t count_outputs(const std::vector<Node>& group) const {
    return static_cast<size_t>(std::count_if(
        group.begin(), group.end(), [&](Node n) { return is_output(group, n.output(0)); }));
  }

  /// The inputs of a group; stops at kMaxInputs + 1.
  std::vector<Value> inputs_of(const std::vector<Node>& group) const {
    std::vector<Value> inputs;
    for (Node n : group) {
      for (int i = 0; i < n.input_count(); ++i) {
        Value x = n.input(i);
        if (!x || inside(group, x.producer()) || is_scalar_constant(x)) continue;
        if (std::find(inputs.begin(), inputs.end(), x) == inputs.end()) inputs.push_back(x);
        if (inputs.size() > kMaxInputs) return inputs;
      }
    }
    return inputs;
  }

  void emit(std::vector<Node> group) {
    Node root = group.front();
    std::sort(group.begin(), group.end(),
              [&](Node a, Node b) { return position_[a.id()] < position_[b.id()]; });
    const std::vector<Value> inputs = inputs_of(group);
    auto body = std::make_shared<Graph>();
    std::unordered_map<uint32_t, Value> inner;
    for (Value x : inputs) inner[x.id()] = body->add_input(x.name(), x.type());
    std::vector<Value> outputs;
    for (Node n : group) {
      std::vector<Value> operands;
      for (int i = 0; i < n.input_count(); ++i) {
        Value x = n.input(i);
        if (x && inner.count(x.id()) == 0)
          inner[x.id()] = body->add_constant(*x.tensor(), x.name());
        operands.push_back(x ? inner[x.id()] : Value());
      }
      Node copy = body->add_node(n.op(), operands, 1, n.attrs(), n.name());
      body->set_type(copy.output(0), n.output(0).type());
      inner[n.output(0).id()] = copy.output(0);
      if (is_output(group, n.output(0))) {
        body->add_output(n.output(0).name(), copy.output(0));
        outputs.push_back(n.output(0));
      }
    }
    Graph::Scope scope(g_, root.phase(), root.name());
    const auto results =
        apply_n("steep.Fused", inputs, static_cast<int>(outputs.size()), {{"body", Body(body)}});
    g_.place_like(results[0].producer(), root);
    for (size_t i = 0; i < outputs.size(); ++i) g_.replace_uses(outputs[i], results[i]);
    for (Node n : group) g_.erase(n);
  }

  Graph& g_;
  std::vector<Node> order_;
  std::vector<std::vector<Node>> users_;
  std::unordered_map<uint32_t, size_t> position_;  // by node id
  std::unordered_map<uint32_t, size_t> group_of_;  // by node id
  std::vector<std::vector<Node>> groups_;          // each begins with its root
  std::vector<char> kept_;                         // by value id: an output or an update
};

}  // namespace

void fuse_elementwise(Graph& g) { Fuser(g).run(); }

std::vector<PatternRuleInfo> fuse_elementwise_patterns() { return list_rules(kBorderCasts); }

}  // namespace steep
