// Replaces scaled dot-product attention, forward and backward (passes/attention_pattern.h), by
// steep.Attention and steep.AttentionGrad, which never store the score matrix. Also removes
// reshapes, transposes and constant factors around the heads: the operator reads and writes heads
// by strides.

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "ops/build.h"
#include "passes/attention_mask.h"
#include "passes/attention_pattern.h"
#include "passes/head_layout.h"
#include "passes/pipeline.h"

namespace steep {
namespace {

/// The layout at the farthest value above an operand that holds the same heads in one piece.
/// `factors`: whether constant factors may lie between.
std::optional<HeadLayout> source(HeadLayout layout, bool factors) {
  std::optional<HeadLayout> best;
  for (std::optional<HeadLayout> at = layout; at; at = at->before()) {
    if (at->scale != 1 && !factors) break;
    if (at->order()) best = at;
  }
  return best;
}

/// The layout at the farthest value below a result that holds the same heads in one piece. The
/// constant factors between must multiply to `scale`.
std::optional<HeadLayout> destination(const Readers& readers, HeadLayout layout, double scale) {
  std::optional<HeadLayout> best;
  std::optional<HeadLayout> at = layout;
  while (at) {
    if (std::abs(at->scale - scale) <= 1e-12 * std::abs(scale) && at->order()) best = at;
    Node user = readers.only(at->value);
    at = user ? at->after(user) : std::nullopt;
  }
  return best;
}

class Rewriter {
 public:
  Rewriter(Graph& g, const Readers& readers, const Attention& a)
      : g_(g), readers_(readers), a_(a) {}

  bool run() {
    const auto q = source(HeadLayout::of(a_.left(), false), true);
    const auto k = source(HeadLayout::of(a_.right(), true), true);
    const auto v = source(HeadLayout::of(a_.values(), false), false);
    const auto y = destination(readers_, HeadLayout::of(a_.product.output(0), false), 1);
    if (!q || !k || !v || !y) return false;
    std::optional<HeadLayout> dy, dq, dk, dv;
    if (a_.softmax_grad) {
      dy = source(HeadLayout::of(a_.dy, false), false);
      dq = a_.da ? destination(readers_, HeadLayout::of(a_.da, false), q->scale) : q;
      dk = a_.db ? destination(readers_, HeadLayout::of(a_.db, true), k->scale) : k;
      dv = a_.dv ? destination(readers_, HeadLayout::of(a_.dv, false), 1) : v;
      if (!dy || !dq || !dk || !dv) return false;
    }
    Attrs attrs = attributes(*q, *k, *v, *y);
    std::vector<Value> extras;
    std::vector<Value> inputs;
    std::vector<Value> results;
    place(a_.product, [&] {
      extras = masks(attrs);
      inputs = {operand(*q), operand(*k), operand(*v)};
      std::vector<Value> all = inputs;
      all.insert(all.end(), extras.begin(), extras.end());
      results = apply_n("steep.Attention", all, 3, attrs);
      replace(*y, results[0]);
    });
    if (!a_.softmax_grad) return true;
    place(a_.softmax_grad, [&] {
      attrs.set("perm_dy", dy->perm());
      attrs.set("perm_dq", *dq->order());
      attrs.set("perm_dk", *dk->order());
      attrs.set("perm_dv", *dv->order());
      std::vector<Value> all{operand(*dy)};
      all.insert(all.end(), inputs.begin(), inputs.end());
      all.insert(all.end(), results.begin(), results.end());
      all.insert(all.end(), extras.begin(), extras.end());
      const auto grads = apply_n("steep.AttentionGrad", all, 3, attrs);
      if (a_.da) replace(*dq, grads[0]);
      if (a_.db) replace(*dk, grads[1]);
      if (a_.dv) replace(*dv, grads[2]);
    });
    return true;
  }

 private:
  Attrs attributes(const HeadLayout& q, const HeadLayout& k, const HeadLayout& v,
                   const HeadLayout& y) const {
    Attrs attrs{{"scale", a_.factor * q.scale * k.scale},
                {"perm_q", q.perm()},
                {"perm_k", k.perm()},
                {"perm_v", v.perm()},
                {"perm_y", *y.order()}};
    if (a_.zero_nan) attrs.set("zero_nan", int64_t{1});
    if (a_.zero_shut) attrs.set("zero_shut", int64_t{1});
    if (a_.dropout) {
      attrs.set("ratio", real_of(a_.dropout, "ratio"));
      attrs.set("stream", integer_of(a_.dropout, "stream"));
    }
    return attrs;
  }

  /// Gives the nodes that `add` makes the place of `like`.
  template <typename Add>
  void place(Node like, Add&& add) {
    Graph::Scope scope(g_, like.phase(), like.name());
    const auto first = static_cast<uint32_t>(g_.node_slots());
    add();
    for (uint32_t id = first; id < g_.node_slots(); ++id) g_.place_like(Node(&g_, id), like);
  }

  /// The operands bias, keep and seed. Absent ones at the end are left out, and so are masks that
  /// an attribute can express.
  std::vector<Value> masks(Attrs& attrs) {
    Value bias = a_.bias, keep = a_.keep;
    bool causal = false;
    auto dispensable = [&](MaskKind kind) {
      causal = causal || kind == MaskKind::causal;
      return kind != MaskKind::other;
    };
    // A finite mask value matters if the other mask leaves no key.
    const bool alone = !keep || kind_of_keep(keep, a_.inverted) != MaskKind::other;
    const double shut = alone ? kShutOut : -std::numeric_limits<double>::infinity();
    if (bias && dispensable(kind_of_bias(bias, shut))) bias = Value();
    const bool shuts = std::isinf(a_.masked) || (a_.masked <= kShutOut && !bias);
    if (keep && shuts && dispensable(kind_of_keep(keep, a_.inverted))) keep = Value();
    if (causal) attrs.set("causal", int64_t{1});
    if (keep) attrs.set("masked", a_.masked);
    if (bias) bias = cast(bias, DType::f32);
    if (keep && a_.inverted) keep = apply("Not", {keep});
    std::vector<Value> all{bias, keep, a_.dropout ? a_.dropout.input(1) : Value()};
    while (!all.empty() && !all.back()) all.pop_back();
    return all;
  }

  static Value shaped(Value x, const Ints& dims) {
    return x.type().dims() == dims ? x : reshape(x, dims);
  }
  static Value operand(const HeadLayout& from) {
    return shaped(from.value, from.ordered_extents());
  }
  void replace(const HeadLayout& at, Value result) {
    g_.replace_uses(at.value, shaped(result, at.value.type().dims()));
  }

  Graph& g_;
  const Readers& readers_;
  const Attention& a_;
};

class Fuser {
 public:
  Fuser(Graph& g, int64_t least_keys) : g_(g), least_keys_(least_keys) {}

  void run();

  /// Replaces the attention around the softmax, if there is one. Returns whether it did.
  bool fuse(Node softmax, bool zero_shut) {
    const Dims scores = softmax.output(0).type().dims();
    if (scores.empty() || scores.back() < least_keys_) return false;
    if (!matcher_) matcher_.emplace(g_);
    std::optional<Attention> a = matcher_->match(softmax);
    if (!a) return false;
    a->zero_shut = zero_shut;
    const bool done = Rewriter(g_, matcher_->readers(), *a).run();
    if (done) g_.prune();
    matcher_.reset();  // the readers are outdated after a rewrite
    return done;
  }

 private:
  Graph& g_;
  int64_t least_keys_;
  std::optional<AttentionMatcher> matcher_{};
};

constexpr PatternRule<Fuser&> kRules[] = {
    {.name = "fuse_attention/softmax",
     .reason =
         "Attention in tiles never holds the scores, which grow with the square of the length.",
     .pattern = "softmax: Softmax(_)",
     .then = [](const Match& m, Fuser& f) { return f.fuse(m.node("softmax"), false); }},
    {.name = "fuse_attention/safe_softmax",
     .reason = "Rows without keys may be zeros (PyTorch's _safe_softmax).",
     .pattern = "softmax: steep.SafeSoftmax(_)",
     .then = [](const Match& m, Fuser& f) { return f.fuse(m.node("softmax"), true); }},
};

void Fuser::run() {
  for (Node n : g_.nodes()) apply_rules(kRules, n, Match(), *this);
}

}  // namespace

void fuse_attention(Graph& g) { Fuser(g, 0).run(); }

void fuse_long_attention(Graph& g) {
  // The tiles multiply in float32, separate products in bfloat16. Up to 512 keys tiles made a step
  // 4 % slower. From this length on, memory that grows with the square of the length matters more.
  constexpr int64_t kLong = 1024;
  Fuser(g, kLong).run();
}

std::vector<PatternRuleInfo> fuse_attention_patterns() {
  std::vector<PatternRuleInfo> rules = list_rules(kRules);
  for (const auto& part : {attention_patterns(), head_layout_patterns(), attention_mask_patterns()})
    rules.insert(rules.end(), part.begin(), part.end());
  return rules;
}

}  // namespace steep
