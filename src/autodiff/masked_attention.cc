#include "autodiff/masked_attention.h"

#include <limits>
#include <unordered_set>
#include <utility>

#include "autodiff/read_rows.h"
#include "ops/build.h"

namespace steep {
namespace {

constexpr double kHides = -1e30;  // finite mask values up to this hide a key if another is visible
constexpr size_t kMostOfMask = 128;  // nodes between inputs and the mask
constexpr double kMostOfElements = double{1 << 24};

bool equal_extents(Value a, int64_t i, Value b, int64_t j) {
  return provably_equal(a.shape()[static_cast<size_t>(i)], b.shape()[static_cast<size_t>(j)]);
}

bool has_axes(Value v, int64_t rank) { return v && v.type().shape && v.rank() == rank; }

/// The walk from the softmax's operand up to the scores.
struct Climb {
  const Readers& readers;
  MaskedAttention& a;
  bool masks = true;  ///< whether further masks may follow
};

bool climb(Value x, const Climb& c);

bool climb_past(Value x, const Climb& c, const ScoreMask& mask) {
  c.a.masks.push_back(mask);
  if (climb(x, c)) return true;
  c.a.masks.pop_back();
  return false;
}

template <bool kInverted>
bool climb_past_where(const Match& m, const Climb& c) {
  const ScoreMask mask{{}, m["keep"], m["otherwise"], kInverted};
  return c.masks && climb_past(m["x"], c, mask);
}

/// Nodes between the scores and the softmax.
constexpr PatternRule<const Climb&> kBetween[] = {
    {.name = "compute_read_rows/scores",
     .reason = "The products of queries and keys show which tokens are the keys.",
     .pattern = "scores: MatMul(left, right)",
     .then =
         [](const Match& m, const Climb& c) {
           c.a.scores = m.node("scores");
           return has_axes(m["left"], 4) && has_axes(m["right"], 4);
         }},
    {.name = "compute_read_rows/added_mask",
     .reason = "The lowest number, added to a score, hides its key.",
     .pattern = "Add{x, mask}",
     .then =
         [](const Match& m, const Climb& c) {
           const ScoreMask mask{m["mask"], {}, {}};
           return c.masks && m["x"] != m["mask"] && climb_past(m["x"], c, mask);
         }},
    {.name = "compute_read_rows/scores_that_stay",
     .reason = "The lowest number stands for a score where a mask is false.",
     .pattern = "Where(keep, x, otherwise)",
     .then = climb_past_where<false>},
    {.name = "compute_read_rows/scores_that_go",
     .reason = "The lowest number stands for a score where a mask is true.",
     .pattern = "Where(keep, otherwise, x)",
     .then = climb_past_where<true>},
    {.name = "compute_read_rows/scale",
     .reason = "A factor between the mask and the scores changes no score that is hidden.",
     .pattern = "Mul|Div(x, by)",
     .then =
         [](const Match& m, const Climb& c) {
           const Value by = m["by"];
           return by.type().shape && by.rank() <= 1 && climb(m["x"], {c.readers, c.a, false});
         }},
};

bool climb(Value x, const Climb& c) {
  return x.producer() && c.readers.only(x) && has_axes(x, 4) &&
         apply_rules(kBetween, x.producer(), Match(), c) != nullptr;
}

/// Nodes between the softmax, whose result is x, and the product.
constexpr PatternRule<> kDropout[] = {
    {.name = "compute_read_rows/dropout",
     .reason = "Dropout of probabilities shows no key that the mask hides.",
     .pattern = "steep.Dropout(x, _)"},
    {.name = "compute_read_rows/dropout_of_rows",
     .reason =
         "Where queries were left out, the others keep their random numbers (read_queries.h).",
     .pattern = "Reshape(only rows: steep.DropoutRows(only matrix: Flatten(x), ...), ...)"}};

/// The reader of the probabilities x.
constexpr PatternRule<MaskedAttention&> kProduct[] = {
    {.name = "compute_read_rows/product",
     .reason = "Values have the probabilities of their keys, and those of hidden ones are zeros.",
     .pattern = "product: MatMul(x, values)",
     .then = [](const Match& m, MaskedAttention& a) {
       a.product = m.node("product");
       return has_axes(m["values"], 4);
     }}};

bool find_product(const Readers& readers, Value p, MaskedAttention& a) {
  Node reader = readers.only(p);
  const auto below = [&](Node n) { return n ? readers.only(n.output(0)) : Node(); };
  for (const Node dropout : {reader, below(below(reader))}) {
    if (apply_rules(kDropout, dropout, Match(readers).with("x", p)) == nullptr) continue;
    p = dropout.output(0);
    reader = readers.only(p);
    break;
  }
  return apply_rules(kProduct, reader, Match().with("x", p), a) != nullptr;
}

/// Whether all operands have the same sequences, and keys and values have the same tokens.
bool fits(const MaskedAttention& a) {
  const Value q = a.scores.input(0), k = a.scores.input(1), v = a.product.input(1);
  return equal_extents(q, 0, k, 0) && equal_extents(q, 0, v, 0) && equal_extents(k, 3, v, 2) &&
         q != k && has_axes(a.product.output(0), 4) && a.product.input(0) != v;
}

bool find_attention(const Match& m, const Readers& readers, MaskedAttention& a) {
  const Value p = m["softmax"];
  a.softmax = m.node("softmax");
  if (!has_axes(p, 4) || p.dtype() != DType::f32) return false;
  const int64_t axis = integer_of(a.softmax, "axis");
  if ((axis != -1 && axis != 3) || !climb(m["x"], {readers, a})) return false;
  // A Where after another mask could make hidden keys visible again.
  for (size_t i = 0; i + 1 < a.masks.size(); ++i) {
    if (a.masks[i].keep) return false;
  }
  return find_product(readers, p, a) && fits(a);
}

constexpr PatternRule<const Readers&, MaskedAttention&> kAttention[] = {
    {.name = "compute_read_rows/attention",
     .reason = "Keys that the mask hides, and queries that no node reads, need not be computed.",
     .pattern = "softmax: Softmax|steep.SafeSoftmax(x)",
     .then = find_attention}};

/// Whether reading the whole mask would cost much time compared with the step.
bool is_long(Value mask) {
  double size = 1;
  for (const Dim& d : mask.shape()) size *= d.known() ? static_cast<double>(d.value()) : 1;
  return size > kMostOfElements;
}

}  // namespace

std::optional<MaskedAttention> match_masked_attention(const Readers& readers, Node softmax) {
  MaskedAttention a;
  if (apply_rules(kAttention, softmax, Match(), readers, a) == nullptr) return {};
  return a;
}

std::vector<PatternRuleInfo> masked_attention_patterns() {
  return list_rules(kAttention, kBetween, kDropout, kProduct);
}

Value seen_through(const ScoreMask& mask, Value keys, bool alone) {
  Graph& g = keys.graph();
  const Value tensor = mask.added ? mask.added : mask.keep;
  if (!has_axes(tensor, 4) || !equal_extents(tensor, 0, keys, 0) ||
      !equal_extents(tensor, 3, keys, 3))
    return {};
  Value m = mask.added;
  if (mask.keep) {
    const Value other = mask.otherwise;
    if (!other.type().shape || other.rank() > 1) return {};
    const bool one = other.rank() == 0 || provably_equal(other.shape()[0], Dim(1));
    if (!one || other.dtype() != DType::f32) return {};
    const Value zero = scalar(g, 0, DType::f32);
    m = mask.inverted ? where(mask.keep, other, zero) : where(mask.keep, zero, other);
  }
  if (m.dtype() != DType::f32 || is_long(m)) return {};
  const auto makers = makers_of_rows(m);
  if (!makers || makers->size() > kMostOfMask) return {};
  const auto any = [&](Value x, const Ints& axes, int64_t keepdims) {
    return apply("ReduceMax", {x, ints(g, axes)}, {{"keepdims", keepdims}});
  };
  const double infinity = std::numeric_limits<double>::infinity();
  Value hidden = equal(m, -infinity);
  if (alone) {  // NaN hides nothing
    const Value low = less_or_equal(m, kHides);
    const Value sees = any(cast(apply("Not", {low}), DType::f32), {-1}, 1);
    hidden = apply("Or", {hidden, apply("And", {low, greater(sees, 0.5)})});
  }
  return any(cast(apply("Not", {hidden}), DType::f32), {1, 2}, 0);
}

bool reads_inputs(Value v, const Dim& sequences) {
  std::vector<Value> open{v};
  std::unordered_set<uint32_t> ids;
  while (!open.empty()) {
    const Value x = open.back();
    open.pop_back();
    if (!x || x.role() == Role::constant || !ids.insert(x.id()).second) continue;
    const Node n = x.producer();
    if (!n) {
      const bool weight = is_float(x.dtype()) && (!x.type().shape || x.shape().empty() ||
                                                  !provably_equal(x.shape()[0], sequences));
      if (!weight) return true;
      continue;
    }
    const OpDef* def = find_op(n.op());
    if (def != nullptr && def->dataless) continue;
    for (int i = 0; i < n.input_count(); ++i) open.push_back(n.input(i));
  }
  return false;
}

}  // namespace steep
