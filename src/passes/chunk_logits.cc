// Computes the scores over a vocabulary, the largest array of a language model's step, in chunks of
// rows, so that only one chunk of them exists at a time:
//
//   logits = x w + b                        for each chunk of rows:
//   loss = SoftmaxCrossEntropy(logits, t)     logits = x[rows] w + b
//   dlogits = its gradient               →    loss += SoftmaxCrossEntropy(logits, t[rows])
//   dx = dlogits wᵀ                           dlogits = its gradient, in place
//   dw = xᵀ dlogits                           dx[rows] = dlogits wᵀ
//   db = Σ dlogits                            dw += x[rows]ᵀ dlogits,  db += Σ dlogits
//
// All of this moves to forward. So the pass applies only if forward knows the gradient of the loss
// (in a trainer it is 1) and if no other node reads the scores. With bf16 precision the pass made
// steps slower (docs/performance.md). The scores of a model of bfloat16 stay whole: a sum of chunks
// would have to be float32, and take more than they do. Hsu et al., Liger Kernel, 2024, computes
// loss and gradients of a chunk in the same way.

#include <algorithm>
#include <optional>

#include "ops/build.h"
#include "passes/narrow_scores.h"
#include "passes/pipeline.h"
#include "passes/views.h"

namespace steep {
namespace {

/// The least number of rows of a chunk, so that a product makes good use of each weight it reads.
constexpr int64_t kRows = 256;
/// The most chunks; each adds about six nodes to the plan.
constexpr int64_t kMostChunks = 16;
/// For smaller scores it does not pay to read the weight and its gradient several times.
constexpr size_t kLeastBytes = size_t{96} << 20;

/// Whether a permutation swaps the last two axes, if it keeps all others in place. Nothing for
/// other permutations.
std::optional<bool> swaps_last(const Ints& perm) {
  const auto rank = static_cast<int64_t>(perm.size());
  for (int64_t i = 0; i + 2 < rank; ++i) {
    if (perm[static_cast<size_t>(i)] != i) return {};
  }
  return rank >= 2 && perm.back() == rank - 2;
}

/// Whether the node multiplies the rows of `a` […, k] with one matrix `b` of rank 2.
bool multiplies_rows(Node n) {
  if (n.input(3)) return false;
  const auto a = swaps_last(n.attrs().ints("perm_a")), y = swaps_last(n.attrs().ints("perm_y"));
  return n.input(0).rank() >= 2 && n.input(1).rank() == 2 && a == false && y == false;
}

/// The value behind views that keep the length of rows.
Value behind_views_of_rows(Value v) {
  static constexpr Pattern kView("Reshape|Flatten(x, ...)");
  const int64_t length = v.type().dims().back();
  for (auto m = match(kView, v); m; m = match(kView, v)) {
    const Dims dims = (*m)["x"].type().dims();
    if (dims.empty() || dims.back() != length) break;
    v = (*m)["x"];
  }
  return v;
}

/// The loss and gradients of scores that a product computes, and the readers of the gradient.
class ChunkedLoss {
 public:
  ChunkedLoss(Graph& g, const Readers& readers, Node loss)
      : g_(g), readers_(readers), loss_(loss) {}

  /// Finds the pattern. Returns false if it does not match.
  bool find() {
    logits_ = loss_.input(0);
    reduction_ = text_of(loss_, "reduction");
    if (logits_.dtype() != DType::f32 || reduction_ == "none" || !loss_.output(0) ||
        !loss_.output(1) || !loss_.output(2))
      return false;
    const Value scores = behind_views(logits_);
    if (!apply_rules(kScores, scores.producer(), Match(), *this)) return false;
    if (scores.type().dims().back() != logits_.type().dims()[1]) return false;
    std::vector<Node> readers;
    if (!add_readers_behind_views(scores, readers_, &readers)) return false;
    const Match start = Match()
                            .with("logits", logits_)
                            .with("labels", loss_.input(1))
                            .with("largest", loss_.output(1))
                            .with("sums", loss_.output(2));
    for (Node n : readers) {
      if (n != loss_ && !apply_rules(kGradient, n, start, *this)) return false;
    }
    if (!gradient_) return false;
    for (const int k : {1, 2}) {
      if (!readers_.only(loss_.output(k))) return false;
    }
    rows_ = logits_.type().dims()[0];
    return in_forward(gradient_.input(0)) && find_products();
  }

  static std::vector<PatternRuleInfo> patterns() {
    return list_rules(kScores, kGradient, kReaders);
  }

  /// The number of chunks: at least two, or 0 if chunks do not pay.
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
    Gradients sums;
    sums.of_rows.resize(row_products_.size());
    sums.of_weight.resize(weight_products_.size());
    sums.of_bias.resize(bias_sums_.size());
    for (int64_t i = 0; i < count; ++i) {
      const int64_t begin = rows_ * i / count, end = rows_ * (i + 1) / count;
      const Value t = rows(labels, begin, end);
      const Value logits = multiply(product_, rows(x, begin, end), product_.input(1), {});
      const std::vector<Value> results =
          apply_n(loss_.op(), std::vector{logits, t}, 3, summed(loss_));
      loss = loss ? loss + results[0] : results[0];
      const Value dlogits =
          apply(gradient_.op(), {dloss, logits, t, results[1], results[2]}, summed(gradient_));
      add_chunk(dlogits, begin, end, sums);
    }
    if (divisor) loss = loss / divisor;
    g_.replace_uses(loss_.output(0), loss);
    replace_products(sums);
    // The new nodes go, chunk by chunk, to the place of the loss, where all their operands exist.
    for (Node n : g_.nodes()) {
      if (n.id() >= before) g_.place_like(n, loss_);
    }
  }

 private:
  struct WeightProduct {
    Node node;
    Value other;  // […, k], with the same number of rows
    bool first;   // dlogits is the first operand
  };

  /// The results of the readers of dlogits, for the chunks so far.
  struct Gradients {
    std::vector<std::vector<Value>> of_rows;  // by row_products_
    std::vector<Value> of_weight;             // by weight_products_
    std::vector<Value> of_bias;               // by bias_sums_
  };

  /// Adds the readers of `dlogits`, the gradient of rows [begin, end).
  void add_chunk(Value dlogits, int64_t begin, int64_t end, Gradients& sums) {
    for (size_t k = 0; k < row_products_.size(); ++k) {
      const Node n = row_products_[k];
      sums.of_rows[k].push_back(multiply(n, dlogits, n.input(1), {}));
    }
    for (size_t k = 0; k < weight_products_.size(); ++k) {
      const WeightProduct& p = weight_products_[k];
      const Value other = rows(as_rows(p.other), begin, end);
      Value& sum = sums.of_weight[k];
      sum = p.first ? multiply(p.node, dlogits, other, sum) : multiply(p.node, other, dlogits, sum);
    }
    for (size_t k = 0; k < bias_sums_.size(); ++k) {
      const Node n = bias_sums_[k];
      const Value part = apply(n.op(), {dlogits, n.input(1)}, n.attrs());
      sums.of_bias[k] = sums.of_bias[k] ? sums.of_bias[k] + part : part;
    }
  }

  void replace_products(const Gradients& sums) {
    for (size_t k = 0; k < row_products_.size(); ++k) {
      const Value y = row_products_[k].output(0);
      g_.replace_uses(y, reshape(concat(sums.of_rows[k], 0), y.type().dims()));
    }
    for (size_t k = 0; k < weight_products_.size(); ++k)
      g_.replace_uses(weight_products_[k].node.output(0), sums.of_weight[k]);
    for (size_t k = 0; k < bias_sums_.size(); ++k)
      g_.replace_uses(bias_sums_[k].output(0), sums.of_bias[k]);
  }

  /// Whether v exists in forward.
  bool in_forward(Value v) const {
    if (v.role() == Role::input) return g_.input_phase(v) == Phase::forward;
    return !v.producer() || v.producer().phase() == Phase::forward;
  }

  /// Classifies the readers of dlogits. Returns false if one is neither a supported product nor the
  /// sum for the bias.
  bool find_products() {
    std::vector<Node> readers;
    if (!add_readers_behind_views(gradient_.output(0), readers_, &readers)) return false;
    for (Node n : readers) {
      if (is_gradient(n.input(0)) == is_gradient(n.input(1))) return false;
      if (!apply_rules(kReaders, n, Match(), *this)) return false;
    }
    return std::all_of(weight_products_.begin(), weight_products_.end(),
                       [&](const WeightProduct& p) { return in_forward(p.other); });
  }

  /// Whether v is dlogits, with any leading axes.
  bool is_gradient(Value v) const {
    return v && behind_views(v) == gradient_.output(0) &&
           v.type().dims().back() == logits_.type().dims()[1];
  }

  /// Reshapes leading axes to one: [rows, …].
  Value as_rows(Value v) const {
    return v.rank() == 2 ? v : reshape(v, Ints{rows_, v.type().dims().back()});
  }

  Value rows(Value v, int64_t begin, int64_t end) {
    return apply("Slice", {v, ints(g_, {begin}), ints(g_, {end}), ints(g_, {0})});
  }

  /// The product of a chunk, with `addend` added if it is not null.
  static Value multiply(Node like, Value a, Value b, Value addend) {
    Attrs attrs = like.attrs();
    for (const char* perm : {"perm_a", "perm_b", "perm_y"}) {
      if (!attrs.has(perm)) continue;
      const bool swapped = swaps_last(attrs.ints(perm)) == true;
      attrs.set(perm, swapped ? Ints{1, 0} : Ints{0, 1});
    }
    std::vector<Value> inputs{a, b};
    if (like.input(2) || addend) inputs.push_back(like.input(2));
    if (addend) inputs.push_back(addend);
    return apply(addend ? "steep.MatMul" : like.op(), inputs, attrs);
  }

  static Attrs summed(Node n) {
    Attrs attrs = n.attrs();
    attrs.set("reduction", std::string("sum"));
    return attrs;
  }

  /// The number of labels that count, a scalar of the loss's dtype.
  Value counted(Value labels) {
    const DType dtype = loss_.output(0).dtype();
    if (!loss_.attrs().has("ignore_index")) return scalar(g_, static_cast<double>(rows_), dtype);
    const auto ignore_index = static_cast<double>(loss_.attrs().integer("ignore_index", 0));
    const Value counts = apply("Not", {equal(labels, ignore_index)});
    return cast(sum(cast(counts, DType::i64), {}, false), dtype);
  }

  bool take_scores(Node product) {
    product_ = product;
    return multiplies_rows(product);
  }

  bool take_gradient(Node gradient) {
    if (gradient_) return false;
    gradient_ = gradient;
    return true;
  }

  /// Records dlogits · other (`first`) or other · dlogits, if it can be computed in chunks.
  bool take_product(Node n, Value d, bool first) {
    if (!is_gradient(d) || n.attrs().real("alpha", 1) != 1 || n.attrs().has("activation"))
      return false;
    if (first && multiplies_rows(n) && in_forward(n.input(1))) {
      row_products_.push_back(n);
      return true;
    }
    const Attrs& attrs = n.attrs();
    // Only products dᵀ x or xᵀ d, which sum over the rows of both operands.
    const bool sums_rows =
        swaps_last(attrs.ints("perm_a")) == true && swaps_last(attrs.ints("perm_b")) == false;
    if (n.input(0).rank() != 2 || n.input(1).rank() != 2 || !sums_rows) return false;
    weight_products_.push_back({n, behind_views_of_rows(n.input(first ? 1 : 0)), first});
    return true;
  }

  bool take_bias_sum(Node n) {
    if (!is_gradient(n.input(0)) || n.output(0).rank() != 1) return false;
    bias_sums_.push_back(n);
    return true;
  }

  static const PatternRule<ChunkedLoss&> kScores[1], kGradient[1], kReaders[3];

  Graph& g_;
  const Readers& readers_;
  Node loss_, product_{}, gradient_{};
  Value logits_{};
  std::string reduction_{};
  int64_t rows_ = 0;
  std::vector<Node> row_products_{}, bias_sums_{};
  std::vector<WeightProduct> weight_products_{};
};

constexpr PatternRule<ChunkedLoss&> ChunkedLoss::kScores[] = {
    {.name = "chunk_logits/scores",
     .reason = "The scores of a chunk of rows are the product of a chunk of its left operand.",
     .pattern = "product: MatMul|steep.MatMul(x, w, ...)",
     .then = [](const Match& m, ChunkedLoss& c) { return c.take_scores(m.node("product")); }}};

constexpr PatternRule<ChunkedLoss&> ChunkedLoss::kGradient[] = {
    {.name = "chunk_logits/gradient",
     .reason = "A chunk's gradient is written over the chunk, so that no more scores are held.",
     .pattern =
         "gradient: steep.SoftmaxCrossEntropyGrad(dloss, logits, labels, largest, sums, ...)",
     .then = [](const Match& m, ChunkedLoss& c) { return c.take_gradient(m.node("gradient")); }}};

/// The readers of the gradient of the scores.
constexpr PatternRule<ChunkedLoss&> ChunkedLoss::kReaders[] = {
    {.name = "chunk_logits/left_product",
     .reason = "Rows of the gradient give the same rows of dx, or a part of the sum that is dwᵀ.",
     .pattern = "product: MatMul|steep.MatMul(d, _)",
     .then = [](const Match& m,
                ChunkedLoss& c) { return c.take_product(m.node("product"), m["d"], true); }},
    {.name = "chunk_logits/right_product",
     .reason = "Rows of the gradient give a part of the sum that is dw.",
     .pattern = "product: MatMul|steep.MatMul(_, d)",
     .then = [](const Match& m,
                ChunkedLoss& c) { return c.take_product(m.node("product"), m["d"], false); }},
    {.name = "chunk_logits/bias_sum",
     .reason = "Rows of the gradient give a part of the sum that is the gradient of the bias.",
     .pattern = "sum: steep.SumTo(d, shape)",
     .then = [](const Match& m, ChunkedLoss& c) { return c.take_bias_sum(m.node("sum")); }},
};

constexpr PatternRule<const Readers&> kLosses[] = {
    {.name = "chunk_logits/loss",
     .reason = "Scores over a vocabulary are the largest array of a step, and chunks need a part.",
     .pattern = "loss: steep.SoftmaxCrossEntropy(logits, labels)",
     .then = [](const Match& m, const Readers& readers) {
       const Node loss = m.node("loss");
       ChunkedLoss chunked(loss.graph(), readers, loss);
       if (!chunked.find()) return false;
       const int64_t count = chunked.chunks();
       if (count > 0) chunked.split(count);
       return count > 0;
     }}};

}  // namespace

void chunk_logits(Graph& g, const Devices& devices) {
  const auto reads_bf16 = [&](const char* op) {
    return devices.narrows(op, DType::bf16).has_value();
  };
  if (reads_bf16("steep.SoftmaxCrossEntropy") && reads_bf16("steep.SoftmaxCrossEntropyGrad"))
    narrow_scores(g);
  chunk_logits(g);
}

void chunk_logits(Graph& g) {
  const Readers readers(g);
  for (Node n : g.nodes()) apply_rules(kLosses, n, Match(), readers);
}

std::vector<PatternRuleInfo> chunk_logits_patterns() {
  std::vector<PatternRuleInfo> rules = list_rules(kLosses);
  for (const auto& part : {ChunkedLoss::patterns(), narrow_scores_patterns()})
    rules.insert(rules.end(), part.begin(), part.end());
  return rules;
}

}  // namespace steep
