// Sequences of tensors. Their length is always known here, so they vanish: every operator on them
// is a choice among values that exist already.

#include <fmt/format.h>

#include <algorithm>

#include "model/raise.h"
#include "ops/build.h"
#include "steep/error.h"

namespace steep {
namespace {

constexpr size_t kLongest = 10'000;

const std::vector<Value>& items(const Call& c, size_t i) {
  if (!c.has(i) || c.inputs[i].items() == nullptr) {
    c.fail("An operator on sequences is given no sequence.",
           fmt::format("a sequence as input {}", i), "a tensor",
           "Export the model without sequences.");
  }
  return *c.inputs[i].items();
}

/// A constant position; negative ones count from the end. `size` is one past the largest.
size_t position(const Call& c, size_t i, size_t size) {
  const auto known = known_ints(c.in(i));
  if (!known || known->size() != 1) {
    c.fail("A position in a sequence is computed.", "a constant", "a value that depends on data",
           "Export the model without sequences.");
  }
  const int64_t n = static_cast<int64_t>(size);
  const int64_t at = (*known)[0] < 0 ? (*known)[0] + n : (*known)[0];
  if (at < 0 || at >= n) {
    c.fail("A position in a sequence is out of range.", fmt::format("{} to {}", -n, n - 1),
           fmt::format("{}", (*known)[0]), "Export the model again.");
  }
  return static_cast<size_t>(at);
}

Binding sequence(const Call& c, std::vector<Value> values) {
  if (values.size() > kLongest) {
    c.fail("A sequence is too long.", fmt::format("at most {} tensors", kLongest),
           fmt::format("{}", values.size()), "Use one tensor instead of a sequence.");
  }
  return {std::move(values)};
}

[[noreturn]] void unknown_length(const Call& c) {
  c.fail("The length of a sequence cannot be told from the model.",
         "a constant `split`, or an axis of fixed size", "a size that depends on the input",
         "Export with this dimension fixed.");
}

}  // namespace

// Without `split` each piece has one element, and loses the axis unless keepdims.
Bindings raise_split_to_sequence(const Call& c) {
  const Value x = c.need(0);
  const int64_t rank = x.rank();
  const int64_t given = c.attrs.integer("axis", 0);
  const int64_t axis = given < 0 ? given + rank : given;
  if (axis < 0 || axis >= rank) {
    c.fail("An axis is out of range.", fmt::format("{} to {}", -rank, rank - 1),
           fmt::format("{}", given), "Export the model again.");
  }
  const Dim extent = x.shape()[static_cast<size_t>(axis)];
  const Value split = c.in(1);
  Ints sizes;
  if (split && split.rank() == 1) {
    const auto known = known_ints(split);
    if (!known) unknown_length(c);
    sizes = *known;
  } else {
    const auto known = split ? known_ints(split) : Ints{1};
    if (!known || known->size() != 1 || !extent.known()) unknown_length(c);
    const int64_t piece = (*known)[0];
    if (piece < 1) {
      c.fail("The pieces of a split have no size.", "at least 1", fmt::format("{}", piece),
             "Export again.");
    }
    if (extent.value() / piece > static_cast<int64_t>(kLongest)) {
      sizes.resize(kLongest + 1);  // refused below
    } else {
      for (int64_t left = extent.value(); left > 0; left -= piece)
        sizes.push_back(std::min(piece, left));
    }
  }
  if (sizes.empty()) return {sequence(c, {})};
  if (sizes.size() > kLongest) return {sequence(c, std::vector<Value>(sizes.size()))};
  std::vector<Value> pieces =
      c.emit("Split", {x, c.ints(sizes)}, {{"axis", axis}}, static_cast<int>(sizes.size()));
  if (!split && c.attrs.integer("keepdims", 1) == 0) {
    for (Value& piece : pieces) piece = squeeze(piece, {axis});
  }
  return {sequence(c, std::move(pieces))};
}

Bindings raise_sequence_construct(const Call& c) {
  std::vector<Value> values;
  for (size_t i = 0; i < c.inputs.size(); ++i) values.push_back(c.need(i));
  return {sequence(c, std::move(values))};
}

Bindings raise_sequence_empty(const Call& c) { return {sequence(c, {})}; }

Bindings raise_sequence_at(const Call& c) {
  const auto& from = items(c, 0);
  return {from[position(c, 1, from.size())]};
}

Bindings raise_sequence_insert(const Call& c) {
  std::vector<Value> values = items(c, 0);
  const size_t at = c.has(2) ? position(c, 2, values.size() + 1) : values.size();
  values.insert(values.begin() + static_cast<int64_t>(at), c.need(1));
  return {sequence(c, std::move(values))};
}

Bindings raise_sequence_erase(const Call& c) {
  std::vector<Value> values = items(c, 0);
  if (values.empty())
    c.fail("A sequence is empty.", "something to erase", "nothing", "Export the model again.");
  const size_t at = c.has(1) ? position(c, 1, values.size()) : values.size() - 1;
  values.erase(values.begin() + static_cast<int64_t>(at));
  return {sequence(c, std::move(values))};
}

Bindings raise_sequence_length(const Call& c) {
  return {c.graph.add_constant(Tensor::scalar(static_cast<int64_t>(items(c, 0).size())), c.name)};
}

Bindings raise_concat_from_sequence(const Call& c) {
  std::vector<Value> values = items(c, 0);
  if (values.empty())
    c.fail("A sequence is empty.", "at least one tensor", "none", "Export the model again.");
  const int64_t axis = c.attrs.integer("axis", 0);
  if (c.attrs.integer("new_axis", 0) != 0) {
    for (Value& v : values) v = unsqueeze(v, {axis});
  }
  return {c.emit1("Concat", values, {{"axis", axis}})};
}

}  // namespace steep
