#include "passes/head_layout.h"

#include <algorithm>

#include "ops/build.h"
#include "passes/factor.h"

namespace steep {
namespace {

Ints row_major(const Dims& dims) {
  Ints strides(dims.size(), 1);
  for (size_t i = dims.size(); i-- > 1;) strides[i - 1] = strides[i] * dims[i];
  return strides;
}

/// The permutation of a Transpose; ONNX's default written out.
Ints perm_of(Node transpose, int64_t rank) {
  Ints perm = transpose.attrs().ints("perm");
  if (perm.empty()) {
    for (int64_t i = rank; i-- > 0;) perm.push_back(i);
  }
  return perm;
}

/// Changes strides over an array of `dims` to strides over an array whose axis a has stride to[a].
/// Returns false if a head axis does not lie within one axis of the array.
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

/// A node between two layouts of the same heads. It computes the layout of x from that of y, and
/// the reverse.
struct LayoutStep {
  std::string_view name, reason;
  Pattern pattern;
  /// From x to y if `down`, else from y to x. Returns false if the layout cannot be expressed.
  bool (*then)(const Match& m, HeadLayout& layout, bool down);
};

template <bool kDivides>
bool take_factor(const Match& m, HeadLayout& layout, bool) {
  const auto c = m.number("factor");
  const double scale = c ? layout.scale * (kDivides ? 1 / *c : *c) : 0;
  if (!may_scale_product(scale) || m["y"].rank() != m["x"].rank()) return false;
  layout.scale = scale;
  return true;
}

bool take_transpose(const Match& m, HeadLayout& layout, bool down) {
  const Value x = m["x"], y = m["y"];
  const Ints perm = perm_of(m.node("y"), x.rank());
  const Ints inner = row_major(x.type().dims()), outer = row_major(y.type().dims());
  Ints to(perm.size());
  for (size_t i = 0; i < perm.size(); ++i) {
    const auto from = static_cast<size_t>(perm[i]);
    (down ? to[from] : to[i]) = down ? outer[i] : inner[from];
  }
  return restride(layout, (down ? x : y).type().dims(), to);
}

constexpr LayoutStep kSteps[] = {
    {.name = "fuse_attention/multiplied_heads",
     .reason = "A constant factor of queries or keys is one of the scores.",
     .pattern = "y: Mul(x, factor)",
     .then = take_factor<false>},
    {.name = "fuse_attention/divided_heads",
     .reason = "A constant divisor of queries or keys is one of the scores.",
     .pattern = "y: Div(x, factor)",
     .then = take_factor<true>},
    {.name = "fuse_attention/transposed_heads",
     .reason = "The operator reads and writes heads by strides, where they lie.",
     .pattern = "y: Transpose(x)",
     .then = take_transpose},
};

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
  // The column axis is last even if it has extent 1; other axes of extent 1 come first.
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
  const Node n = value.producer();
  if (!n || !n.input(0) || n.output(0) != value) return {};
  HeadLayout result = *this;
  result.value = n.input(0);
  const bool found = is_reshape(n) || apply_rules(kSteps, n, Match(), result, false) != nullptr;
  return found ? std::optional(result) : std::nullopt;
}

std::optional<HeadLayout> HeadLayout::after(Node user) const {
  HeadLayout result = *this;
  result.value = user.output(0);
  if (user.input(0) != value || !result.value) return {};
  const bool found =
      is_reshape(user) || apply_rules(kSteps, user, Match(), result, true) != nullptr;
  return found ? std::optional(result) : std::nullopt;
}

std::vector<PatternRuleInfo> head_layout_patterns() { return list_rules(kSteps); }

}  // namespace steep
