#include "passes/attention_mask.h"

#include "ops/build.h"

namespace steep {
namespace {

bool is_constant(Value v) { return v && v.role() == Role::constant; }

/// The kind of a mask whose last two axes are those of `dims` and repeat along the others.
/// `open(i)` says whether element i keeps a score, `shut(i)` whether it masks the score out.
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

/// Whether `v` is 0, 1, 2 … along axis `axis` (counted from the last) and has extent 1 along the
/// others.
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

constexpr PatternRule<> kRepeated[] = {
    {.name = "fuse_attention/repeated_mask",
     .reason = "An Expand that repeats a mask along batch and heads adds no information.",
     .pattern = "y: Expand(x, _)",
     .then = [](const Match& m) {
       const Dims from = m["x"].type().dims(), to = m["y"].type().dims();
       return from.size() >= 2 && to.size() >= 2 && from.back() == to.back() &&
              from[from.size() - 2] == to[to.size() - 2];
     }}};

/// The value without Expand nodes that only repeat it along leading axes.
Value unexpanded(Value v) {
  while (apply_rules(kRepeated, v.producer(), Match())) v = v.producer().input(0);
  return v;
}

constexpr size_t kColumns = 0, kRows = 1;

bool compares_positions(const Match& m) {
  return counts_along(m["columns"], kColumns) && counts_along(m["rows"], kRows);
}

/// A causal mask that is too large for constant folding: a comparison of row and column numbers.
constexpr PatternRule<> kCausal[] = {
    {.name = "fuse_attention/causal_keep",
     .reason = "A causal mask is an attribute; as an operand it is as large as a head's scores.",
     .pattern = "LessOrEqual(columns, rows)",
     .then = compares_positions},
    {.name = "fuse_attention/causal_keep_turned",
     .reason = "A causal mask may compare rows with columns.",
     .pattern = "GreaterOrEqual(rows, columns)",
     .then = compares_positions}};

/// The same for a mask that says which scores are masked out.
constexpr PatternRule<> kCausalInverted[] = {
    {.name = "fuse_attention/causal_mask",
     .reason = "A causal mask may be true for the keys that a query must not see.",
     .pattern = "Greater(columns, rows)",
     .then = compares_positions},
    {.name = "fuse_attention/causal_mask_turned",
     .reason = "An inverted causal mask may compare rows with columns.",
     .pattern = "Less(rows, columns)",
     .then = compares_positions}};

constexpr PatternRule<double, MaskKind&> kBias[] = {
    {.name = "fuse_attention/bias_of_mask",
     .reason = "Models add -inf where a mask shuts out, and 0 elsewhere.",
     .pattern = "Where(keep, yes, no)",
     .then = [](const Match& m, double shut, MaskKind& kind) {
       const auto yes = m.number("yes"), no = m.number("no");
       if (!yes || !no) return false;
       const bool inverted = *yes <= shut && *no == 0;
       if (!inverted && !(*yes == 0 && *no <= shut)) return false;
       kind = kind_of_keep(m["keep"], inverted);
       return true;
     }}};

}  // namespace

MaskKind kind_of_keep(Value keep, bool inverted) {
  keep = unexpanded(keep);
  if (is_constant(keep)) {
    const bool* x = keep.tensor()->data<bool>();
    return kind_of_elements(
        keep.type().dims(), [&](int64_t i) { return x[i] != inverted; },
        [&](int64_t i) { return x[i] == inverted; });
  }
  const Node n = keep.producer();
  const bool causal = inverted ? apply_rules(kCausalInverted, n, Match()) != nullptr
                               : apply_rules(kCausal, n, Match()) != nullptr;
  return causal ? MaskKind::causal : MaskKind::other;
}

MaskKind kind_of_bias(Value bias, double shut) {
  bias = unexpanded(bias);
  if (is_constant(bias) && bias.dtype() == DType::f32) {
    const float* x = bias.tensor()->data<float>();
    return kind_of_elements(
        bias.type().dims(), [&](int64_t i) { return x[i] == 0; },
        [&](int64_t i) { return x[i] <= shut; });
  }
  MaskKind kind = MaskKind::other;
  apply_rules(kBias, bias.producer(), Match(), shut, kind);
  return kind;
}

std::vector<PatternRuleInfo> attention_mask_patterns() {
  return list_rules(kRepeated, kCausal, kCausalInverted, kBias);
}

}  // namespace steep
