// The cross entropy of scores that are made in parts, such as those of a vocabulary whose table is
// in parts, without the array of all scores:
//
//   logits = Concat(z₀, z₁, …)
//   loss, lse = SoftmaxCrossEntropy(logits, t)
//   d₀, d₁, … = Split(SoftmaxCrossEntropyGrad(logits, t, lse))
//
// becomes, for each part k,
//
//   lossₖ, lseₖ = SoftmaxCrossEntropy(zₖ, t)
//   lse = ln Σ exp(lseₖ), and the loss from lse and the lossₖ of the label's part
//   dₖ = SoftmaxCrossEntropyGrad(zₖ, t, lse), in place
//
// Without a limit of memory the parts are kept from forward to backward, which takes as much as the
// whole did. Within one, backward makes each part again from its rows and its piece of the table
// (plan/memory_planner.h), so that only one exists at a time.
#include <algorithm>
#include <limits>

#include "ops/build.h"
#include "ops/defs/losses.h"
#include "passes/part_by_part.h"
#include "passes/views.h"

namespace steep {
namespace {

/// The sum of a list.
Value total(std::span<const Value> list) {
  Value sum = list[0];
  for (const Value& v : list.subspan(1)) sum = sum + v;
  return sum;
}

class PartialLosses {
 public:
  PartialLosses(Node loss, const ReadersInOrder& order)
      : g_(loss.graph()), loss_(loss), order_(order) {}

  bool find() {
    const Value logits = loss_.input(0), whole = behind_views(logits);
    concat_ = whole.producer();
    const bool plain = !loss_.input(2) && loss_.output(0) && !loss_.attrs().has("first") &&
                       loss_.output(0).dtype() == logits.dtype();
    if (!plain || !concat_ || concat_.op() != "Concat" || !on_classes(concat_, whole) ||
        whole.type().nbytes() < kLeastBytesInParts || !frees_parts(concat_, order_.readers))
      return false;
    std::vector<Node> readers;
    if (!add_readers_behind_views(whole, order_.readers, &readers)) return false;
    return std::all_of(readers.begin(), readers.end(),
                       [&](Node n) { return n == loss_ || take_gradient(n); });
  }

  void replace() {
    const Graph::Scope scope(g_, loss_.phase(), loss_.name());
    // The loss of a part goes to the place of the part, where the labels have to be ready.
    for (Node n = loss_.input(1).producer(); n; n = n.input(0) ? n.input(0).producer() : Node())
      g_.place_like(n, concat_.input(0).producer());
    for (int i = 0; i < concat_.input_count(); ++i) add_part(concat_.input(i));
    join();
    if (gradient_) divide();
  }

 private:
  /// One part of the classes. Values are [rows].
  struct Part {
    Value scores;  ///< [rows, classes of the part]
    int64_t first;
    Value own;  ///< whether the label is in this part
    Value loss, lse, lse_rest;
  };

  /// Whether the node joins or divides the last axis, that of the classes.
  bool on_classes(Node n, Value whole) const {
    return normal_axis(n, integer_of(n, "axis"), whole.rank()) == whole.rank() - 1 &&
           whole.type().dims().back() == loss_.input(0).type().dims()[1];
  }

  /// Whether `n` is the one gradient of the loss, and is divided like the scores.
  bool take_gradient(Node n) {
    static constexpr Pattern kGradient(
        "steep.SoftmaxCrossEntropyGrad(dloss, logits, labels, lse, rest)");
    const auto m = match(kGradient, n);
    if (gradient_ || !m || (*m)["lse"] != loss_.output(1) || (*m)["rest"] != loss_.output(2) ||
        (*m)["labels"] != loss_.input(1) || n.output(0).dtype() != loss_.input(0).dtype())
      return false;
    std::vector<Node> readers;
    if (!add_readers_behind_views(n.output(0), order_.readers, &readers) || readers.size() != 1)
      return false;
    gradient_ = n;
    split_ = readers[0];
    if (split_.op() != "Split" || !on_classes(split_, split_.input(0)) ||
        split_.output_count() != concat_.input_count())
      return false;
    for (int i = 0; i < split_.output_count(); ++i) {
      const Value y = split_.output(i);
      if (!y || g_.is_output(y) || y.type().dims().back() != concat_.input(i).type().dims().back())
        return false;
    }
    return true;
  }

  Attrs attributes_of(Node n, int64_t first) const {
    Attrs attrs = n.attrs();
    attrs.set("first", first);
    attrs.set("classes", loss_.input(0).type().dims()[1]);
    return attrs;
  }

  void add_part(Value made) {
    const Value labels = loss_.input(1);
    const Dims& whole = loss_.input(0).type().dims();
    const int64_t classes = made.type().dims().back();
    const int64_t first = parts_.empty() ? 0 : parts_.back().first + columns(parts_.back());
    const Value z = made.rank() == 2 ? made : reshape(made, Ints{whole[0], classes});
    Attrs attrs = attributes_of(loss_, first);
    attrs.set("reduction", std::string("none"));
    const std::vector<Value> results =
        apply_n(loss_.op(), std::vector{z, labels}, 3, std::move(attrs));
    for (Value v : {z, results[0]}) g_.place_like(v.producer(), made.producer());
    const Value at = labels - static_cast<double>(first);
    const Value own = apply("And", {less_or_equal(scalar(g_, 0, at.dtype()), at),
                                    less(at, static_cast<double>(classes))});
    parts_.push_back({z, first, own, results[0], results[1], results[2]});
  }

  static int64_t columns(const Part& p) { return p.scores.type().dims()[1]; }

  /// Replaces the loss and lse. With k the part of a row's label and s = Σ exp(lseᵢ - lseₖ) over
  /// the other parts, the loss is lossₖ + ln(1 + s): its error is relative to it, however small.
  /// Where all of part k is -inf, the sum is that of the other parts.
  void join() {
    const auto of_own = [&](Value Part::*v) {
      std::vector<Value> picked;
      for (const Part& p : parts_) picked.push_back(where(p.own, p.*v, 0));
      return total(picked);
    };
    const double none = -std::numeric_limits<double>::infinity();
    const Value own = of_own(&Part::lse), rest = of_own(&Part::lse_rest);
    const Value empty = equal(own, none), lse = where(empty, 0, own);
    const Value exponent = where(empty, none, scalar(g_, 0, own.dtype()));  // of the label's part
    Value greatest;
    std::vector<Value> above;
    for (const Part& p : parts_) {
      above.push_back(where(p.own, none, (p.lse - lse) + (p.lse_rest - rest)));
      greatest = greatest ? apply("Max", {greatest, above.back()}) : above.back();
    }
    greatest = apply("Max", {greatest, exponent});
    std::vector<Value> terms;
    for (const Value& v : above) terms.push_back(exp(v - greatest));
    // ln(1 + x), exact near 0: adds a correction for the rounding error of the sum.
    const Value x = total(terms) + (exp(exponent - greatest) - 1), y = x + 1;
    const Value more = greatest + (log(y) + (x - (y - 1)) / y);
    const LabelRows rows = label_rows(loss_, loss_.input(1), {}, lse.dtype());
    Value losses = where(empty, more - none, of_own(&Part::loss) + more);
    if (rows.counts) losses = where(rows.counts, losses, 0);
    g_.replace_uses(loss_.output(0), reduce_losses(loss_, losses, rows.weights));
    if (!loss_.output(1) || !loss_.output(2)) return;
    const Value all = lse + more, increment = all - lse;  // Knuth's two-sum
    lse_ = all;
    rest_ = ((lse - (all - increment)) + (more - increment)) + rest;
    g_.replace_uses(loss_.output(1), lse_);
    g_.replace_uses(loss_.output(2), rest_);
  }

  void divide() {
    const Graph::Scope scope(g_, gradient_.phase(), gradient_.name());
    for (int i = 0; i < split_.output_count(); ++i) {
      const Value y = split_.output(i);
      const Node reader = order_.first_of(y);
      if (!reader) continue;
      const Part& p = parts_[static_cast<size_t>(i)];
      const Value d =
          apply(gradient_.op(), {gradient_.input(0), p.scores, gradient_.input(2), lse_, rest_},
                attributes_of(gradient_, p.first));
      const Value shaped = d.rank() == y.rank() ? d : reshape(d, y.type().dims());
      for (Value v : {d, shaped}) g_.place_like(v.producer(), reader);
      g_.replace_uses(y, shaped);
    }
  }

  Graph& g_;
  Node loss_, concat_{}, gradient_{}, split_{};
  const ReadersInOrder& order_;
  std::vector<Part> parts_{};
  Value lse_{}, rest_{};
};

}  // namespace

bool take_loss_by_part(const Match& m, const ReadersInOrder& order) {
  PartialLosses losses(m.node("loss"), order);
  if (!losses.find()) return false;
  losses.replace();
  return true;
}

}  // namespace steep
