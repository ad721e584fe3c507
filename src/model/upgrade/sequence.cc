// Sequences of tensors, and optionals. A sequence whose length is known at import is resolved:
// every operator on it selects among existing values. Other sequences remain for run time.

#include <fmt/format.h>

#include <algorithm>

#include "model/upgrade/rules.h"
#include "ops/build.h"
#include "steep/error.h"

namespace steep {
namespace {

constexpr size_t kLongest = 10'000;

/// Emits the operator unchanged, for run time.
Bindings at_run_time(const Call& c) {
  std::vector<Value> inputs;
  for (size_t i = 0; i < c.inputs.size(); ++i) inputs.push_back(c.any(i));
  const std::vector<Value> out = c.emit(c.op, std::move(inputs), c.attrs, c.outputs());
  return {out.begin(), out.end()};
}

/// The items of input 0, if known at import; null otherwise.
const std::vector<Value>* items(const Call& c) {
  if (c.has(0) && c.inputs[0].items() == nullptr) {
    const Kind kind = c.inputs[0].value().type().kind;
    if (kind == Kind::sequence || kind == Kind::optional_sequence) return nullptr;
  }
  if (!c.has(0) || c.inputs[0].items() == nullptr) {
    c.fail("An input of a sequence operator is not a sequence.", "a sequence as input 0",
           "a tensor", "Export the model again.");
  }
  return c.inputs[0].items();
}

bool known_position(const Call& c, size_t i) {
  const auto ints = known_ints(c.in(i));
  return !c.has(i) || (ints && ints->size() == 1);
}

/// The position in input i; negative ones count from the end. `size`: one past the largest
/// position. REQUIRES: known_position().
size_t position(const Call& c, size_t i, size_t size) {
  const auto ints = known_ints(c.need(i));
  const int64_t n = static_cast<int64_t>(size);
  const int64_t at = (*ints)[0] < 0 ? (*ints)[0] + n : (*ints)[0];
  if (at < 0 || at >= n) {
    c.fail("A position in a sequence is out of range.", fmt::format("{} to {}", -n, n - 1),
           fmt::format("{}", (*ints)[0]), "Export the model again.");
  }
  return static_cast<size_t>(at);
}

Binding sequence(const Call& c, std::vector<Value> values, DType dtype) {
  if (values.size() > kLongest) {
    c.fail("A sequence is too long.", fmt::format("at most {} tensors", kLongest),
           fmt::format("{}", values.size()), "Use one tensor instead of a sequence.");
  }
  return {std::move(values), dtype};
}

}  // namespace

// Without `split` each piece has one element along the axis, which is removed unless keepdims.
Bindings upgrade_split_to_sequence(const Call& c) {
  const Value x = c.need(0);
  if (!x.type().shape) return at_run_time(c);
  const int64_t rank = x.rank();
  const int64_t number = c.integer("axis");
  const int64_t axis = number < 0 ? number + rank : number;
  if (axis < 0 || axis >= rank) {
    c.fail("An axis is out of range.", fmt::format("{} to {}", -rank, rank - 1),
           fmt::format("{}", number), "Export the model again.");
  }
  const Dim extent = x.shape()[static_cast<size_t>(axis)];
  const Value split = c.in(1);
  Ints sizes;
  if (split && split.rank() == 1) {
    const auto ints = known_ints(split);
    if (!ints) return at_run_time(c);
    sizes = *ints;
  } else {
    const auto ints = split ? known_ints(split) : Ints{1};
    if (!ints || ints->size() != 1 || !extent.known()) return at_run_time(c);
    const int64_t piece = (*ints)[0];
    if (piece < 1) {
      c.fail("The size of a split's parts is less than 1.", "at least 1", fmt::format("{}", piece),
             "Export again.");
    }
    if (extent.value() / piece > static_cast<int64_t>(kLongest)) {
      sizes.resize(kLongest + 1);  // refused below
    } else {
      for (int64_t left = extent.value(); left > 0; left -= piece)
        sizes.push_back(std::min(piece, left));
    }
  }
  if (sizes.empty()) return {sequence(c, {}, x.dtype())};
  if (sizes.size() > kLongest) return {sequence(c, std::vector<Value>(sizes.size()), x.dtype())};
  std::vector<Value> pieces =
      c.emit("Split", {x, c.ints(sizes)}, {{"axis", axis}}, static_cast<int>(sizes.size()));
  if (!split && c.integer("keepdims") == 0) {
    for (Value& piece : pieces) piece = squeeze(piece, {axis});
  }
  return {sequence(c, std::move(pieces), x.dtype())};
}

Bindings upgrade_sequence_construct(const Call& c) {
  std::vector<Value> values;
  for (size_t i = 0; i < c.inputs.size(); ++i) values.push_back(c.need(i));
  if (values.empty())
    c.fail("A SequenceConstruct node has no inputs.", "at least one input", "none",
           "Export again.");
  const DType dtype = values[0].dtype();
  for (Value v : values) {
    if (v.dtype() != dtype) {
      c.fail("The items of a sequence differ in type.", to_string(values[0].type()),
             to_string(v.type()), "Export the model again.");
    }
  }
  return {sequence(c, std::move(values), dtype)};
}

Bindings upgrade_sequence_empty(const Call& c) {
  return {sequence(c, {}, static_cast<DType>(c.attrs.integer("dtype", 1)))};
}

Bindings upgrade_sequence_at(const Call& c) {
  const auto* from = items(c);
  if (from == nullptr || !known_position(c, 1)) return at_run_time(c);
  return {(*from)[position(c, 1, from->size())]};
}

Bindings upgrade_sequence_insert(const Call& c) {
  const auto* from = items(c);
  if (from == nullptr || !known_position(c, 2)) return at_run_time(c);
  std::vector<Value> values = *from;
  const Value item = c.need(1);
  const size_t at = c.has(2) ? position(c, 2, values.size() + 1) : values.size();
  values.insert(values.begin() + static_cast<int64_t>(at), item);
  return {sequence(c, std::move(values), item.dtype())};
}

Bindings upgrade_sequence_erase(const Call& c) {
  const auto* from = items(c);
  if (from == nullptr || !known_position(c, 1)) return at_run_time(c);
  std::vector<Value> values = *from;
  if (values.empty())
    c.fail("A sequence is empty.", "something to erase", "nothing", "Export the model again.");
  const size_t at = c.has(1) ? position(c, 1, values.size()) : values.size() - 1;
  values.erase(values.begin() + static_cast<int64_t>(at));
  return {sequence(c, std::move(values), c.inputs[0].dtype())};
}

Bindings upgrade_sequence_length(const Call& c) {
  const auto* from = items(c);
  if (from == nullptr) return at_run_time(c);
  return {c.graph.add_constant(Tensor::scalar(static_cast<int64_t>(from->size())), c.name)};
}

Bindings upgrade_concat_from_sequence(const Call& c) {
  const auto* from = items(c);
  if (from == nullptr) return at_run_time(c);
  std::vector<Value> values = *from;
  if (values.empty())
    c.fail("A sequence is empty.", "at least one tensor", "none", "Export the model again.");
  const int64_t axis = c.integer("axis");
  if (c.integer("new_axis") != 0) {
    for (Value& v : values) v = unsqueeze(v, {axis});
  }
  return {c.emit1("Concat", values, {{"axis", axis}})};
}

Bindings upgrade_optional(const Call& c) {
  const Value operand = c.any(0);
  Type type = operand ? operand.type() : c.type.value_or(Type{});
  if (size_of(type.dtype) == 0) {
    c.fail("An empty optional has no type.", "an attribute `type` of tensors or sequences of them",
           "none", "Export the model again.");
  }
  const bool sequence = type.kind == Kind::sequence || type.kind == Kind::optional_sequence;
  type.kind = sequence ? Kind::optional_sequence : Kind::optional;
  std::vector<Value> inputs;
  if (operand) inputs.push_back(operand);
  const Node n = c.graph.add_node("Optional", inputs, 1, {}, c.name);
  c.graph.set_type(n.output(0), std::move(type));
  return {n.output(0)};
}

Bindings upgrade_optional_get_element(const Call& c) {
  if (!c.has(0)) c.fail("An optional is missing.", "an input", "none", "Export the model again.");
  if (c.inputs[0].items() != nullptr) return {c.inputs[0]};
  const Value x = c.inputs[0].value();
  Type type = x.type();
  if (type.kind == Kind::tensor || type.kind == Kind::sequence) return {x};
  type.kind = type.kind == Kind::optional ? Kind::tensor : Kind::sequence;
  const Node n = c.graph.add_node("OptionalGetElement", std::span(&x, 1), 1, {}, c.name);
  c.graph.set_type(n.output(0), std::move(type));
  return {n.output(0)};
}

Bindings upgrade_optional_has_element(const Call& c) {
  const bool there = c.has(0);
  const Kind kind = there && c.inputs[0].value() ? c.inputs[0].value().type().kind : Kind::sequence;
  if (there && (kind == Kind::optional || kind == Kind::optional_sequence)) return at_run_time(c);
  return {c.graph.add_constant(Tensor::scalar(there), c.name)};
}

}  // namespace steep
