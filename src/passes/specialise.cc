#include "passes/specialise.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "device/kernel.h"
#include "ops/build.h"
#include "ops/offered.h"
#include "ops/op_def.h"
#include "ops/pattern.h"
#include "ops/shape_arithmetic.h"
#include "ops/wide.h"
#include "runtime/budget.h"
#include "steep/error.h"

namespace steep {
namespace {

// Larger results are computed at run time, in memory that the planner reuses.
constexpr int64_t kMaxFoldedElements = int64_t{1} << 20;

void check_input(Value input, const Type& type, std::map<std::string, int64_t>& symbols) {
  const Type& target = input.type();
  auto fail = [&](const char* what) {
    throw ShapeError(
        {.what = what,
         .node = input.name(),
         .expected = to_string(target),
         .received = to_string(type),
         .remedy = "Feed the input with the dtype and shape that the model declares."});
  };
  if (type.dtype != target.dtype) fail("An input has the wrong dtype.");
  if (!target.shape) return;
  if (target.shape->size() != type.shape->size())
    fail("An input has the wrong number of dimensions.");
  for (size_t i = 0; i < target.shape->size(); ++i) {
    const Dim& w = (*target.shape)[i];
    const int64_t g = (*type.shape)[i].value();
    if (w.known() && w.value() != g) fail("An input has the wrong shape.");
    if (w.known() || w.symbol().empty()) continue;
    auto [it, first] = symbols.try_emplace(w.symbol(), g);
    if (!first && it->second != g) {
      throw ShapeError(
          {.what = "Two inputs disagree on a named dimension.",
           .node = input.name(),
           .expected = fmt::format("{} = {}, as another input has it", w.symbol(), it->second),
           .received = fmt::format("{} = {}", w.symbol(), g)});
    }
  }
}

/// The value that the node only passes on; null if it computes something. REQUIRES: types inferred.
Value repeated(Node n, const OpDef* def) {
  const bool may = def != nullptr && def->simplify != nullptr && n.input(0) && n.output(0);
  return may ? def->simplify(n) : Value();
}

/// The result of Shape and Size as soon as extents are known, also if the operand's values are not.
std::optional<Tensor> extents_of(Node n, const OpDef* def) {
  const bool alone = def != nullptr && def->dataless && def->elements != nullptr;
  return alone ? known_result(n) : std::nullopt;
}

bool lacks_values(Node n, const OpDef& def) {
  if (def.reads_from < 0) return false;
  for (int i = def.reads_from; i < n.input_count(); ++i) {
    if (n.input(i) && constant(n.input(i)) == nullptr) return true;
  }
  return false;
}

constexpr Pattern kBranch("If(condition, ...)");

/// Rewrites one graph. A node that cannot be planned yet is deferred for this call, and so are all
/// nodes that read its results.
class Specialiser {
 public:
  Specialiser(Graph& g, const Devices& devices) : g_(g), devices_(devices), host_(devices.host()) {}

  /// Marks a value as unknown: an input without a concrete type, or the result of a deferred node.
  void withhold(Value v) { make_room(v), withheld_[v.id()] = 1; }

  void visit(Node n) {
    poll();
    try {
      at_node(n, [&] { visit_node(n); });
    } catch (const ShapeError& e) {
      if (!e.parts().node.empty()) throw;
      ErrorParts parts = e.parts();
      parts.node = n.name();
      parts.op = n.op();
      throw ShapeError(std::move(parts));
    }
  }

  /// Whether no node visited so far was deferred.
  bool complete() const { return complete_; }

  /// Defers the node, and so all readers of its results.
  void defer(Node n) {
    read_latest(n);
    deferred_.push_back(n.id());
    for (int i = 0; i < n.output_count(); ++i) {
      if (n.output(i)) withhold(n.output(i));
    }
  }

  /// Sets the types of gradient inputs, which follow from the outputs of the forward part.
  void bind_gradient_inputs() {
    for (Value input : g_.inputs()) {
      const Value like = g_.gradient_of(input);
      if (!like) continue;
      if (is_withheld(latest(like))) {
        withhold(input);
      } else {
        g_.set_type(input, latest(like).type());
      }
    }
  }

  void finish() {
    std::vector<Output> outputs = g_.outputs();
    for (Output& o : outputs) o.value = latest(o.value);
    g_.set_outputs(std::move(outputs));
    std::vector<Update> updates = g_.updates();
    for (Update& u : updates) u.value = latest(u.value);
    g_.set_updates(std::move(updates));
    g_.prune();
  }

  /// Nodes of providers' operators that were decomposed, and the reasons.
  std::vector<Declined>& decomposed() { return decomposed_; }

  /// The ids of deferred nodes on which something depends, in order.
  std::vector<uint32_t> deferred() const {
    const std::unordered_set<uint32_t> ids(deferred_.begin(), deferred_.end());
    std::vector<uint32_t> live;
    for (Node n : g_.nodes()) {
      if (ids.count(n.id()) != 0) live.push_back(n.id());
    }
    return live;
  }

 private:
  void visit_node(Node n) {
    read_latest(n);
    bool waits = false;
    for (int i = 0; i < n.input_count(); ++i) {
      waits = waits || (n.input(i) && is_withheld(n.input(i)));
    }
    if (waits) return wait(n);
    if (const auto m = match(kBranch, n); m && constant((*m)["condition"]) != nullptr)
      return take_branch(n);
    const OpDef* def = find_op(n.op());
    if (def != nullptr && def->dynamic) {
      if (host_.data_shaped(n.op()) == nullptr || !foldable(n)) return wait(n);
      return replace_outputs(n, run_data_shaped(host_, n, constant_inputs(n)));
    }
    if (def != nullptr && lacks_values(n, *def)) return wait(n);
    infer_types(n);
    if (Value same = repeated(n, def)) {
      replace(n.output(0), same);
    } else if (auto extents = extents_of(n, def)) {
      replace(n.output(0), g_.add_constant(*extents, n.output(0).name()));
    } else if (may_give_way(n) && expand(n)) {
      return;
    } else if (foldable(n)) {
      fold(n);
    }
    for (int i = 0; i < n.output_count(); ++i) {
      Value y = n.output(i);
      if (y && latest(y) == y && !y.type().concrete()) return wait(n);
    }
  }

  void read_latest(Node n) {
    for (int i = 0; i < n.input_count(); ++i) {
      const Value x = n.input(i);
      if (x && latest(x) != x) n.set_input(i, latest(x));
    }
  }

  void wait(Node n) {
    complete_ = false;
    defer(n);
  }
  void make_room(Value v) {
    if (v.id() >= replacement_.size()) {
      replacement_.resize(g_.value_count());
      withheld_.resize(g_.value_count(), 0);
    }
  }
  bool is_withheld(Value v) const { return v.id() < withheld_.size() && withheld_[v.id()] != 0; }
  Value latest(Value v) const {
    return v.id() < replacement_.size() && replacement_[v.id()] ? replacement_[v.id()] : v;
  }
  void replace(Value from, Value to) { make_room(from), replacement_[from.id()] = to; }

  /// Replaces an If with a constant condition by the nodes of the chosen branch.
  void take_branch(Node n) {
    const Tensor& condition = *constant(n.input(0));
    if (condition.size() != 1) {
      throw ShapeError({.what = "The condition of a branch is not a single value.",
                        .node = n.name(),
                        .op = n.op(),
                        .expected = "one element",
                        .received = to_string(condition.dims())});
    }
    const bool holds = condition.to_ints()[0] != 0;
    const Body body = std::get<Body>(*n.attrs().find(holds ? "then_branch" : "else_branch"));
    const size_t first = holds ? 1 : 1 + n.attrs().body("then_branch").inputs().size();
    std::unordered_map<uint32_t, Value> mine;
    for (size_t i = 0; i < body->inputs().size(); ++i) {
      mine[body->inputs()[i].id()] = n.input(static_cast<int>(first + i));
    }
    auto here = [&](Value v) {
      if (!v) return Value();
      if (auto it = mine.find(v.id()); it != mine.end()) return it->second;
      return mine[v.id()] = g_.add_constant(*v.tensor(), v.name());
    };
    for (Node inner : body->nodes()) {
      std::vector<Value> inputs;
      for (int i = 0; i < inner.input_count(); ++i) inputs.push_back(here(inner.input(i)));
      Node copy = g_.add_node(inner.op(), inputs, inner.output_count(), inner.attrs(),
                              n.name() + "/" + inner.name());
      g_.place_like(copy, n);
      for (int i = 0; i < inner.output_count(); ++i) {
        g_.set_type(copy.output(i), inner.output(i).type());
        mine[inner.output(i).id()] = copy.output(i);
      }
      visit(copy);
    }
    for (int i = 0; i < n.output_count(); ++i) {
      replace(n.output(i), latest(here(body->outputs()[static_cast<size_t>(i)].value)));
    }
  }

  /// Whether the node is to be decomposed. For most operators: no device knows the operator, and
  /// the integers on which its shape depends (an axis, a length) are constants. For a provider's
  /// operator: no device accepts the node.
  bool may_give_way(Node n) {
    const OpDef* def = find_op(n.op());
    if (def == nullptr || def->decompose == nullptr) return false;
    bool shaped = true, known = true;
    for (int i = 0; i < n.output_count(); ++i)
      shaped = shaped && (!n.output(i) || n.output(i).type().concrete());
    for (int i = 0; i < n.input_count(); ++i) {
      const Value x = n.input(i);
      known = known && (!x || is_float(x.dtype()) || constant(x) != nullptr);
    }
    if (!shaped && (!known || host_.knows(n.op()))) return false;
    if (find_offered(n.op()) == nullptr) return !shaped || !is_known(n.op());
    std::vector<Declined> refusals;
    if (shaped && has_kernel(n, refusals)) return false;
    if (!shaped)
      refusals.push_back(
          declined(n, host_, "its output shape is known only from its decomposition"));
    std::move(refusals.begin(), refusals.end(), std::back_inserter(decomposed_));
    return true;
  }

  /// Whether any device knows the operator.
  bool is_known(const std::string& op) const {
    const auto others = devices_.others();
    return host_.knows(op) || std::any_of(others.begin(), others.end(),
                                          [&](const auto& device) { return device->knows(op); });
  }

  /// Whether a device has a kernel for the node. If not, `refusals` gets the reasons of the
  /// devices, and of the host only if it is the only device.
  bool has_kernel(Node n, std::vector<Declined>& refusals) const {
    const NodeSpec spec = spec_of(n);
    // Kernels assume that the products of extents do not overflow.
    for (int i = 0; i < n.input_count(); ++i) require_bytes_of(n.input(i));
    for (int i = 0; i < n.output_count(); ++i) require_bytes_of(n.output(i));
    for (const auto& device : devices_.others()) {
      std::string reason;
      if (choose_kernel(*device, spec, &reason).kernel) return true;
      refusals.push_back(declined(n, *device, std::move(reason)));
    }
    std::string reason;
    if (choose_kernel(host_, spec, &reason).kernel) return true;
    if (refusals.empty()) refusals.push_back(declined(n, host_, std::move(reason)));
    return false;
  }

  static void require_bytes_of(Value v) {
    if (v) std::ignore = v.type().nbytes();
  }

  static Declined declined(Node n, const Device& device, std::string reason) {
    return {.node = n.name(),
            .op = n.op(),
            .device = std::string(device.provider()),
            .reason = std::move(reason),
            .runs_decomposed = true};
  }

  /// Replaces the node by its decomposition, whose nodes are then folded and fused like any others.
  /// Returns false if there is none.
  bool expand(Node n) {
    const size_t first = g_.node_slots();
    const std::vector<Value> parts =
        needs_float32(n) ? in_float32(n) : find_op(n.op())->decompose(n);
    if (parts.empty()) return false;
    const size_t end = g_.node_slots();
    for (size_t id = first; id < end; ++id) {
      Node part(&g_, static_cast<uint32_t>(id));
      g_.place_like(part, n);
      visit(part);
    }
    for (int i = 0; i < n.output_count(); ++i) {
      if (n.output(i)) replace(n.output(i), latest(parts.at(static_cast<size_t>(i))));
    }
    return true;
  }

  static bool foldable(Node n) {
    if (n.input_count() == 0) return false;
    for (int i = 0; i < n.input_count(); ++i) {
      if (n.input(i) && n.input(i).role() != Role::constant) return false;
    }
    for (int i = 0; i < n.output_count(); ++i) {
      Value y = n.output(i);
      // Range and ConstantOfShape, for example: their extents follow from values.
      if (y && y.type().concrete() && element_count(y.type().dims()) > kMaxFoldedElements)
        return false;
    }
    return true;
  }

  static std::vector<Tensor> constant_inputs(Node n) {
    std::vector<Tensor> inputs;
    for (int i = 0; i < n.input_count(); ++i) {
      inputs.push_back(n.input(i) ? *n.input(i).tensor() : Tensor());
    }
    return inputs;
  }

  void replace_outputs(Node n, const std::vector<Tensor>& outputs) {
    for (int i = 0; i < n.output_count(); ++i) {
      Value y = n.output(i);
      if (y) replace(y, kept_once(outputs[static_cast<size_t>(i)], y.name()));
    }
  }

  /// The constant for a folded tensor. Layers fold the same masks and angles: equal ones are one.
  Value kept_once(const Tensor& tensor, const std::string& name) {
    const std::string_view bytes(static_cast<const char*>(tensor.data()), tensor.nbytes());
    auto& same = folded_[std::hash<std::string_view>()(bytes)];
    for (const Value v : same) {
      const Tensor& t = *v.tensor();
      if (t.dtype() == tensor.dtype() && t.dims() == tensor.dims() &&
          bytes == std::string_view(static_cast<const char*>(t.data()), t.nbytes()))
        return v;
    }
    same.push_back(g_.add_constant(tensor, name));
    return same.back();
  }

  void fold(Node n) {
    for (int i = 0; i < n.output_count(); ++i) {
      if (n.output(i) && !n.output(i).type().concrete()) return;
    }
    std::string why_not;  // ignored: the plan may find another way
    if (!choose_kernel(host_, spec_of(n), &why_not).kernel) return;
    replace_outputs(n, run_node(host_, n, constant_inputs(n)));
  }

  Graph& g_;
  const Devices& devices_;
  const Device& host_;
  std::vector<Declined> decomposed_;
  std::vector<Value> replacement_;  // by id: the value that readers read instead
  std::unordered_map<size_t, std::vector<Value>> folded_;  // by a hash of the bytes
  std::vector<char> withheld_;                             // by id: unknown until something has run
  std::vector<uint32_t> deferred_;
  bool complete_ = true;
};

/// Whether the node is an optimizer, or reads results of one.
bool comes_last(Node n, std::unordered_set<uint32_t>& made_last) {
  const OpDef* def = find_op(n.op());
  bool last = def != nullptr && !def->updates_input.empty();
  for (int i = 0; i < n.input_count() && !last; ++i) {
    last = n.input(i) && made_last.count(n.input(i).id()) != 0;
  }
  for (int i = 0; i < n.output_count() && last; ++i) {
    if (n.output(i)) made_last.insert(n.output(i).id());
  }
  return last;
}

}  // namespace

Specialised specialise_known(const Graph& graph, std::span<const Type> types,
                             const Devices& devices, std::optional<Phase> only) {
  Specialised result{.graph = graph, .deferred = {}};
  Graph& g = result.graph;
  g.prune();
  std::map<std::string, int64_t> symbols;
  Specialiser specialiser(g, devices);
  for (size_t i = 0; i < g.inputs().size(); ++i) {
    const Value input = g.inputs()[i];
    if (g.gradient_of(input)) continue;
    if (!types[i].concrete()) {
      specialiser.withhold(input);
      continue;
    }
    check_input(input, types[i], symbols);
    g.set_type(input, types[i]);
  }
  bool in_backward = false;
  std::vector<Node> last;  // optimizers: they may overwrite values that other nodes read
  std::unordered_set<uint32_t> made_last;
  const std::vector<Node> order = g.nodes();
  for (Node n : order) {
    if (!only && n.phase() == Phase::backward && !in_backward) {
      in_backward = true;
      specialiser.bind_gradient_inputs();
    }
    if (only && n.phase() != *only) {
      specialiser.defer(n);
      continue;
    }
    if (only && comes_last(n, made_last)) {
      last.push_back(n);
      continue;
    }
    Graph::Scope scope(g, n.phase(), n.name());
    specialiser.visit(n);
  }
  if (!only && !in_backward) specialiser.bind_gradient_inputs();
  for (Node n : last) {
    Graph::Scope scope(g, n.phase(), n.name());
    specialiser.complete() ? specialiser.visit(n) : specialiser.defer(n);
  }
  specialiser.finish();
  result.deferred = specialiser.deferred();
  result.decomposed = std::move(specialiser.decomposed());
  return result;
}

void throw_data_dependent(Node n) {
  std::string types;
  for (int i = 0; i < n.output_count(); ++i) {
    if (n.output(i)) types += (types.empty() ? "" : ", ") + to_string(n.output(i).type());
  }
  throw ModelError({.what = "The shape of a value depends on data, so that it cannot be planned.",
                    .node = n.name(),
                    .op = n.op(),
                    .expected = "a shape that follows from the shapes of the inputs",
                    .received = types,
                    .remedy = "Replace this node by one whose output shape is fixed."});
}

}  // namespace steep
