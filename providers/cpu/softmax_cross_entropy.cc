// steep.SoftmaxCrossEntropy and steep.SoftmaxCrossEntropyGrad. Each makes one pass over the logits,
// which for a vocabulary are the largest array of a training step.

#include <fmt/format.h>

#include <cmath>
#include <functional>
#include <optional>

#include "providers/cpu/convert.h"
#include "providers/cpu/kernel.h"
#include "providers/cpu/parallel.h"
#include "steep/error.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "providers/cpu/softmax_cross_entropy.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file again.
#include "providers/cpu/softmax_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace steep::cpu {
namespace HWY_NAMESPACE {

/// As others_row(), for rows that fit into one vector.
template <typename T>
double others_of_few(Floats d, const T* x, size_t n, size_t label, float* shift) {
  const auto lowest = hn::Set(d, -std::numeric_limits<float>::infinity());
  const auto v = load_n(d, x, n);
  const auto there = hn::FirstN(d, n);
  const float max = hn::GetLane(hn::MaxOfLanes(d, hn::IfThenElse(there, v, lowest)));
  *shift = max == hn::GetLane(lowest) ? 0 : max;
  const auto e = hn::IfThenElseZero(there, exp_bounded(d, hn::Sub(v, hn::Set(d, *shift))));
  return hn::GetLane(hn::SumOfLanes(d, but_for(d, e, label)));
}

/// Σ exp(x - shift) over all classes except the label, block by block, and the shift. The shift is
/// at least the label's score, and close to the greatest score. It is the maximum of the first
/// block, unless the label's score is greater, or a later block exceeds it so far that precision
/// would be lost.
template <typename T>
double others_row(const T* x, size_t n, size_t label, float* shift) {
  constexpr size_t kBlock = 2048;
  constexpr float kFar = 4;
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  const Floats d;
  if (n <= hn::Lanes(d)) return others_of_few(d, x, n, label, shift);
  float max = row_max(d, x, std::min(kBlock, n));
  const auto finite = [&] { return max == kLowest ? 0 : max; };
  double sum = 0;
  const auto raise = [&](float to) {
    if (sum != 0) sum *= std::exp(static_cast<double>(max) - to);
    max = to;
  };
  for (size_t j = 0; j < n; j += kBlock) {
    const size_t count = std::min(kBlock, n - j);
    if (label - j < count && x[label] > max) raise(x[label]);
    float greatest = kLowest;
    float terms = row_exp_sum(d, x + j, count, finite(), nullptr, &greatest, label - j);
    if (greatest > max + kFar) {
      raise(greatest);
      terms = row_exp_sum(d, x + j, count, max, nullptr, nullptr, label - j);
    }
    sum += terms;
  }
  *shift = finite();
  return sum;
}

/// dx = factor exp(x - lse). In place if dx == x and the types are the same.
template <typename T, typename Dx>
void softmax_row(const T* x, float lse, float factor, Dx* dx, size_t n) {
  const Floats d;
  const auto shift = hn::Set(d, lse);
  const auto factors = hn::Set(d, factor);
  for_each_vector(d, x, n, [&](VecF v, size_t j, size_t count) {
    const auto y = hn::Mul(factors, exp_bounded(d, hn::Sub(v, shift)));
    if (count == hn::Lanes(d)) {
      store(y, d, dx + j);
    } else {
      store_n(y, d, dx + j, count);
    }
  });
}

double others_f32(const float* x, size_t n, size_t label, float* shift) {
  return others_row(x, n, label, shift);
}
double others_bf16(const Bf16* x, size_t n, size_t label, float* shift) {
  return others_row(x, n, label, shift);
}
void softmax_f32(const float* x, float lse, float factor, float* dx, size_t n) {
  softmax_row(x, lse, factor, dx, n);
}
void softmax_bf16(const Bf16* x, float lse, float factor, Bf16* dx, size_t n) {
  softmax_row(x, lse, factor, dx, n);
}
void softmax_to_f32(const Bf16* x, float lse, float factor, float* dx, size_t n) {
  softmax_row(x, lse, factor, dx, n);
}
void softmax_to_bf16(const float* x, float lse, float factor, Bf16* dx, size_t n) {
  softmax_row(x, lse, factor, dx, n);
}

}  // namespace HWY_NAMESPACE
}  // namespace steep::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace steep::cpu {
namespace {

HWY_EXPORT(others_f32);
HWY_EXPORT(others_bf16);
HWY_EXPORT(softmax_f32);
HWY_EXPORT(softmax_bf16);
HWY_EXPORT(softmax_to_bf16);
HWY_EXPORT(softmax_to_f32);

double others(const float* x, size_t n, size_t label, float* shift) {
  return HWY_DYNAMIC_DISPATCH(others_f32)(x, n, label, shift);
}
double others(const Bf16* x, size_t n, size_t label, float* shift) {
  return HWY_DYNAMIC_DISPATCH(others_bf16)(x, n, label, shift);
}
double others(const double* x, size_t n, size_t label, double* shift) {
  double max = -std::numeric_limits<double>::infinity(), sum = 0;
  for (size_t j = 0; j < n; ++j) max = std::max(max, x[j]);
  *shift = std::isinf(max) && max < 0 ? 0 : max;
  for (size_t j = 0; j < n; ++j) sum += j == label ? 0 : std::exp(x[j] - *shift);
  return sum;
}

void scaled_softmax(const float* x, float lse, float factor, float* dx, int64_t n) {
  HWY_DYNAMIC_DISPATCH(softmax_f32)(x, lse, factor, dx, static_cast<size_t>(n));
}
void scaled_softmax(const Bf16* x, float lse, float factor, Bf16* dx, int64_t n) {
  HWY_DYNAMIC_DISPATCH(softmax_bf16)(x, lse, factor, dx, static_cast<size_t>(n));
}
void scaled_softmax(const Bf16* x, float lse, float factor, float* dx, int64_t n) {
  HWY_DYNAMIC_DISPATCH(softmax_to_f32)(x, lse, factor, dx, static_cast<size_t>(n));
}
void scaled_softmax(const float* x, float lse, float factor, Bf16* dx, int64_t n) {
  HWY_DYNAMIC_DISPATCH(softmax_to_bf16)(x, lse, factor, dx, static_cast<size_t>(n));
}
void scaled_softmax(const double* x, double lse, double factor, double* dx, int64_t n) {
  for (int64_t j = 0; j < n; ++j) dx[j] = factor * std::exp(x[j] - lse);
}

/// The type of losses, weights and sums, for logits of type T.
template <typename T>
using Real = std::conditional_t<std::is_same_v<T, Bf16>, float, T>;

constexpr size_t kNoLabel = SIZE_MAX;

/// The loss of one row: -log softmax(x)[label], or lse without a label, and lse = log Σ exp(x). If
/// the label has nearly all of the probability, the loss is log(1 + rest) with a small rest, and
/// lse minus the label's score is close to 0. So the label's 1 is left out of the sum, which then
/// keeps its digits.
struct RowLoss {
  double loss, lse;
};
template <typename T>
RowLoss row_loss(const T* x, int64_t n, size_t label) {
  Real<T> shift;
  const double sum = others(x, static_cast<size_t>(n), label, &shift);
  if (label == kNoLabel) {
    const double lse = shift + std::log(sum);
    return {lse, lse};
  }
  const double below = static_cast<double>(x[label]) - shift;
  // Otherwise another class has more than half of the probability: the loss is not a small
  // difference, and its terms need no more digits than their sum.
  const double log_sum =
      below == 0 ? std::log1p(sum)
                 : std::log(static_cast<Real<T>>(sum) + std::exp(static_cast<Real<T>>(below)));
  return {log_sum - below, shift + log_sum};
}

void set(float& x, float v) { x = v; }
void set(double& x, double v) { x = v; }
void set(Bf16& x, float v) { x = {float_to_bf16(v)}; }

enum class Reduction : uint8_t { none, sum, mean };

/// Shared by the loss and its gradient: labels and their weights, of type T.
template <typename T, typename Label>
class CrossEntropyKernel : public Kernel {
 protected:
  CrossEntropyKernel(const NodeSpec& node, const Operand& logits, size_t weights)
      : node_(node.name),
        op_(node.op),
        rows_(logits.dims[0]),
        classes_(logits.dims[1]),
        weights_(node.in(weights).present() ? static_cast<int>(weights) : -1) {
    const std::string reduction = node.attrs.string("reduction");
    reduction_ = reduction == "none"  ? Reduction::none
                 : reduction == "sum" ? Reduction::sum
                                      : Reduction::mean;
    if (node.attrs.has("ignore_index")) ignored_ = node.attrs.integer("ignore_index");
    some_rows_ = node.attrs.has("some_rows");
    all_classes_ = classes_;
    if (node.attrs.has("first")) {
      first_ = node.attrs.integer("first");
      all_classes_ = node.attrs.integer("classes");
    }
  }

  const T* weights(const KernelArgs& args) const {
    return weights_ < 0 ? nullptr : args.input<T>(weights_);
  }

  bool counts(Label label) const { return !ignored_ || label != *ignored_; }

  /// The class of a label that counts, among these scores; kNoLabel if the class is in another
  /// part.
  size_t class_of(Label label) const {
    const uint64_t at = static_cast<uint64_t>(label) - static_cast<uint64_t>(first_);
    return at < static_cast<uint64_t>(classes_) ? static_cast<size_t>(at) : kNoLabel;
  }

  T weight(const T* weights, Label label) const {
    return weights == nullptr ? T{1} : weights[label];
  }

  /// Throws DataError when a label that counts is out of range.
  void check_labels(const Label* labels) const {
    for (int64_t i = 0; i < rows_; ++i) {
      const int64_t label = labels[i];
      if (!counts(labels[i]) || (label >= 0 && label < all_classes_)) continue;
      throw DataError({.what = "A label is not one of the classes.",
                       .node = node_,
                       .op = op_,
                       .expected = fmt::format("labels from 0 to {}{}", all_classes_ - 1,
                                               ignored_ ? fmt::format(", or {}", *ignored_) : ""),
                       .received = some_rows_ ? fmt::format("{}", label)
                                              : fmt::format("{} in row {}", label, i),
                       .remedy = "correct the labels, or set ignore_index to the value that marks "
                                 "rows to leave out"});
    }
  }

  double weight_sum(const Label* labels, const T* weights) const {
    double sum = 0;
    for (int64_t i = 0; i < rows_; ++i) {
      if (counts(labels[i])) sum += weight(weights, labels[i]);
    }
    return sum;
  }

  int64_t row_grain() const { return grain_of(8192, classes_); }

  std::string node_, op_;
  bool some_rows_ = false;  ///< row numbers differ from the caller's
  int64_t rows_, classes_;
  int64_t all_classes_ = 0, first_ = 0;  ///< the scores are those of classes first_, first_ + 1, …
  int weights_;                          // index of the input, or -1
  Reduction reduction_;
  std::optional<int64_t> ignored_;
};

template <typename T, typename Label>
class CrossEntropy final : public CrossEntropyKernel<Real<T>, Label> {
  using R = Real<T>;

 public:
  explicit CrossEntropy(const NodeSpec& node)
      : CrossEntropyKernel<R, Label>(node, node.in(0), 2),
        has_loss_(node.out(0).present()),
        has_lse_(node.out(1).present()),
        has_lse_rest_(node.out(2).present()) {
    this->scratch_bytes = static_cast<size_t>(this->rows_) * sizeof(R);
  }

  void execute(const KernelArgs& args) const override {
    const T* logits = args.input<T>(0);
    const Label* labels = args.input<Label>(1);
    const R* weights = this->weights(args);
    this->check_labels(labels);

    auto* losses = static_cast<R*>(args.scratch);
    R* lse = has_lse_ ? args.output<R>(1) : nullptr;
    R* lse_rest = has_lse_rest_ ? args.output<R>(2) : nullptr;
    parallel_for(this->rows_, this->row_grain(), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const bool counts = this->counts(labels[i]);
        const RowLoss row = row_loss(logits + i * this->classes_, this->classes_,
                                     counts ? this->class_of(labels[i]) : kNoLabel);
        losses[i] = counts ? static_cast<R>(this->weight(weights, labels[i]) * row.loss) : R{0};
        const R rounded = static_cast<R>(row.lse);
        if (lse != nullptr) lse[i] = rounded;
        if (lse_rest != nullptr) {
          lse_rest[i] = std::isfinite(rounded) ? static_cast<R>(row.lse - rounded) : R{0};
        }
      }
    });
    if (!has_loss_) return;
    if (this->reduction_ == Reduction::none) {
      std::copy_n(losses, this->rows_, args.output<R>(0));
      return;
    }
    double sum = 0;
    for (int64_t i = 0; i < this->rows_; ++i) sum += losses[i];
    if (this->reduction_ == Reduction::mean) sum /= this->weight_sum(labels, weights);
    *args.output<R>(0) = static_cast<R>(sum);
  }

 private:
  bool has_loss_;
  bool has_lse_, has_lse_rest_;
};

/// T: type of the logits; Dx: type of their gradient.
template <typename T, typename Dx, typename Label>
class CrossEntropyGradOf final : public CrossEntropyKernel<Real<T>, Label> {
  using R = Real<T>;

 public:
  explicit CrossEntropyGradOf(const NodeSpec& node)
      : CrossEntropyKernel<R, Label>(node, node.in(1), 5) {
    this->may_share = {{1, 0}};
  }

  void execute(const KernelArgs& args) const override {
    const R* dloss = args.input<R>(0);
    const T* logits = args.input<T>(1);
    const Label* labels = args.input<Label>(2);
    const R* lse = args.input<R>(3);
    const R* lse_rest = args.input<R>(4);
    const R* weights = this->weights(args);
    Dx* dlogits = args.output<Dx>(0);
    this->check_labels(labels);

    const bool none = this->reduction_ == Reduction::none;
    const double divisor =
        this->reduction_ == Reduction::mean ? this->weight_sum(labels, weights) : 1.0;
    parallel_for(this->rows_, this->row_grain(), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const T* x = logits + i * this->classes_;
        Dx* dx = dlogits + i * this->classes_;
        const Label label = labels[i];
        if (!this->counts(label)) {
          std::fill_n(dx, this->classes_, Dx{0});
          continue;
        }
        const double factor = dloss[none ? i : 0] * this->weight(weights, label) / divisor;
        const size_t own = this->class_of(label);
        // Read before the row is overwritten.
        const double score = own == kNoLabel ? 0 : static_cast<double>(x[own]);
        scaled_softmax(x, lse[i], static_cast<R>(factor * std::exp(-lse_rest[i])), dx,
                       this->classes_);
        if (own == kNoLabel) continue;
        const double log_p = (score - lse[i]) - lse_rest[i];
        if constexpr (std::is_same_v<Dx, R>) {
          if (log_p < -1) {
            dx[own] -= static_cast<R>(factor);
            continue;
          }
        }
        // p - 1 would be mostly rounding error where p is close to 1.
        set(dx[own], static_cast<R>(factor * std::expm1(static_cast<R>(log_p))));
      }
    });
  }
};

template <typename T, typename Label>
using CrossEntropyGrad = CrossEntropyGradOf<T, T, Label>;
template <typename T, typename Label>
using CrossEntropyNarrowGrad = CrossEntropyGradOf<T, Bf16, Label>;
template <typename T, typename Label>
using CrossEntropyWideGrad = CrossEntropyGradOf<T, float, Label>;

template <template <typename, typename> class K, typename T>
std::unique_ptr<Kernel> for_labels(const NodeSpec& node, DType labels, std::string* why_not) {
  if (labels == DType::i64) return std::make_unique<K<T, int64_t>>(node);
  if (labels == DType::i32) return std::make_unique<K<T, int32_t>>(node);
  *why_not = "labels are neither int64 nor int32";
  return nullptr;
}

template <template <typename, typename> class K, typename T>
std::unique_ptr<Kernel> make(const NodeSpec& node, std::string* why_not) {
  const bool grad = node.op == "steep.SoftmaxCrossEntropyGrad";
  const size_t first = grad ? 1 : 0;
  const Operand& logits = node.in(first);
  const Operand& labels = node.in(first + 1);
  const Operand& weights = node.in(grad ? 5 : 2);
  const DType type = std::is_same_v<T, Bf16> ? DType::bf16 : dtype_of<Real<T>>();
  const DType real = dtype_of<Real<T>>();
  const bool narrow = std::is_same_v<K<T, int64_t>, CrossEntropyNarrowGrad<T, int64_t>>;
  const DType result = narrow ? DType::bf16 : real;
  if (logits.dtype != type || (weights.present() && weights.dtype != real) ||
      (node.out(0).present() && node.out(0).dtype != result) ||
      (grad &&
       (node.in(0).dtype != real || node.in(3).dtype != real || node.in(4).dtype != real)) ||
      (!grad && node.out(1).present() && node.out(1).dtype != real)) {
    *why_not =
        fmt::format("logits are not {}, or the result not {}", name_of(type), name_of(result));
    return nullptr;
  }
  if (node.attrs.has("first") && weights.present()) {
    *why_not = "a part of the classes has no weights";
    return nullptr;
  }
  if (logits.rank() != 2 || labels.dims != Dims{logits.dims[0]} ||
      (weights.present() && weights.size() != logits.dims[1])) {
    *why_not = "shapes are not [N, C], [N], [C]";
    return nullptr;
  }
  return for_labels<K, T>(node, labels.dtype, why_not);
}

}  // namespace

void register_softmax_cross_entropy(std::vector<Candidate>& list) {
  list.push_back({"steep.SoftmaxCrossEntropy", "simd", make<CrossEntropy, float>});
  list.push_back({"steep.SoftmaxCrossEntropy", "simd_bf16", make<CrossEntropy, Bf16>});
  list.push_back({"steep.SoftmaxCrossEntropy", "reference", make<CrossEntropy, double>});
  list.push_back({"steep.SoftmaxCrossEntropyGrad", "simd", make<CrossEntropyGrad, float>});
  list.push_back(
      {"steep.SoftmaxCrossEntropyGrad", "simd_bf16", make<CrossEntropyNarrowGrad, Bf16>});
  list.push_back(
      {"steep.SoftmaxCrossEntropyGrad", "simd_to_f32", make<CrossEntropyWideGrad, Bf16>});
  list.push_back(
      {"steep.SoftmaxCrossEntropyGrad", "simd_to_bf16", make<CrossEntropyNarrowGrad, float>});
  list.push_back({"steep.SoftmaxCrossEntropyGrad", "reference", make<CrossEntropyGrad, double>});
}

}  // namespace steep::cpu
#endif  // HWY_ONCE
