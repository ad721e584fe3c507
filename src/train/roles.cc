#include "train/roles.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string_view>

#include "ir/seed.h"
#include "ops/offered.h"
#include "ops/op_def.h"

namespace steep {
namespace {

using Names = std::span<const std::string_view>;

constexpr std::string_view kInput = "shifts or scales an input";
constexpr std::string_view kLoss = "weighs the loss";
constexpr std::string_view kQuantised = "is a scale of quantisation";
constexpr std::string_view kSingle = "is a single number";

/// Operators that usually have weights.
constexpr std::array<std::string_view, 19> kLayers = {"MatMul",
                                                      "steep.MatMul",
                                                      "Einsum",
                                                      "Conv",
                                                      "ConvTranspose",
                                                      "DeformConv",
                                                      "LSTM",
                                                      "GRU",
                                                      "RNN",
                                                      "BatchNormalization",
                                                      "InstanceNormalization",
                                                      "LayerNormalization",
                                                      "GroupNormalization",
                                                      "PRelu",
                                                      "If",
                                                      "Loop",
                                                      "steep.Loop",
                                                      "Scan",
                                                      "steep.Recurrence"};
constexpr std::array<std::string_view, 6> kQuantising = {
    "QuantizeLinear",     "DequantizeLinear", "DynamicQuantizeLinear",
    "steep.FakeQuantize", "QLinearConv",      "QLinearMatMul"};
constexpr std::array<std::string_view, 3> kLosses = {
    "SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss", "steep.SoftmaxCrossEntropy"};

bool in(Names names, Node n) {
  return std::find(names.begin(), names.end(), n.op()) != names.end();
}

bool is_setting(Node n, int input) {
  const OpDef* def = find_op(n.op());
  return def != nullptr &&
         std::find(def->settings.begin(), def->settings.end(), input) != def->settings.end();
}

bool is_elementwise(Node n) {
  const OpDef* def = find_op(n.op());
  return def != nullptr && def->elementwise;
}

template <typename F>
void each_input(Node n, F&& f) {
  for (int i = 0; i < n.input_count(); ++i) {
    if (n.input(i)) f(n.input(i));
  }
}

template <typename F>
void each_output(Node n, F&& f) {
  for (int i = 0; i < n.output_count(); ++i) {
    if (n.output(i)) f(n.output(i));
  }
}

bool has_bodies(Node n) { return n.op() == "If" || n.op() == "Loop" || n.op() == "steep.Loop"; }

/// The values in the bodies of a branch or loop that stand for input `input` of the node, each with
/// its body.
std::vector<std::pair<Body, Value>> inside(Node n, int input) {
  std::vector<std::pair<Body, Value>> result;
  const Attrs& attrs = n.attrs();
  int first = n.op() == "If" ? 1 : 0;
  for (const char* name : {"then_branch", "else_branch", "body"}) {
    const Attr* attr = attrs.find(name);
    const Body* body = attr != nullptr ? std::get_if<Body>(attr) : nullptr;
    if (body == nullptr || *body == nullptr) continue;
    const int own = static_cast<int>((*body)->inputs().size());
    // The node of a loop has a trip count and a condition; its body has a counter instead of the
    // trip count. So the positions differ by one.
    const int at = n.op() == "If" ? input - first : input - 1;
    if (at >= 0 && at < own && (n.op() == "If" || input > 1))
      result.emplace_back(*body, (*body)->inputs()[static_cast<size_t>(at)]);
    first += own;
  }
  return result;
}

bool narrow_integer(DType dtype) { return is_integer(dtype) && size_of(dtype) == 1; }

bool may_weigh(Value v) {
  return is_float(v.dtype()) && v.type().shape && !v.type().shape->empty();
}

/// Whether there is a layer in the bodies of a branch or loop. `free`: for each input of the node,
/// whether it is computed from constants alone.
bool layer_inside(Node n, const std::vector<bool>& free) {
  std::map<const Graph*, std::set<uint32_t>> by_body;  // by body: the free values
  std::vector<Body> bodies;
  for (const auto& [name, attr] : n.attrs()) {
    if (const Body* body = std::get_if<Body>(&attr); body != nullptr && *body)
      bodies.push_back(*body);
  }
  for (int i = 0; i < n.input_count(); ++i) {
    if (!free[static_cast<size_t>(i)]) continue;
    for (const auto& [body, v] : inside(n, i)) by_body[body.get()].insert(v.id());
  }
  for (const Body& body : bodies) {
    std::set<uint32_t>& constants = by_body[body.get()];
    auto is_free = [&](Value v) {
      return !v || v.role() == Role::constant || constants.count(v.id()) != 0;
    };
    for (Node inner : body->nodes()) {
      std::vector<bool> operands;
      bool all = true, weights = false;
      for (int i = 0; i < inner.input_count(); ++i) {
        const Value v = inner.input(i);
        operands.push_back(is_free(v));
        all = all && operands.back();
        weights = weights || (v && operands.back() && may_weigh(v));
      }
      if (has_bodies(inner) ? layer_inside(inner, operands) : !all && weights && in(kLayers, inner))
        return true;
      each_output(inner, [&](Value y) {
        if (all) constants.insert(y.id());
      });
    }
  }
  return false;
}

/// If all readers of the value in the bodies of a branch or loop use it as something other than a
/// weight, the first such use; else "".
std::string use_inside(Node n, int input) {
  std::string reason;
  for (const auto& [body, v] : inside(n, input)) {
    for (const Output& o : body->outputs()) {
      if (o.value == v) return "";
    }
    for (Node user : body->nodes()) {
      for (int i = 0; i < user.input_count(); ++i) {
        if (user.input(i) != v) continue;
        std::string why;
        if (is_setting(user, i)) why = "is a setting of " + user.op();
        if (in(kQuantising, user) && i > 0) why = kQuantised;
        if (has_bodies(user)) why = use_inside(user, i);
        if (why.empty()) return "";
        if (reason.empty()) reason = std::move(why);
      }
    }
  }
  return reason;
}

}  // namespace

Roles::Roles(const Graph& graph, std::span<const Value> losses, bool with_targets)
    : traits_(graph.value_count()), users_(graph.users()) {
  const std::vector<Node> order = graph.nodes();
  for (uint32_t id = 0; id < traits_.size(); ++id) {
    const Value v = graph.value(id);
    traits_[id].free = v.role() == Role::constant || v.role() == Role::state || is_seed(v);
  }
  look_forward(order);
  look_back(order, losses);
  layers_ =
      std::any_of(order.begin(), order.end(), [&](Node n) { return is_layer(n) && is_live(n); });
  if (!with_targets) return;
  for (Value v : graph.inputs()) {
    Traits& t = traits_[v.id()];
    t.target = layers_ && t.live && !t.to_layer && !t.free;
  }
  find_targets(order);
}

bool Roles::is_live(Node n) const {
  bool live = false;
  each_output(n, [&](Value y) { live = live || of(y).live; });
  return live;
}

bool Roles::is_layer(Node n) const {
  if (!in(kLayers, n) && find_offered(n.op()) == nullptr) return false;
  if (has_bodies(n)) {
    std::vector<bool> free;
    for (int i = 0; i < n.input_count(); ++i) free.push_back(!n.input(i) || of(n.input(i)).free);
    return layer_inside(n, free);
  }
  bool fed = false, weights = false;
  each_input(n, [&](Value v) {
    fed = fed || !of(v).free;
    weights = weights || (of(v).free && may_weigh(v));
  });
  return fed && weights;
}

void Roles::look_forward(std::span<const Node> order) {
  for (Node n : order) {
    bool free = true, made = false, narrow = n.op() == "MatMulInteger" || n.op() == "ConvInteger";
    each_input(n, [&](Value v) {
      free = free && of(v).free;
      made = made || of(v).made;
      narrow = narrow || of(v).integer || (of(v).free && narrow_integer(v.dtype()));
    });
    const OpDef* def = find_op(n.op());
    free = free || (def != nullptr && def->dataless);
    const bool table = n.op() == "Gather" && n.input(0) && of(n.input(0)).free;
    made = !free && (made || is_layer(n) || table || n.op().starts_with("Reduce"));
    // Only moves, shifts and casts keep this trait: a product with such a number is an ordinary
    // number.
    narrow = narrow && !in(kQuantising, n) && n.op() != "Mul" && n.op() != "Div" && !in(kLayers, n);
    each_output(n, [&](Value y) {
      traits_[y.id()].free = free;
      traits_[y.id()].made = made;
      traits_[y.id()].integer = narrow;
    });
  }
}

void Roles::look_back(std::span<const Node> order, std::span<const Value> losses) {
  for (Value v : losses) traits_[v.id()].live = true;
  for (auto n = order.rbegin(); n != order.rend(); ++n) {
    bool live = false, to_layer = is_layer(*n);
    each_output(*n, [&](Value y) {
      live = live || of(y).live;
      to_layer = to_layer || (of(y).to_layer && !of(y).free);
    });
    if (!live) continue;
    each_input(*n, [&](Value v) {
      traits_[v.id()].live = true;
      if (to_layer) traits_[v.id()].to_layer = true;
    });
  }
}

void Roles::find_targets(std::span<const Node> order) {
  for (Node n : order) {
    bool target = false, other = false, made = false, met = false;
    each_input(n, [&](Value v) {
      target = target || of(v).target;
      other = other || (!of(v).free && !of(v).target);
      made = made || of(v).made;
      met = met || of(v).met;
    });
    each_output(n, [&](Value y) {
      if (of(y).free) return;
      traits_[y.id()].target = target && !other && !of(y).made;
      traits_[y.id()].met = met || (target && made);
    });
  }
}

std::string Roles::why_not(Value constant) const {
  if (layers_ && constant.rank() > 0 && constant.tensor() != nullptr &&
      constant.tensor()->size() == 1 && !belongs_to_layer(constant)) {
    const std::string why = other_use(constant);
    return why.empty() ? std::string(kSingle) : why;
  }
  return other_use(constant);
}

std::string Roles::other_use(Value constant) const {
  std::vector<Value> open{constant};
  std::set<uint32_t> ids{constant.id()};
  std::string reason;
  while (!open.empty()) {
    const Value v = open.back();
    open.pop_back();
    for (Node n : users_[v.id()]) {
      if (!is_live(n)) continue;
      bool free = true, excused = true;
      each_output(n, [&](Value y) { free = free && of(y).free; });
      for (int i = 0; i < n.input_count(); ++i) {
        if (n.input(i) != v) continue;
        std::string why = use(n, i);
        excused = excused && !why.empty();
        if (reason.empty()) reason = std::move(why);
      }
      if (excused) continue;
      if (!free) {
        if (find_op(n.op()) != nullptr && find_op(n.op())->stops_gradient) continue;
        return "";
      }
      each_output(n, [&](Value y) {
        if (is_float(y.dtype()) && ids.insert(y.id()).second) open.push_back(y);
      });
    }
  }
  return reason;
}

/// Whether the constant, or a value computed from it and other constants, is an operand of a layer,
/// or the bias of a layer with a single channel.
bool Roles::belongs_to_layer(Value constant) const {
  std::vector<Value> open{constant};
  std::set<uint32_t> ids{constant.id()};
  while (!open.empty()) {
    const Value v = open.back();
    open.pop_back();
    for (Node n : users_[v.id()]) {
      if (!is_live(n)) continue;
      if (in(kLayers, n) && !has_bodies(n)) return true;
      bool free = true;
      each_output(n, [&](Value y) { free = free && of(y).free; });
      if (free) {
        each_output(n, [&](Value y) {
          if (is_float(y.dtype()) && ids.insert(y.id()).second) open.push_back(y);
        });
      }
      if (has_bodies(n) ? is_bias_inside(n, v) : is_bias(n, v, Value())) return true;
    }
  }
  return false;
}

/// Whether n adds v to, or subtracts it from, the result of a layer with one channel. `y`: the
/// other operand, if n is in a body that takes it from outside; else null.
bool Roles::is_bias(Node n, Value v, Value y) const {
  if (n.op() != "Add" && n.op() != "Sub") return false;
  if (!y) y = n.input(n.input(0) == v ? 1 : 0);
  Node maker = y.producer();
  while (maker && find_op(maker.op()) != nullptr && find_op(maker.op())->view)
    maker = maker.input(0).producer();
  if (!maker || !is_layer(maker) || !y.type().shape || y.rank() == 0) return false;
  const Shape& shape = *y.type().shape;
  const bool convolves = maker.op().find("Conv") != std::string::npos && shape.size() > 1;
  const Dim& channels = convolves ? shape[1] : shape.back();
  const auto is_vector = [](Value v) { return v.type().shape && v.rank() == 1; };
  const bool by_vector =
      maker.op() == "MatMul" && (is_vector(maker.input(0)) || is_vector(maker.input(1)));
  return by_vector || (channels.known() && channels.value() == 1);
}

/// The same for nodes in the bodies of a branch or loop, for operands from outside.
bool Roles::is_bias_inside(Node n, Value v) const {
  for (int i = 0; i < n.input_count(); ++i) {
    if (n.input(i) != v) continue;
    for (const auto& [body, within] : inside(n, i)) {
      for (int j = 0; j < n.input_count(); ++j) {
        for (const auto& [same, other] : inside(n, j)) {
          if (same != body || j == i) continue;
          for (Node inner : body->nodes()) {
            const bool both = inner.input_count() == 2 &&
                              ((inner.input(0) == within && inner.input(1) == other) ||
                               (inner.input(1) == within && inner.input(0) == other));
            if (both && is_bias(inner, within, n.input(j))) return true;
          }
        }
      }
    }
  }
  return false;
}

std::string Roles::use(Node n, int input) const {
  if (is_setting(n, input)) return "is a setting of " + n.op();
  if (in(kQuantising, n) && input > 0) return std::string(kQuantised);
  if (has_bodies(n)) return use_inside(n, input);
  if (in(kLosses, n) && input == 2) return std::string(kLoss);
  if (n.op() == "Gather" && input == 0 && n.input(1) && of(n.input(1)).target) {
    return weighs(n.output(0)) ? std::string(kLoss) : "";
  }
  if (!is_elementwise(n) || n.op() == "PRelu") return "";
  bool met = false, quantised = false, fed = false, bare = true;
  for (int i = 0; i < n.input_count(); ++i) {
    const Value v = n.input(i);
    if (!v || i == input) continue;
    const bool scale = v.producer() && v.producer().op() == "DynamicQuantizeLinear";
    quantised = quantised || scale || (of(v).integer && is_float(v.dtype()));
    met = met || of(v).met;
    fed = fed || !of(v).free;
    bare = bare && (of(v).free || (!of(v).made && (of(v).target || of(n.output(0)).to_layer)));
  }
  if (quantised && n.op() == "Mul") return std::string(kQuantised);
  if (met) return std::string(kLoss);
  return fed && bare ? std::string(kInput) : "";
}

/// Whether the rows that targets picked from a constant are only multiplied with results of layers.
bool Roles::weighs(Value value) const {
  std::vector<Value> open{value};
  std::set<uint32_t> ids{value.id()};
  while (!open.empty()) {
    const Value v = open.back();
    open.pop_back();
    for (Node n : users_[v.id()]) {
      if (!is_live(n)) continue;
      bool alone = true;
      each_input(n, [&](Value x) {
        alone = alone && (of(x).free || of(x).target || ids.count(x.id()) != 0);
      });
      if (!alone && n.op() != "Mul" && n.op() != "Div") return false;
      if (!alone) continue;
      each_output(n, [&](Value y) {
        if (ids.insert(y.id()).second) open.push_back(y);
      });
    }
  }
  return true;
}

}  // namespace steep
