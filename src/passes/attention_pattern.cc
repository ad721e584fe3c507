#include "passes/attention_pattern.h"

#include <algorithm>

#include "ops/build.h"
#include "passes/factor.h"

namespace steep {
namespace {

/// Whether a Transpose swaps exactly the last two axes.
bool swaps_last(Node transpose) {
  const Ints perm = transpose.attrs().ints("perm");
  const auto rank = static_cast<int64_t>(perm.size());
  for (int64_t i = 0; i + 2 < rank; ++i) {
    if (perm[static_cast<size_t>(i)] != i) return false;
  }
  return rank >= 2 && perm[perm.size() - 2] == rank - 1 && perm[perm.size() - 1] == rank - 2;
}

bool same_dims(Value a, Value b) { return a.type().dims() == b.type().dims(); }

}  // namespace

/// A node between the scores and the product with the values, and the node of its gradient.
struct AttentionStep {
  using Stage = AttentionMatcher::Stage;

  std::string_view name, reason;
  Pattern pattern;
  bool (*then)(const Match& m, const AttentionMatcher& matcher, Attention& a);
  /// The node that makes the gradient of x from dy, with the values that `pattern` captured.
  /// Without it, both gradients are the same.
  std::optional<Pattern> gradient{};
  /// Like `then`, with the captures of both patterns.
  bool (*then_gradient)(const Match& m, Attention& a) = nullptr;
  Stage latest = Stage::factor;  ///< the stage up to which this pattern may match

  static bool take_scores(const Match& m, const AttentionMatcher&, Attention& a) {
    a.scores = m.node("scores");
    return true;
  }

  static bool take_bias(const Match& m, const AttentionMatcher& matcher, Attention& a) {
    if (m["x"] == m["bias"] || !matcher.climb(m["x"], a, Stage::keep)) return false;
    a.bias = m["bias"];
    return true;
  }

  template <bool kInverted>
  static bool take_mask(const Match& m, const AttentionMatcher& matcher, Attention& a) {
    const auto masked = m.number("masked");
    if (!masked || !matcher.climb(m["x"], a, Stage::factor)) return false;
    a.keep = m["keep"];
    a.inverted = kInverted;
    a.masked = *masked;
    return true;
  }

  template <bool kDivides>
  static bool take_factor(const Match& m, const AttentionMatcher& matcher, Attention& a) {
    const auto c = m.number("factor");
    const double scale = c ? kDivides ? 1 / *c : *c : 0;
    if (!may_scale_product(scale) || !matcher.climb(m["x"], a, Stage::factor)) return false;
    a.factor *= scale;
    return true;
  }

  static bool take_zero(const Match& m, const AttentionMatcher&, Attention& a) {
    if (!same_dims(m["x"], m["zero"])) return false;
    a.zero_nan = m.node("zero");
    a.is_nan = m.node("nan");
    return true;
  }

  static bool take_dropout(const Match& m, const AttentionMatcher&, Attention& a) {
    if (m.node("dropout").phase() != a.softmax.phase()) return false;
    a.dropout = m.node("dropout");
    return true;
  }

  static bool take_product(const Match& m, const AttentionMatcher&, Attention& a) {
    if (m["x"] == m["values"] || m.node("product").phase() != a.softmax.phase()) return false;
    a.product = m.node("product");
    return true;
  }

  static bool take_zero_gradient(const Match& m, Attention& a) {
    a.zero_nan_grad = m.node("zero_grad");
    return true;
  }

  static bool drops_the_same(const Match& m, Attention&) {
    const Node forward = m.node("dropout"), backward = m.node("dropout_grad");
    return real_of(forward, "ratio") == real_of(backward, "ratio") &&
           integer_of(forward, "stream") == integer_of(backward, "stream");
  }

  static bool swaps_values(const Match& m, Attention&) { return swaps_last(m.node("swap")); }
};

namespace {

/// Steps from the softmax up to the scores: producers of x.
constexpr AttentionStep kBetween[] = {
    {.name = "fuse_attention/scores",
     .reason = "The products of queries and keys are what the operator never holds.",
     .pattern = "scores: MatMul(_, _)",
     .then = AttentionStep::take_scores},
    {.name = "fuse_attention/bias",
     .reason = "A mask or a bias of positions is added to each tile of scores.",
     .pattern = "Add{x, bias}",
     .then = AttentionStep::take_bias,
     .latest = AttentionStep::Stage::bias},
    {.name = "fuse_attention/keep",
     .reason = "A mask says which scores stay as they are.",
     .pattern = "Where(keep, x, masked)",
     .then = AttentionStep::take_mask<false>,
     .gradient = Pattern("Where(keep, dy, 0)"),
     .latest = AttentionStep::Stage::keep},
    {.name = "fuse_attention/mask",
     .reason = "A mask says which scores are replaced.",
     .pattern = "Where(keep, masked, x)",
     .then = AttentionStep::take_mask<true>,
     .gradient = Pattern("Where(keep, 0, dy)"),
     .latest = AttentionStep::Stage::keep},
    {.name = "fuse_attention/multiply",
     .reason = "A constant factor of all scores is the operator's scale.",
     .pattern = "Mul(x, factor)",
     .then = AttentionStep::take_factor<false>,
     .gradient = Pattern("Mul(dy, factor)")},
    {.name = "fuse_attention/divide",
     .reason = "A constant divisor of all scores, such as √width, is the operator's scale, too.",
     .pattern = "Div(x, factor)",
     .then = AttentionStep::take_factor<true>,
     .gradient = Pattern("Div(dy, factor)")},
};

/// Steps from the softmax down to the product, in this order: readers of x.
constexpr AttentionStep kAfter[] = {
    {.name = "fuse_attention/zero_nan",
     .reason = "A row without keys is NaN, and PyTorch's attention has zeros there.",
     .pattern = "zero: Where(nan: IsNaN(x), 0, x)",
     .then = AttentionStep::take_zero,
     .gradient = Pattern("zero_grad: Where(nan, 0, dy)"),
     .then_gradient = AttentionStep::take_zero_gradient},
    {.name = "fuse_attention/dropout",
     .reason = "The operator draws the same numbers, a tile at a time.",
     .pattern = "dropout: steep.Dropout(x, seed)",
     .then = AttentionStep::take_dropout,
     .gradient = Pattern("dropout_grad: steep.Dropout(dy, seed)"),
     .then_gradient = AttentionStep::drops_the_same},
    {.name = "fuse_attention/product",
     .reason = "The probabilities times the values are the result.",
     .pattern = "product: MatMul(x, values)",
     .then = AttentionStep::take_product,
     .gradient = Pattern("MatMul(dy, swap: Transpose(values))"),
     .then_gradient = AttentionStep::swaps_values},
};

constexpr PatternRule<Attention&> kSoftmaxGradient[] = {
    {.name = "fuse_attention/softmax_gradient",
     .reason = "One operator computes the gradients of all operands of attention.",
     .pattern = "gradient: steep.SoftmaxGrad(dp, p)",
     .then = [](const Match& m, Attention& a) {
       if (m["dp"] == m["p"]) return false;
       a.softmax_grad = m.node("gradient");
       return true;
     }}};

constexpr PatternRule<Attention&> kValuesGradient[] = {
    {.name = "fuse_attention/values_gradient",
     .reason =
         "The gradient of the values needs the probabilities, which the operator makes again.",
     .pattern = "dv: MatMul(only swap: Transpose(weights), dy)",
     .then = [](const Match& m, Attention& a) {
       if (!swaps_last(m.node("swap"))) return false;
       a.weights_swap = m.node("swap");
       a.dv = m["dv"];
       return true;
     }}};

/// The readers of the gradient of the scores.
constexpr PatternRule<Attention&> kOperandGradients[] = {
    {.name = "fuse_attention/queries_gradient",
     .reason =
         "The gradient of the queries needs that of the scores, which the operator never holds.",
     .pattern = "da: MatMul(ds, swap: Transpose(right))",
     .then =
         [](const Match& m, Attention& a) {
           if (a.da || !swaps_last(m.node("swap"))) return false;
           a.da = m["da"];
           return true;
         }},
    {.name = "fuse_attention/keys_gradient",
     .reason = "The gradient of the keys needs that of the scores, which the operator never holds.",
     .pattern = "db: MatMul(swap: Transpose(left), ds)",
     .then =
         [](const Match& m, Attention& a) {
           if (a.db || !swaps_last(m.node("swap"))) return false;
           a.db = m["db"];
           return true;
         }},
};

bool batches_agree(const Attention& a) {
  const Dims p = a.softmax.output(0).type().dims();
  for (Value x : {a.left(), a.right(), a.values()}) {
    const Dims dims = x.type().dims();
    if (dims.size() != p.size() || !std::equal(p.begin(), p.end() - 2, dims.begin()) ||
        element_count(dims) == 0) {
      return false;
    }
  }
  return true;
}

/// The match of the gradient of `step`, if `n` is its node.
std::optional<Match> match_gradient(const Attention::Step& step, Node n, const Match& start,
                                    Attention& a) {
  const auto m = match(*step.rule->gradient, n, start);
  const auto then = step.rule->then_gradient;
  return m && (then == nullptr || then(*m, a)) ? m : std::nullopt;
}

}  // namespace

std::optional<Attention> AttentionMatcher::match(Node softmax) const {
  Attention a;
  a.softmax = softmax;
  const Value p = softmax.output(0);
  const int64_t axis = integer_of(softmax, "axis"), rank = p.rank();
  if ((rank != 3 && rank != 4) || (axis != -1 && axis != rank - 1)) return {};
  if (p.dtype() != DType::f32 && p.dtype() != DType::bf16) return {};
  const bool found = find_product(a) && climb(softmax.input(0), a, Stage::bias) &&
                     batches_agree(a) && (a.softmax_grad ? find_gradients(a) : is_private(a));
  return found ? std::optional(a) : std::nullopt;
}

bool AttentionMatcher::find_product(Attention& a) const {
  const Value p = a.softmax.output(0);
  Value x = p;
  for (const AttentionStep& rule : kAfter) {
    for (Node reader : readers_.of(x)) {
      const auto m = steep::match(rule.pattern, reader, Match().with("x", x));
      if (!m || !rule.then(*m, *this, a)) continue;
      a.after.push_back({&rule, *m});
      log_rule(rule.name, reader);
      x = reader.output(0);
      break;
    }
  }
  if (!a.product) return false;
  for (Node reader : readers_.of(p)) {
    if (apply_rules(kSoftmaxGradient, reader, Match().with("p", p), a) != nullptr) break;
  }
  return true;
}

/// From the softmax's operand up to the scores. Steps of an earlier stage than `stage` are done.
bool AttentionMatcher::climb(Value x, Attention& a, Stage stage) const {
  if (!readers_.only(x) || !same_dims(x, a.softmax.output(0))) return false;
  for (const AttentionStep& rule : kBetween) {
    if (stage > rule.latest) continue;
    const bool taken = steep::match(rule.pattern, x.producer(), Match(), [&](const Match& m) {
      if (!rule.then(m, *this, a)) return false;
      a.between.push_back({&rule, m});
      return true;
    });
    if (!taken) continue;
    log_rule(rule.name, x.producer());
    return true;
  }
  return false;
}

/// Whether all readers of `v` are among these nodes (which may be null), and `v` is no output.
bool AttentionMatcher::read_by(Value v, std::initializer_list<Node> readers) const {
  if (graph_.is_output(v)) return false;
  return std::all_of(readers_.of(v).begin(), readers_.of(v).end(), [&](Node reader) {
    return std::find(readers.begin(), readers.end(), reader) != readers.end();
  });
}

/// Finds the gradient of the values first, because it leads to the gradient of the scores.
bool AttentionMatcher::find_gradients(Attention& a) const {
  Value d = a.softmax_grad.input(0);
  for (const Attention::Step& step : a.after) {
    if (!readers_.only(d)) return false;
    const auto m = match_gradient(step, d.producer(), step.match, a);
    if (!m) return false;
    d = (*m)["dy"];
  }
  a.dy = d;
  const Value weights = a.product.input(0);
  const Match start = Match(readers_).with("weights", weights).with("dy", a.dy);
  for (Node reader : readers_.of(weights)) {
    const Node product = reader == a.product ? Node() : readers_.only(reader.output(0));
    if (product && apply_rules(kValuesGradient, product, start, a) != nullptr) break;
  }
  return is_private(a) && find_gradients_of_scores(a);
}

/// Whether all values between softmax and product are read inside of the pattern only.
bool AttentionMatcher::is_private(const Attention& a) const {
  const Value p = a.softmax.output(0);
  const Node after_zero = a.dropout ? a.dropout : a.product;
  const Node taker = a.zero_nan ? a.zero_nan : after_zero;
  const Node direct_swap = a.zero_nan || a.dropout ? Node() : a.weights_swap;
  if (!read_by(p, {taker, a.is_nan, a.softmax_grad, direct_swap})) return false;
  if (a.is_nan && !read_by(a.is_nan.output(0), {a.zero_nan, a.zero_nan_grad})) return false;
  if (a.zero_nan &&
      !read_by(a.zero_nan.output(0), {after_zero, a.dropout ? Node() : a.weights_swap}))
    return false;
  return !a.dropout || read_by(a.dropout.output(0), {a.product, a.weights_swap});
}

/// From the softmax's gradient to the gradients of the operands of the scores.
bool AttentionMatcher::find_gradients_of_scores(Attention& a) const {
  Value ds = a.softmax_grad.output(0);
  for (auto step = a.between.rbegin(); step != a.between.rend(); ++step) {
    if (!step->rule->gradient) continue;
    const Node gradient = readers_.only(ds);
    if (!match_gradient(*step, gradient, step->match.with("dy", ds), a)) return false;
    ds = gradient.output(0);
  }
  if (graph_.is_output(ds)) return false;
  const Match start = Match().with("ds", ds).with("left", a.left()).with("right", a.right());
  return std::all_of(readers_.of(ds).begin(), readers_.of(ds).end(), [&](Node reader) {
    return apply_rules(kOperandGradients, reader, start, a) != nullptr;
  });
}

std::vector<PatternRuleInfo> attention_patterns() {
  return list_rules(kBetween, kAfter, kSoftmaxGradient, kValuesGradient, kOperandGradients);
}

}  // namespace steep
