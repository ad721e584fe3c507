// Sequences at run time. Their items are shared, never copied.

#include <fmt/format.h>

#include <algorithm>

#include "flow/rules.h"
#include "flow/slices.h"
#include "ops/op_def.h"

namespace steep {
namespace {

constexpr size_t kLongest = 1'000'000;

/// A position, counted from the front, up to `size` inclusive if that is one past the last item.
int64_t position(const DynamicCall& c, size_t input, size_t size) {
  const auto n = static_cast<int64_t>(size);
  const int64_t at = c.integer(input);
  if (at < -n || at >= n) {
    c.fail("A position in a sequence is out of range.", fmt::format("{} to {}", -n, n - 1),
           fmt::format("{}", at));
  }
  return at < 0 ? at + n : at;
}

int64_t axis_of(const DynamicCall& c, size_t rank) {
  const int64_t axis = integer_of(c.node, "axis");
  const auto n = static_cast<int64_t>(rank);
  if (axis < -n || axis >= n) {
    c.fail("An axis is out of range.", fmt::format("{} to {}", -n, n - 1), fmt::format("{}", axis));
  }
  return axis < 0 ? axis + n : axis;
}

std::vector<Datum> sequence(const DynamicCall& c, Datum::Items items) {
  if (items.size() > kLongest) {
    c.fail("A sequence is too long.", fmt::format("at most {} items", kLongest),
           fmt::format("{}", items.size()), "Use one tensor instead of a sequence.");
  }
  return {Datum(std::move(items))};
}

Datum zeros_of(const Datum& d) {
  if (d.empty()) return {};
  if (d.is_tensor()) return Tensor::zeros(d.tensor().dtype(), d.tensor().dims());
  Datum::Items items;
  for (const Datum& item : d.items()) items.push_back(zeros_of(item));
  return {std::move(items)};
}

template <typename T>
void add(const Tensor& a, const Tensor& b, Tensor& y) {
  for (int64_t i = 0; i < a.size(); ++i) y.data<T>()[i] = a.data<T>()[i] + b.data<T>()[i];
}

Datum sum_of(const DynamicCall& c, const Datum& a, const Datum& b) {
  if (a.empty()) return b;
  if (b.empty()) return a;
  if (a.is_sequence() && b.is_sequence() && a.items().size() == b.items().size()) {
    Datum::Items items;
    for (size_t i = 0; i < a.items().size(); ++i)
      items.push_back(sum_of(c, a.items()[i], b.items()[i]));
    return {std::move(items)};
  }
  const Tensor& x = a.tensor();
  const Tensor& y = b.tensor();
  if (x.dims() != y.dims() || x.dtype() != y.dtype())
    c.fail("The gradients of a sequence do not match.", a.text(), b.text());
  Tensor sum = Tensor::empty(x.dtype(), x.dims());
  if (x.dtype() == DType::f32) {
    add<float>(x, y, sum);
  } else if (x.dtype() == DType::f64) {
    add<double>(x, y, sum);
  } else {
    c.fail("The gradients of a sequence have a type that cannot be added.", "float32 or float64",
           a.text(), "Cast to float32 before the sequence.");
  }
  return {sum};
}

}  // namespace

std::vector<Datum> run_sequence_construct(const DynamicCall& c) {
  return sequence(c, {c.inputs.begin(), c.inputs.end()});
}

std::vector<Datum> run_sequence_empty(const DynamicCall& c) { return sequence(c, {}); }

std::vector<Datum> run_sequence_length(const DynamicCall& c) {
  return {Tensor::scalar(static_cast<int64_t>(c.items(0).size()))};
}

std::vector<Datum> run_sequence_at(const DynamicCall& c) {
  const auto& items = c.items(0);
  return {items[static_cast<size_t>(position(c, 1, items.size()))]};
}

std::vector<Datum> run_sequence_insert(const DynamicCall& c) {
  Datum::Items items = c.items(0);
  const auto at = c.has(2) ? position(c, 2, items.size() + 1) : static_cast<int64_t>(items.size());
  items.insert(items.begin() + at, c.inputs[1]);
  return sequence(c, std::move(items));
}

std::vector<Datum> run_sequence_erase(const DynamicCall& c) {
  Datum::Items items = c.items(0);
  if (items.empty()) c.fail("A sequence is empty.", "something to erase", "nothing");
  const auto at = c.has(1) ? position(c, 1, items.size()) : static_cast<int64_t>(items.size()) - 1;
  items.erase(items.begin() + at);
  return sequence(c, std::move(items));
}

// Without `split` each piece has one element, and loses the axis unless keepdims.
std::vector<Datum> run_split_to_sequence(const DynamicCall& c) {
  const Tensor& x = c.tensor(0);
  const int64_t axis = axis_of(c, x.dims().size());
  const int64_t extent = x.dims()[static_cast<size_t>(axis)];
  std::vector<int64_t> sizes;
  if (c.has(1) && c.tensor(1).dims().size() == 1) {
    sizes = c.tensor(1).to_ints();
    int64_t total = 0;
    for (int64_t size : sizes) {
      if (size < 0 || __builtin_add_overflow(total, size, &total)) total = -1;
      if (total < 0 || total > extent) break;
    }
    if (total != extent)
      c.fail("The sizes of a split do not add up to the extent of the axis.",
             fmt::format("{} in all", extent), fmt::format("{}", total));
  } else {
    const int64_t piece = c.has(1) ? c.integer(1) : 1;
    if (piece < 1)
      c.fail("The size of a split's parts is less than 1.", "at least 1", fmt::format("{}", piece));
    if (extent / piece >= static_cast<int64_t>(kLongest)) sequence(c, Datum::Items(kLongest + 1));
    for (int64_t left = extent; left > 0; left -= piece) sizes.push_back(std::min(piece, left));
  }
  const bool drop = !c.has(1) && integer_of(c.node, "keepdims") == 0;
  Datum::Items items;
  int64_t begin = 0;
  for (int64_t size : sizes) {
    Tensor piece = slice(x, axis, begin, size);
    items.emplace_back(drop ? without_axis(piece, axis) : std::move(piece));
    begin += size;
  }
  return sequence(c, std::move(items));
}

std::vector<Datum> run_concat_from_sequence(const DynamicCall& c) {
  const auto& items = c.items(0);
  if (items.empty()) c.fail("A sequence is empty.", "at least one tensor", "none");
  const bool fresh = integer_of(c.node, "new_axis") != 0;
  const size_t rank = items[0].tensor().dims().size();
  const int64_t axis = axis_of(c, rank + (fresh ? 1 : 0));
  std::vector<Tensor> parts;
  for (const Datum& d : items) {
    if (d.tensor().dims().size() != rank)
      c.fail("The tensors of a sequence do not match.", items[0].text(), d.text());
    parts.push_back(fresh ? with_axis(d.tensor(), axis) : d.tensor());
  }
  return {concat(parts, axis)};
}

std::vector<Datum> run_sequence_extents(const DynamicCall& c) {
  std::vector<int64_t> extents;
  for (const Datum& d : c.items(0)) {
    const Dims& dims = d.tensor().dims();
    extents.push_back(dims[static_cast<size_t>(axis_of(c, dims.size()))]);
  }
  return {Tensor::from(extents, {static_cast<int64_t>(extents.size())})};
}

std::vector<Datum> run_zeros_like(const DynamicCall& c) { return {zeros_of(c.inputs[0])}; }

std::vector<Datum> run_sum_of(const DynamicCall& c) {
  return {sum_of(c, c.inputs[0], c.inputs[1])};
}

}  // namespace steep
