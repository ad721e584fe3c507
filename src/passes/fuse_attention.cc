// Scaled dot-product attention, forward and backward, becomes steep.Attention and
// steep.AttentionGrad, which never hold the score matrix.
//
//   MatMul → (· c) → (Where keep) → (+ bias) → Softmax → (0 where NaN) → (Dropout) → MatMul
//
// where Softmax may be steep.SafeSoftmax, and what differentiation made of it. Reshapes, transposes
// and constant factors around the heads go too: the operator reads and writes heads where they lie.
// The pattern is left alone when anybody else reads scores or probabilities (an output of the
// model, the gradient of a mask), and in double precision.

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "ops/build.h"
#include "passes/attention_mask.h"
#include "passes/head_layout.h"
#include "passes/pipeline.h"

namespace steep {
namespace {

bool is_swap(Node n) {
  if (!n || n.op() != "Transpose") return false;
  const Ints perm = n.attrs().ints("perm");
  const auto rank = static_cast<int64_t>(perm.size());
  for (int64_t i = 0; i + 2 < rank; ++i) {
    if (perm[static_cast<size_t>(i)] != i) return false;
  }
  return rank >= 2 && perm[perm.size() - 2] == rank - 1 && perm[perm.size() - 1] == rank - 2;
}

/// Is `swapped` `x` with its last two axes swapped?
bool is_swap_of(Value swapped, Value x) {
  return is_swap(swapped.producer()) && swapped.producer().input(0) == x;
}

bool same_dims(Value a, Value b) { return a.type().dims() == b.type().dims(); }

/// Everything that the rewrite must know of one attention.
struct Attention {
  Node scores;                     // q kᵀ
  std::vector<Node> between;       // from scores to softmax, in that order
  Node softmax, is_nan, zero_nan;  // the last two may be null
  Node dropout;                    // or null
  Node product;                    // p v
  Value bias, keep;                // or null
  bool inverted = false;           // keep says what to mask
  double factor = 1, masked = -std::numeric_limits<double>::infinity();

  Node softmax_grad;     // null when nobody asks for gradients
  Value dy, da, db, dv;  // of the products' operands; null where nobody asks

  Value left() const { return scores.input(0); }
  Value right() const { return scores.input(1); }
  Value values() const { return product.input(1); }
};

class Matcher {
 public:
  explicit Matcher(const Graph& g) : users_(g.users()), kept_(g.value_count(), 0) {
    for (const Output& o : g.outputs()) kept_[o.value.id()] = 1;
    for (const Update& u : g.updates()) kept_[u.value.id()] = 1;
  }

  bool match(Node softmax, Attention& a) const {
    a.softmax = softmax;
    return forward(a) && climb(softmax.input(0), a, Stage::bias) && batches_agree(a) &&
           (a.softmax_grad ? backward(a) : is_private(a, Node(), Node()));
  }

  /// The one node that reads v, if nobody else does.
  Node only_user(Value v) const {
    return !kept_[v.id()] && users_[v.id()].size() == 1 ? users_[v.id()][0] : Node();
  }

 private:
  /// From the probabilities down to the product with the values.
  bool forward(Attention& a) const {
    Value p = a.softmax.output(0);
    const int64_t axis = integer_of(a.softmax, "axis"), rank = p.rank();
    if ((rank != 3 && rank != 4) || (axis != -1 && axis != rank - 1)) return false;
    if (p.dtype() != DType::f32 && p.dtype() != DType::bf16) return false;
    Value probabilities = p;
    for (Node u : users_[p.id()]) {
      if (u.op() == "IsNaN") a.is_nan = u;
      if (u.op() == "Where" && u.input(2) == p) a.zero_nan = u;
    }
    if (a.zero_nan) {
      if (!a.is_nan || a.zero_nan.input(0) != a.is_nan.output(0) ||
          scalar_constant(a.zero_nan.input(1)) != 0.0 || !same_dims(p, a.zero_nan.output(0))) {
        return false;
      }
      probabilities = a.zero_nan.output(0);
    }
    for (Node u : users_[probabilities.id()]) {
      if (u.op() == "steep.Dropout" && u.phase() == a.softmax.phase()) a.dropout = u;
    }
    Value weights = a.dropout ? a.dropout.output(0) : probabilities;
    for (Node u : users_[weights.id()]) {
      if (u.op() == "MatMul" && u.input(0) == weights && u.phase() == a.softmax.phase()) {
        if (a.product) return false;
        a.product = u;
      }
    }
    if (!a.product || a.product.input(1) == weights) return false;
    for (Node u : users_[p.id()]) {
      if (u.op() == "steep.SoftmaxGrad" && u.input(1) == p && u.input(0) != p) {
        if (a.softmax_grad) return false;
        a.softmax_grad = u;
      }
    }
    return true;
  }

  enum class Stage : uint8_t { bias, keep, factor };

  /// From the softmax's operand up to the scores. `stage` is the last thing that may come.
  bool climb(Value x, Attention& a, Stage stage) const {
    Node n = x.producer();
    if (!n || !only_user(x) || !same_dims(x, a.softmax.output(0))) return false;
    if (n.op() == "MatMul") {
      a.scores = n;
      return true;
    }
    if (n.op() == "Add" && stage == Stage::bias) {
      for (int side : {0, 1}) {
        a.bias = n.input(1 - side);
        if (n.input(0) != n.input(1) && climb(n.input(side), a, Stage::keep)) {
          a.between.push_back(n);
          return true;
        }
      }
      a.bias = Value();
      return false;
    }
    if (n.op() == "Where" && stage <= Stage::keep) {
      for (int side : {1, 2}) {
        const auto masked = scalar_constant(n.input(3 - side));
        if (!masked || !climb(n.input(side), a, Stage::factor)) continue;
        a.keep = n.input(0);
        a.inverted = side == 2;
        a.masked = *masked;
        a.between.push_back(n);
        return true;
      }
      return false;
    }
    if (n.op() == "Mul" || n.op() == "Div") {
      const auto c = scalar_constant(n.input(1));
      if (!c || *c == 0 || !climb(n.input(0), a, Stage::factor)) return false;
      a.factor *= n.op() == "Mul" ? *c : 1 / *c;
      a.between.push_back(n);
      return true;
    }
    return false;
  }

  static bool batches_agree(const Attention& a) {
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

  /// Checks that `v` is read by exactly these nodes (null ones do not count) and by nobody else.
  bool read_by(Value v, std::initializer_list<Node> readers) const {
    if (kept_[v.id()]) return false;
    for (Node u : users_[v.id()]) {
      if (std::find(readers.begin(), readers.end(), u) == readers.end()) return false;
    }
    return true;
  }

  bool backward(Attention& a) const {
    // dy, by way of the gradient of the probabilities.
    Value dp = a.softmax_grad.input(0);
    Node where_grad;
    if (!only_user(dp)) return false;
    if (a.zero_nan) {
      where_grad = dp.producer();
      if (!where_grad || where_grad.op() != "Where" || where_grad.input(0) != a.is_nan.output(0) ||
          scalar_constant(where_grad.input(1)) != 0.0) {
        return false;
      }
      dp = where_grad.input(2);
      if (!only_user(dp)) return false;
    }
    if (a.dropout) {
      Node n = dp.producer();
      if (!n || n.op() != "steep.Dropout" || n.input(1) != a.dropout.input(1) ||
          real_of(n, "ratio") != real_of(a.dropout, "ratio") ||
          integer_of(n, "stream") != integer_of(a.dropout, "stream")) {
        return false;
      }
      dp = n.input(0);
      if (!only_user(dp)) return false;
    }
    Node dp_product = dp.producer();
    if (!dp_product || dp_product.op() != "MatMul" ||
        !is_swap_of(dp_product.input(1), a.values())) {
      return false;
    }
    a.dy = dp_product.input(0);
    // dv
    Value weights = a.product.input(0);
    Node weights_swap;
    for (Node u : users_[weights.id()]) {
      if (u != a.product && is_swap(u)) weights_swap = u;
    }
    if (weights_swap) {
      Node n = only_user(weights_swap.output(0));
      if (!n || n.op() != "MatMul" || n.input(0) != weights_swap.output(0) || n.input(1) != a.dy) {
        return false;
      }
      a.dv = n.output(0);
    }
    return is_private(a, weights_swap, where_grad) && scores_gradient(a);
  }

  /// Is what stands between softmax and product read inside the pattern only? The last two are what
  /// backward has of it.
  bool is_private(const Attention& a, Node weights_swap, Node where_grad) const {
    Value p = a.softmax.output(0);
    Node after_zero = a.dropout ? a.dropout : a.product;
    Node taker = a.zero_nan ? a.zero_nan : after_zero;
    Node direct_swap = a.zero_nan || a.dropout ? Node() : weights_swap;
    if (!read_by(p, {a.is_nan, taker, a.softmax_grad, direct_swap})) return false;
    if (a.is_nan && !read_by(a.is_nan.output(0), {a.zero_nan, where_grad})) return false;
    if (a.zero_nan &&
        !read_by(a.zero_nan.output(0), {after_zero, a.dropout ? Node() : weights_swap}))
      return false;
    return !a.dropout || read_by(a.dropout.output(0), {a.product, weights_swap});
  }

  /// From the softmax's gradient to those of the scores' operands.
  bool scores_gradient(Attention& a) const {
    Value ds = a.softmax_grad.output(0);
    for (auto it = a.between.rbegin(); it != a.between.rend(); ++it) {
      Node n = *it;
      if (n.op() == "Add") continue;
      Node g = only_user(ds);
      if (!g || g.op() != n.op()) return false;
      if (n.op() == "Where") {
        const int kept = a.inverted ? 2 : 1;
        if (g.input(0) != a.keep || g.input(kept) != ds ||
            scalar_constant(g.input(3 - kept)) != 0.0) {
          return false;
        }
      } else if (g.input(0) != ds || scalar_constant(g.input(1)) != scalar_constant(n.input(1))) {
        return false;
      }
      ds = g.output(0);
    }
    if (kept_[ds.id()]) return false;
    for (Node u : users_[ds.id()]) {
      if (u.op() != "MatMul") return false;
      if (u.input(0) == ds && is_swap_of(u.input(1), a.right()) && !a.da) {
        a.da = u.output(0);
      } else if (u.input(1) == ds && is_swap_of(u.input(0), a.left()) && !a.db) {
        a.db = u.output(0);
      } else {
        return false;
      }
    }
    return true;
  }

  std::vector<std::vector<Node>> users_;
  std::vector<char> kept_;  // by value id: an output or an update
};

/// The farthest value up from an operand that holds its heads in one piece.
std::optional<HeadLayout> source(HeadLayout layout, bool factors) {
  std::optional<HeadLayout> best;
  for (std::optional<HeadLayout> at = layout; at; at = at->before()) {
    if (at->scale != 1 && !factors) break;
    if (at->order()) best = at;
  }
  return best;
}

/// The farthest value down from a result that holds its heads in one piece, past factors that
/// multiply to `scale`.
std::optional<HeadLayout> destination(const Matcher& m, HeadLayout layout, double scale) {
  std::optional<HeadLayout> best;
  std::optional<HeadLayout> at = layout;
  while (at) {
    if (std::abs(at->scale - scale) <= 1e-12 * std::abs(scale) && at->order()) best = at;
    Node user = m.only_user(at->value);
    at = user ? at->after(user) : std::nullopt;
  }
  return best;
}

class Rewriter {
 public:
  Rewriter(Graph& g, const Matcher& m, const Attention& a) : g_(g), m_(m), a_(a) {}

  bool run() {
    const auto q = source(HeadLayout::of(a_.left(), false), true);
    const auto k = source(HeadLayout::of(a_.right(), true), true);
    const auto v = source(HeadLayout::of(a_.values(), false), false);
    const auto y = destination(m_, HeadLayout::of(a_.product.output(0), false), 1);
    if (!q || !k || !v || !y) return false;
    std::optional<HeadLayout> dy, dq, dk, dv;
    if (a_.softmax_grad) {
      dy = source(HeadLayout::of(a_.dy, false), false);
      dq = a_.da ? destination(m_, HeadLayout::of(a_.da, false), q->scale) : q;
      dk = a_.db ? destination(m_, HeadLayout::of(a_.db, true), k->scale) : k;
      dv = a_.dv ? destination(m_, HeadLayout::of(a_.dv, false), 1) : v;
      if (!dy || !dq || !dk || !dv) return false;
    }
    Attrs attrs{{"scale", a_.factor * q->scale * k->scale},
                {"perm_q", q->perm()},
                {"perm_k", k->perm()},
                {"perm_v", v->perm()},
                {"perm_y", *y->order()}};
    if (a_.zero_nan) attrs.set("zero_nan", int64_t{1});
    if (a_.softmax.op() != "Softmax") attrs.set("zero_shut", int64_t{1});
    if (a_.dropout) {
      attrs.set("ratio", real_of(a_.dropout, "ratio"));
      attrs.set("stream", integer_of(a_.dropout, "stream"));
    }
    std::vector<Value> extras;
    std::vector<Value> inputs;
    std::vector<Value> made;
    place(a_.product, [&] {
      extras = masks(attrs);
      inputs = {operand(*q), operand(*k), operand(*v)};
      std::vector<Value> all = inputs;
      all.insert(all.end(), extras.begin(), extras.end());
      made = apply_n("steep.Attention", all, 3, attrs);
      replace(*y, made[0]);
    });
    if (!a_.softmax_grad) return true;
    place(a_.softmax_grad, [&] {
      attrs.set("perm_dy", dy->perm());
      attrs.set("perm_dq", *dq->order());
      attrs.set("perm_dk", *dk->order());
      attrs.set("perm_dv", *dv->order());
      std::vector<Value> all{operand(*dy)};
      all.insert(all.end(), inputs.begin(), inputs.end());
      all.insert(all.end(), made.begin(), made.end());
      all.insert(all.end(), extras.begin(), extras.end());
      const auto grads = apply_n("steep.AttentionGrad", all, 3, attrs);
      if (a_.da) replace(*dq, grads[0]);
      if (a_.db) replace(*dk, grads[1]);
      if (a_.dv) replace(*dv, grads[2]);
    });
    return true;
  }

 private:
  /// Nodes that `add` makes stand where `like` stands.
  template <typename Add>
  void place(Node like, Add&& add) {
    Graph::Scope scope(g_, like.phase(), like.name());
    const auto first = static_cast<uint32_t>(g_.node_slots());
    add();
    for (uint32_t id = first; id < g_.node_slots(); ++id) g_.place_like(Node(&g_, id), like);
  }

  /// Bias, keep and seed, without those at the end that are absent, nor those that an attribute can
  /// say.
  std::vector<Value> masks(Attrs& attrs) {
    Value bias = a_.bias, keep = a_.keep;
    bool causal = false;
    auto dispensable = [&](MaskKind kind) {
      causal = causal || kind == MaskKind::causal;
      return kind != MaskKind::other;
    };
    if (bias && dispensable(kind_of_bias(bias))) bias = Value();
    // A finite number counts where the other mask leaves nothing else.
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
  void replace(const HeadLayout& at, Value made) {
    g_.replace_uses(at.value, shaped(made, at.value.type().dims()));
  }

  Graph& g_;
  const Matcher& m_;
  const Attention& a_;
};

}  // namespace

namespace {

void fuse(Graph& g, int64_t least_keys) {
  std::optional<Matcher> matcher;
  for (Node n : g.nodes()) {
    if (n.op() != "Softmax" && n.op() != "steep.SafeSoftmax") continue;
    const Dims scores = n.output(0).type().dims();
    if (scores.empty() || scores.back() < least_keys) continue;
    if (!matcher) matcher.emplace(g);
    Attention a;
    if (!matcher->match(n, a)) continue;
    if (Rewriter(g, *matcher, a).run()) g.prune();
    matcher.reset();  // users change with each rewrite
  }
}

}  // namespace

void fuse_attention(Graph& g) { fuse(g, 0); }

void fuse_long_attention(Graph& g) {
  // The tiles multiply in float32, separate products in bfloat16: up to 512 keys the tiles were 4 %
  // of a step slower. From here on memory that grows with the square of the length weighs more.
  constexpr int64_t kLong = 1024;
  fuse(g, kLong);
}

}  // namespace steep
