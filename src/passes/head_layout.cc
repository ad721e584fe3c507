#include "passes/head_layout.h"

#include <algorithm>

#include "ops/build.h"

namespace steep {
namespace {

Ints row_major(const Dims& dims) {
  Ints strides(dims.size(), 1);
  for (size_t i = dims.size(); i-- > 1;) strides[i - 1] = strides[i] * dims[i];
  return strides;
}

/// The permutation of a Transpose, with ONNX's default written out.
Ints perm_of(Node transpose, int64_t rank) {
  Ints perm = transpose.attrs().ints("perm");
  if (perm.empty()) {
    for (int64_t i = rank; i-- > 0;) perm.push_back(i);
  }
  return perm;
}

/// Changes strides over an array of `dims` to those over an array in which axis a has stride to[a].
/// Each head axis must lie within one axis of the array.
bool restride(HeadLayout& layout, const Dims& dims, const Ints& to) {
  const Ints strides = row_major(dims);
  for (size_t i = 0; i < kHeadAxes; ++i) {
    if (layout.extents[i] == 1) continue;
    const int64_t stride = layout.strides[i];
    bool found = false;
    for (size_t a = 0; a < dims.size() && !found; ++a) {
      if (dims[a] == 1 || stride % strides[a] != 0) continue;
      const int64_t step = stride / strides[a];
      if (step * layout.extents[i] > dims[a]) continue;
      layout.strides[i] = step * to[a];
      found = true;
    }
    if (!found) return false;
  }
  return true;
}

bool is_reshape(Node n) {
  const OpDef* def = find_op(n.op());
  return def != nullptr && def->view;
}

/// x * c or x / c: the factor; nothing otherwise.
std::optional<double> factor_of(Node n, Value x) {
  if ((n.op() != "Mul" && n.op() != "Div") || n.input(0) != x) return {};
  const auto c = scalar_constant(n.input(1));
  if (!c || *c == 0 || n.output(0).rank() != x.rank()) return {};
  return n.op() == "Mul" ? *c : 1 / *c;
}

}  // namespace

HeadLayout HeadLayout::of(Value heads, bool swapped) {
  const Dims dims = heads.type().dims();
  const Ints strides = row_major(dims);
  HeadLayout layout;
  layout.value = heads;
  layout.extents.fill(1);
  for (size_t i = 0; i < dims.size(); ++i) {
    size_t axis = kHeadAxes - dims.size() + i;
    if (swapped && axis >= 2) axis = 5 - axis;
    layout.extents[axis] = dims[i];
    layout.strides[axis] = dims[i] == 1 ? 0 : strides[i];
  }
  return layout;
}

std::optional<Ints> HeadLayout::order() const {
  Ints axes{0, 1, 2, 3};
  // Columns last even if there is only one; other axes of extent 1 first.
  std::stable_sort(axes.begin(), axes.end(), [&](int64_t a, int64_t b) {
    auto key = [&](int64_t axis) {
      if (axis == 3) return int64_t{0};
      return extents[static_cast<size_t>(axis)] == 1 ? INT64_MAX
                                                     : strides[static_cast<size_t>(axis)];
    };
    return key(a) > key(b);
  });
  int64_t stride = 1;
  for (size_t i = kHeadAxes; i-- > 0;) {
    const auto axis = static_cast<size_t>(axes[i]);
    if (extents[axis] != 1 && strides[axis] != stride) return {};
    stride *= extents[axis];
  }
  if (stride != element_count(value.type().dims())) return {};
  return axes;
}

Ints HeadLayout::perm() const {
  const Ints axes = *order();
  Ints places(kHeadAxes);
  for (size_t i = 0; i < kHeadAxes; ++i) {
    places[static_cast<size_t>(axes[i])] = static_cast<int64_t>(i);
  }
  return places;
}

Ints HeadLayout::ordered_extents() const {
  const Ints axes = *order();
  Ints result;
  for (int64_t axis : axes) result.push_back(extents[static_cast<size_t>(axis)]);
  return result;
}

std::optional<HeadLayout> HeadLayout::before() const {
  Node n = value.producer();
  if (!n || !n.input(0)) return {};
  HeadLayout result = *this;
  result.value = n.input(0);
  if (is_reshape(n)) return n.output(0) == value ? std::optional(result) : std::nullopt;
  if (const auto factor = factor_of(n, n.input(0))) {
    result.scale *= *factor;
    return result;
  }
  if (n.op() != "Transpose") return {};
  const Ints inner = row_major(n.input(0).type().dims());
  Ints to;
  for (int64_t axis : perm_of(n, value.rank())) to.push_back(inner[static_cast<size_t>(axis)]);
  return restride(result, value.type().dims(), to) ? std::optional(result) : std::nullopt;
}

std::optional<HeadLayout> HeadLayout::after(Node user) const {
  HeadLayout result = *this;
  result.value = user.output(0);
  if (user.input(0) != value || !result.value) return {};
  if (is_reshape(user)) return result;
  if (const auto factor = factor_of(user, value)) {
    result.scale *= *factor;
    return result;
  }
  if (user.op() != "Transpose") return {};
  const Ints outer = row_major(result.value.type().dims());
  const Ints perm = perm_of(user, value.rank());
  Ints to(perm.size());
  for (size_t i = 0; i < perm.size(); ++i) to[static_cast<size_t>(perm[i])] = outer[i];
  return restride(result, value.type().dims(), to) ? std::optional(result) : std::nullopt;
}

}  // namespace steep
