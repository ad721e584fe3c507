#include "passes/attention_mask.h"

#include "ops/build.h"

namespace steep {
namespace {

bool is_constant(Value v) { return v && v.role() == Role::constant; }

/// Of a mask of the last two axes of `dims`, repeated along the others. `open(i)` says whether
/// element i lets through, `shut(i)` whether it shuts out.
template <typename Open, typename Shut>
MaskKind kind_of_elements(const Dims& dims, Open&& open, Shut&& shut) {
  const int64_t columns = dims.empty() ? 1 : dims.back();
  const int64_t rows = dims.size() < 2 ? 1 : dims[dims.size() - 2];
  bool nothing = true, causal = rows > 1 && columns > 1;
  const int64_t size = element_count(dims);
  for (int64_t i = 0; i < size && (nothing || causal); ++i) {
    const bool behind = i % columns > i / columns % rows;
    nothing = nothing && open(i);
    causal = causal && (behind ? shut(i) : open(i));
  }
  if (size == 0) return MaskKind::other;
  return nothing ? MaskKind::nothing : causal ? MaskKind::causal : MaskKind::other;
}

/// Is `v` 0, 1, 2 … along axis `axis` (counted from the back) and of extent 1 along the others?
bool counts_along(Value v, size_t axis) {
  if (!is_constant(v) || v.dtype() != DType::i64) return false;
  const Dims dims = v.type().dims();
  for (size_t i = 0; i < dims.size(); ++i) {
    if (dims[dims.size() - 1 - i] != 1 && i != axis) return false;
  }
  const int64_t* x = v.tensor()->data<int64_t>();
  for (int64_t i = 0; i < v.tensor()->size(); ++i) {
    if (x[i] != i) return false;
  }
  return dims.size() > axis && v.tensor()->size() > 1;
}

/// Without what only repeats it along leading axes.
Value unexpanded(Value v) {
  while (Node n = v.producer()) {
    if (n.op() != "Expand") break;
    const Dims from = n.input(0).type().dims(), to = v.type().dims();
    if (from.size() < 2 || to.size() < 2 || from.back() != to.back() ||
        from[from.size() - 2] != to[to.size() - 2]) {
      break;
    }
    v = n.input(0);
  }
  return v;
}

}  // namespace

MaskKind kind_of_keep(Value keep, bool inverted) {
  keep = unexpanded(keep);
  if (is_constant(keep)) {
    const bool* x = keep.tensor()->data<bool>();
    return kind_of_elements(
        keep.type().dims(), [&](int64_t i) { return x[i] != inverted; },
        [&](int64_t i) { return x[i] == inverted; });
  }
  // Too large to be folded: row and column numbers compared.
  Node n = keep.producer();
  if (!n || n.input_count() != 2) return MaskKind::other;
  constexpr size_t kColumns = 0, kRows = 1;
  Value columns = n.input(0), rows = n.input(1);
  std::string op = n.op();
  if (counts_along(rows, kColumns)) {
    std::swap(columns, rows);
    if (op == "GreaterOrEqual") {
      op = "LessOrEqual";
    } else if (op == "Less") {
      op = "Greater";
    } else {
      return MaskKind::other;
    }
  }
  const bool fits = op == (inverted ? "Greater" : "LessOrEqual");
  return fits && counts_along(columns, kColumns) && counts_along(rows, kRows) ? MaskKind::causal
                                                                              : MaskKind::other;
}

MaskKind kind_of_bias(Value bias) {
  bias = unexpanded(bias);
  if (is_constant(bias) && bias.dtype() == DType::f32) {
    const float* x = bias.tensor()->data<float>();
    return kind_of_elements(
        bias.type().dims(), [&](int64_t i) { return x[i] == 0; },
        [&](int64_t i) { return x[i] <= kShutOut; });
  }
  Node n = bias.producer();
  if (!n || n.op() != "Where") return MaskKind::other;
  const auto yes = scalar_constant(n.input(1)), no = scalar_constant(n.input(2));
  if (!yes || !no) return MaskKind::other;
  const bool inverted = *yes <= kShutOut && *no == 0;
  if (!inverted && !(*yes == 0 && *no <= kShutOut)) return MaskKind::other;
  return kind_of_keep(n.input(0), inverted);
}

}  // namespace steep
