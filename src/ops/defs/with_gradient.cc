// User-defined gradients, like those of PyTorch's torch.autograd.Function:
//
//   dy = steep.GradientOf(y)                    placeholder for the gradient of y
//   z  = steep.WithGradient(y…, x…, dx…, dy…)   z = y, and the gradients of x are dx
//
// There are as many dy and z as y (`outputs`), and as many dx as x; a dy may be absent. Ordinary
// nodes compute dx from dy. The rule repeats these nodes with the incoming gradients. No gradient
// flows through them, nor through the nodes from x to y; hence y and dx pass through
// steep.StopGradient. forget_gradients() removes all these nodes.
#include "ops/defs/with_gradient.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "ops/build.h"
#include "ops/steep_types.h"
#include "runtime/counted.h"
#include "steep/error.h"

namespace steep {
namespace {

constexpr std::string_view kWithGradient = "steep.WithGradient";

/// Recomputes values of a graph after some values are replaced. Nodes that do not depend on the
/// replaced values are shared.
class Replay {
 public:
  void put(Value v, Value instead) {
    computed_anew_[v.id()] = instead;
    oldest_ = std::min(oldest_, v.producer() ? v.producer().id() : 0);
  }

  Value take(Value v) {
    std::vector<Node> waiting;
    if (computed_anew_.count(v.id()) == 0 && v.producer()) waiting.push_back(v.producer());
    while (!waiting.empty()) {
      const Node n = waiting.back();
      const size_t before = waiting.size();
      for (int i = 0; is_new(n) && i < n.input_count(); ++i) {
        const Value x = n.input(i);
        if (x && computed_anew_.count(x.id()) == 0 && is_new(x.producer()))
          waiting.push_back(x.producer());
      }
      if (waiting.size() > before) continue;
      waiting.pop_back();
      if (is_new(n)) compute(n);
    }
    return latest(v);
  }

 private:
  /// A node not visited yet. Nodes older than the first replaced value cannot depend on it.
  bool is_new(Node n) const { return n && n.id() > oldest_ && node_ids_.count(n.id()) == 0; }

  Value latest(Value v) const {
    const auto it = v ? computed_anew_.find(v.id()) : computed_anew_.end();
    return it == computed_anew_.end() ? v : it->second;
  }

  void compute(Node n) {
    node_ids_.insert(n.id());
    std::vector<Value> inputs;
    bool anew = false;
    for (int i = 0; i < n.input_count(); ++i) {
      inputs.push_back(latest(n.input(i)));
      anew = anew || inputs.back() != n.input(i);
    }
    if (!anew) return;
    const Node copy = n.graph().add_node(n.op(), inputs, n.output_count(), n.attrs());
    infer_types(copy);
    for (int i = 0; i < n.output_count(); ++i) {
      if (n.output(i)) computed_anew_[n.output(i).id()] = copy.output(i);
    }
  }

  std::unordered_map<uint32_t, Value> computed_anew_;  // value id → replacement
  std::unordered_set<uint32_t> node_ids_;
  uint32_t oldest_ = UINT32_MAX;  // node id
};

[[noreturn]] void refuse_operands(Node n) {
  throw_shape_error(n, "The operands of a custom gradient do not match its attributes.",
                    "as many results, operands and gradients as its attribute says",
                    fmt::format("{}, {}", counted(n.input_count(), "operand"),
                                counted(n.output_count(), "result")));
}

/// The numbers of y and x. Throws ShapeError.
std::pair<int, int> counts(Node n) {
  const int64_t y = integer_of(n, "outputs");
  if (y < 1 || y > n.input_count()) refuse_operands(n);
  const int outputs = static_cast<int>(y), x = n.input_count() / 2 - outputs;
  bool whole = x > 0 && n.input_count() % 2 == 0 && n.output_count() <= outputs;
  for (int i = 0; i < outputs + 2 * x; ++i) whole = whole && n.input(i);
  if (!whole) refuse_operands(n);
  return {outputs, x};
}

Grads with_gradient_vjp(Node n, const Grads& dy) {
  const auto [outputs, count] = counts(n);
  Replay replay;
  for (int i = 0; i < outputs; ++i) {
    if (n.output(i)) replay.put(n.input(i), n.output(i));  // z's gradient is the one defined here
    const Value name = n.input(outputs + 2 * count + i);
    const Value gradient =
        static_cast<size_t>(i) < dy.size() ? dy[static_cast<size_t>(i)] : Value();
    if (name && name.producer() && name.producer().op() == "steep.GradientOf") {
      replay.put(name, gradient ? gradient : zeros_like(n.input(i)));
    }
  }
  Grads dx(static_cast<size_t>(n.input_count()));
  for (int i = 0; i < count; ++i) {
    Value gradient = n.input(outputs + count + i);
    const Node stop = gradient ? gradient.producer() : Node();
    if (stop && stop.op() == "steep.StopGradient") gradient = stop.input(0);
    if (gradient)
      dx.at(static_cast<size_t>(outputs) + static_cast<size_t>(i)) = replay.take(gradient);
  }
  return dx;
}

std::vector<Type> with_gradient_infer(Node n) {
  counts(n);
  std::vector<Type> types;
  for (int i = 0; i < n.output_count(); ++i) types.push_back(n.input(i).type());
  return types;
}

std::vector<Value> with_gradient_decompose(Node n) {
  std::vector<Value> results;
  for (int i = 0; i < n.output_count(); ++i) results.push_back(apply("Identity", {n.input(i)}));
  return results;
}

/// Whether a gradient of shape `from` can be that of `to`: its input, or its input broadcast. In
/// the latter case it is summed over the broadcast axes later.
bool reaches(const Shape& from, const Shape& to) {
  if (from.size() < to.size()) return false;
  for (size_t i = 0; i < to.size(); ++i) {
    const Dim& have = from[from.size() - to.size() + i];
    const Dim& want = to[i];
    if (have.known() && want.known() && want.value() != 1 && want.value() != have.value())
      return false;
  }
  return true;
}

std::vector<Type> checked_gradient_infer(Node n) {
  const Type& type = n.input(0).type();
  const std::optional<Shape> shape = shape_in(n.input(1));
  if (type.shape && shape && !reaches(*type.shape, *shape)) {
    throw ModelError({.what = "A gradient is of another shape than its input.",
                      .node = text_of(n, "node"),
                      .op = text_of(n, "op"),
                      .expected = fmt::format("{} for input {}", to_string(Type{type.dtype, shape}),
                                              text_of(n, "input")),
                      .received = to_string(type),
                      .remedy = "Correct the gradient that is registered for the operator."});
  }
  return {type};
}

Grads checked_gradient_vjp(Node n, const Grads& dy) {
  static_cast<void>(n);
  return {dy[0]};
}

/// Without a kernel: a sum with zeros of x's shape, which fails when the shapes do not fit.
std::vector<Value> checked_gradient_decompose(Node n) {
  const Value dx = n.input(0);
  return {dx + apply("Expand", {scalar(n.graph(), 0, dx.dtype()), n.input(1)})};
}

Value checked_gradient_simplify(Node n) {
  const std::optional<Shape> shape = shape_in(n.input(1));
  const bool known =
      shape && std::all_of(shape->begin(), shape->end(), [](const Dim& d) { return d.known(); });
  return known && n.input(0).type().concrete() ? n.input(0) : Value();
}

std::vector<Type> gradient_of_infer(Node n) {
  if (!n.input(0)) refuse_operands(n);
  return {n.input(0).type()};
}

}  // namespace

Value checked_gradient(Value gradient, Value x, const std::string& node, const std::string& op,
                       const std::string& input) {
  const auto& from = shape_if_known(gradient);
  const auto& to = shape_if_known(x);
  if (from && to && provably_equal(*from, *to)) return gradient;
  return apply("steep.CheckedGradient", {gradient, shape_of(x)},
               {{"node", node}, {"op", op}, {"input", input}});
}

void forget_gradients(Graph& g) {
  for (Node n : g.nodes()) {
    if (n.op() != kWithGradient) continue;
    for (int i = 0; i < n.output_count(); ++i) {
      if (n.output(i)) g.replace_uses(n.output(i), n.input(i));
    }
    g.erase(n);
  }
}

extern const OpDef kSteepWithGradient = {.name = kWithGradient,
                                         .attributes = {{"outputs", 1}},
                                         .vjp = with_gradient_vjp,
                                         .infer = with_gradient_infer,
                                         .decompose = with_gradient_decompose};

/// steep.CheckedGradient(dx, shape of x){node, op, input}: dx, if x can be broadcast to dx's shape.
extern const OpDef kSteepCheckedGradient = {.name = "steep.CheckedGradient",
                                            .attributes = {{"node", ""}, {"op", ""}, {"input", ""}},
                                            .view = true,
                                            .vjp = checked_gradient_vjp,
                                            .infer = checked_gradient_infer,
                                            .decompose = checked_gradient_decompose,
                                            .simplify = checked_gradient_simplify};

extern const OpDef kSteepGradientOf = {
    .name = "steep.GradientOf", .stops_gradient = true, .infer = gradient_of_infer};

}  // namespace steep
