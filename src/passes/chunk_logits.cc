// The scores over a vocabulary, the largest array of a language model's step, in chunks of rows, so
// that no more than one chunk of them exists at a time:
//
//   logits = x w + b                        for each chunk of rows:
//   loss = SoftmaxCrossEntropy(logits, t)     logits = x[rows] w + b
//   dlogits = its gradient               →    loss += SoftmaxCrossEntropy(logits, t[rows])
//   dx = dlogits wᵀ                           dlogits = its gradient, in place
//   dw = xᵀ dlogits                           dx[rows] = dlogits wᵀ
//   db = Σ dlogits                            dw += x[rows]ᵀ dlogits,  db += Σ dlogits
//
// All of it moves to forward, so it is done only where the gradient of the loss is known there (a
// trainer's is 1), and where nobody else reads the scores. At bf16 precision it was slower than it
// is worth (docs/performance.md). Hsu et al., Liger Kernel, 2024, computes loss and gradients of a
// chunk in the same way.

#include <algorithm>
#include <optional>

#include "ops/build.h"
#include "passes/pipeline.h"
#include "passes/views.h"

namespace steep {
namespace {

using Users = std::vector<std::vector<Node>>;

/// A chunk has so many rows at least: enough to multiply with each weight that is read.
constexpr int64_t kRows = 256;
/// Each adds some six nodes to the plan.
constexpr int64_t kMostChunks = 16;
/// Smaller scores are not worth reading the weight and its gradient several times.
constexpr size_t kLeastBytes = size_t{96} << 20;

bool is_product(Node n) { return n && (n.op() == "MatMul" || n.op() == "steep.MatMul"); }

/// Last two entries of a permutation that leaves the others where they are: whether they change
/// places. Nothing for any other permutation.
std::optional<bool> swaps_last(const Ints& perm) {
  const auto rank = static_cast<int64_t>(perm.size());
  for (int64_t i = 0; i + 2 < rank; ++i) {
    if (perm[static_cast<size_t>(i)] != i) return {};
  }
  return rank >= 2 && perm.back() == rank - 2;
}

/// Rows of one matrix times a matrix: `a` […, k], `b` of rank 2.
bool multiplies_rows(Node n) {
  if (!is_product(n) || n.input(3)) return false;
  const auto a = swaps_last(n.attrs().ints("perm_a")), y = swaps_last(n.attrs().ints("perm_y"));
  return n.input(0).rank() >= 2 && n.input(1).rank() == 2 && a == false && y == false;
}

/// Loss and gradients of scores that a product makes, and what reads their gradient.
class ChunkedLoss {
 public:
  ChunkedLoss(Graph& g, const Users& users, Node loss) : g_(g), users_(users), loss_(loss) {}

  /// Whether the pattern is there.
  bool find() {
    logits_ = loss_.input(0);
    reduction_ = text_of(loss_, "reduction");
    if (logits_.dtype() != DType::f32 || loss_.input(2) || reduction_ == "none" ||
        !loss_.output(0) || !loss_.output(1) || !loss_.output(2))
      return false;
    const Value scores = behind_views(logits_);
    product_ = scores.producer();
    if (!multiplies_rows(product_) || scores.type().dims().back() != logits_.type().dims()[1])
      return false;
    std::vector<Node> readers;
    if (!add_readers(scores, &readers)) return false;
    for (Node n : readers) {
      if (n == loss_) continue;
      if (n.op() != "steep.SoftmaxCrossEntropyGrad" || gradient_) return false;
      gradient_ = n;
    }
    if (!gradient_ || gradient_.input(1) != logits_ || gradient_.input(2) != loss_.input(1) ||
        gradient_.input(3) != loss_.output(1) || gradient_.input(4) != loss_.output(2))
      return false;
    for (const int k : {1, 2}) {
      const Value sums = loss_.output(k);
      if (users_[sums.id()].size() != 1 || g_.is_output(sums)) return false;
    }
    rows_ = logits_.type().dims()[0];
    return in_forward(gradient_.input(0)) && find_products();
  }

  /// At least two, or 0 where it does not pay.
  int64_t chunks() const {
    const int64_t count = std::min(rows_ / kRows, kMostChunks);
    return logits_.type().nbytes() < kLeastBytes || count < 2 ? 0 : count;
  }

  void split(int64_t count) {
    const Graph::Scope scope(g_, Phase::forward, loss_.name());
    const auto before = static_cast<uint32_t>(g_.node_slots());
    const Value x = as_rows(product_.input(0)), labels = loss_.input(1);
    const Value divisor = reduction_ == "mean" ? counted(labels) : Value();
    Value dloss = gradient_.input(0);
    if (divisor) dloss = dloss / divisor;
    Value loss;
    std::vector<std::vector<Value>> of_rows(row_products_.size());
    std::vector<Value> of_weight(weight_products_.size()), of_bias(bias_sums_.size());
    for (int64_t i = 0; i < count; ++i) {
      const int64_t begin = rows_ * i / count, end = rows_ * (i + 1) / count;
      const Value t = rows(labels, begin, end);
      const Value logits = multiply(product_, rows(x, begin, end), product_.input(1), {});
      const std::vector<Value> made = apply_n(loss_.op(), std::vector{logits, t}, 3, summed(loss_));
      loss = loss ? loss + made[0] : made[0];
      const Value dlogits =
          apply(gradient_.op(), {dloss, logits, t, made[1], made[2]}, summed(gradient_));
      for (size_t k = 0; k < row_products_.size(); ++k) {
        const Node n = row_products_[k];
        of_rows[k].push_back(multiply(n, dlogits, n.input(1), {}));
      }
      for (size_t k = 0; k < weight_products_.size(); ++k) {
        const WeightProduct& p = weight_products_[k];
        const Value other = rows(as_rows(p.other), begin, end);
        of_weight[k] = p.first ? multiply(p.node, dlogits, other, of_weight[k])
                               : multiply(p.node, other, dlogits, of_weight[k]);
      }
      for (size_t k = 0; k < bias_sums_.size(); ++k) {
        const Node n = bias_sums_[k];
        const Value part = apply(n.op(), {dlogits, n.input(1)}, n.attrs());
        of_bias[k] = of_bias[k] ? of_bias[k] + part : part;
      }
    }
    if (divisor) loss = loss / divisor;
    g_.replace_uses(loss_.output(0), loss);
    for (size_t k = 0; k < row_products_.size(); ++k) {
      const Value y = row_products_[k].output(0);
      g_.replace_uses(y, reshape(concat(of_rows[k], 0), y.type().dims()));
    }
    for (size_t k = 0; k < weight_products_.size(); ++k)
      g_.replace_uses(weight_products_[k].node.output(0), of_weight[k]);
    for (size_t k = 0; k < bias_sums_.size(); ++k)
      g_.replace_uses(bias_sums_[k].output(0), of_bias[k]);
    // One chunk after the other: at the loss's place everything that they read is there.
    for (Node n : g_.nodes()) {
      if (n.id() >= before) g_.place_like(n, loss_);
    }
  }

 private:
  struct WeightProduct {
    Node node;
    Value other;  // […, k] with as many rows
    bool first;   // whether dlogits is the first operand
  };

  /// Whether forward knows v.
  bool in_forward(Value v) const {
    if (v.role() == Role::input) return g_.input_phase(v) == Phase::forward;
    return !v.producer() || v.producer().phase() == Phase::forward;
  }

  /// What reads `v`, through views; false if `v` or a view leaves the graph.
  bool add_readers(Value v, std::vector<Node>* readers) const {
    if (g_.is_output(v)) return false;
    for (Node n : users_[v.id()]) {
      if (behind_views(n.output(0)) != n.output(0) && n.input(0) == v) {
        if (!add_readers(n.output(0), readers)) return false;
      } else {
        readers->push_back(n);
      }
    }
    return true;
  }

  /// Sorts the readers of dlogits; false if one is neither kind of product nor the bias's sum.
  bool find_products() {
    std::vector<Node> readers;
    if (!add_readers(gradient_.output(0), &readers)) return false;
    for (Node n : readers) {
      const bool plain = is_product(n) && n.attrs().real("alpha", 1) == 1 && !n.input(2) &&
                         !n.attrs().has("activation") && !n.input(3);
      const bool first = is_gradient(n.input(0)), second = is_gradient(n.input(1));
      if (first == second) return false;
      if (plain && first && multiplies_rows(n) && in_forward(n.input(1))) {
        row_products_.push_back(n);
      } else if (plain && n.input(0).rank() == 2 && n.input(1).rank() == 2 &&
                 (first ? swaps_last(n.attrs().ints("perm_a")) == true
                        : swaps_last(n.attrs().ints("perm_b")) == false)) {
        weight_products_.push_back({n, behind_views(n.input(first ? 1 : 0)), first});
      } else if (n.op() == "steep.SumTo" && first && n.output(0).rank() == 1) {
        bias_sums_.push_back(n);
      } else {
        return false;
      }
    }
    return std::all_of(weight_products_.begin(), weight_products_.end(),
                       [&](const WeightProduct& p) { return in_forward(p.other); });
  }

  /// Whether v is dlogits, with whatever leading axes.
  bool is_gradient(Value v) const {
    return v && behind_views(v) == gradient_.output(0) &&
           v.type().dims().back() == logits_.type().dims()[1];
  }

  /// [rows, …] of what may have several leading axes.
  Value as_rows(Value v) const {
    return v.rank() == 2 ? v : reshape(v, Ints{rows_, v.type().dims().back()});
  }

  Value rows(Value v, int64_t begin, int64_t end) {
    return apply("Slice", {v, ints(g_, {begin}), ints(g_, {end}), ints(g_, {0})});
  }

  /// The product of a chunk, plus `addend` if there is one.
  static Value multiply(Node like, Value a, Value b, Value addend) {
    Attrs attrs = like.attrs();
    for (const char* perm : {"perm_a", "perm_b", "perm_y"}) {
      if (!attrs.has(perm)) continue;
      const bool swapped = swaps_last(attrs.ints(perm)) == true;
      attrs.set(perm, swapped ? Ints{1, 0} : Ints{0, 1});
    }
    if (!addend && like.op() == "MatMul") return apply("MatMul", {a, b}, attrs);
    std::vector<Value> inputs{a, b};
    if (like.input(2) || addend) inputs.push_back(like.input(2));
    if (addend) inputs.push_back(addend);
    return apply("steep.MatMul", inputs, attrs);
  }

  static Attrs summed(Node n) {
    Attrs attrs = n.attrs();
    attrs.set("reduction", std::string("sum"));
    return attrs;
  }

  /// How many labels count, a scalar of the loss's dtype.
  Value counted(Value labels) {
    const DType dtype = loss_.output(0).dtype();
    if (!loss_.attrs().has("ignore_index")) return scalar(g_, static_cast<double>(rows_), dtype);
    const auto ignored = static_cast<double>(loss_.attrs().integer("ignore_index", 0));
    const Value counts = apply("Not", {equal(labels, ignored)});
    return cast(sum(cast(counts, DType::i64), {}, false), dtype);
  }

  Graph& g_;
  const Users& users_;
  Node loss_, product_{}, gradient_{};
  Value logits_{};
  std::string reduction_{};
  int64_t rows_ = 0;
  std::vector<Node> row_products_{}, bias_sums_{};
  std::vector<WeightProduct> weight_products_{};
};

}  // namespace

void chunk_logits(Graph& g) {
  const Users users = g.users();
  for (Node n : g.nodes()) {
    if (n.op() != "steep.SoftmaxCrossEntropy") continue;
    ChunkedLoss chunked(g, users, n);
    if (!chunked.find()) continue;
    if (const int64_t count = chunked.chunks(); count > 0) chunked.split(count);
  }
}

}  // namespace steep
