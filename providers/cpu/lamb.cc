// steep.Lamb: the first pass updates the moments and computes the norms of parameter and step, the
// second pass updates the parameter. The step is computed twice instead of being stored.
// steep.NarrowLamb keeps moments in fewer bits: both passes compute them in float32, and the second
// one rounds them.

#include <functional>

#include "providers/cpu/narrow_moments.h"
#include "providers/cpu/optimizer.h"
#include "providers/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "providers/cpu/lamb.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file again.
#include "providers/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace steep::cpu {
namespace HWY_NAMESPACE {

/// r = (m / correction1) / (sqrt(v / correction2) + epsilon) + weight_decay w
template <typename T>
struct Direction {
  using D = hn::ScalableTag<T>;
  hn::Vec<D> scale, root_scale, epsilon, decay;

  HWY_INLINE Direction(D d, const AdamStep& s)
      : scale(hn::Set(d, static_cast<T>(1 / s.correction1))),
        root_scale(hn::Set(d, static_cast<T>(1 / std::sqrt(s.correction2)))),
        epsilon(hn::Set(d, static_cast<T>(s.epsilon))),
        decay(hn::Set(d, static_cast<T>(s.weight_decay))) {}

  HWY_INLINE hn::Vec<D> operator()(hn::Vec<D> w, hn::Vec<D> m, hn::Vec<D> v) const {
    const auto denominator = hn::MulAdd(hn::Sqrt(v), root_scale, epsilon);
    return hn::MulAdd(decay, w, hn::Div(hn::Mul(m, scale), denominator));
  }
};

/// Updates the moments of [begin, end). squares[0] and squares[1] receive the sums of w² and r².
template <typename T>
HWY_INLINE void lamb_measure(const AdamStep& s, const KernelArgs& args, int64_t begin, int64_t end,
                             double* squares) {
  const hn::ScalableTag<T> d;
  const Direction<T> direction(d, s);
  const auto grad_scale = hn::Set(d, static_cast<T>(s.grad_scale));
  const auto one_less_beta1 = hn::Set(d, static_cast<T>(1 - s.beta1));
  const auto beta2 = hn::Set(d, static_cast<T>(s.beta2));
  const auto one_less_beta2 = hn::Set(d, static_cast<T>(1 - s.beta2));
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  auto w_squares = hn::Zero(d), r_squares = hn::Zero(d);
  for (int64_t i = begin; i < end; i += lanes) {
    const auto count = static_cast<size_t>(std::min(lanes, end - i));
    const auto w = load_n(d, args.input<T>(0) + i, count);
    const auto g = hn::Mul(load_n(d, args.input<T>(1) + i, count), grad_scale);
    auto m = load_n(d, args.input<T>(kM) + i, count);
    m = hn::MulAdd(one_less_beta1, hn::Sub(g, m), m);
    const auto v = hn::MulAdd(hn::Mul(one_less_beta2, g), g,
                              hn::Mul(load_n(d, args.input<T>(kV) + i, count), beta2));
    store_n(m, d, args.output<T>(1) + i, count);
    store_n(v, d, args.output<T>(2) + i, count);
    const auto r = hn::IfThenElseZero(hn::FirstN(d, count), direction(w, m, v));
    w_squares = hn::MulAdd(w, w, w_squares);
    r_squares = hn::MulAdd(r, r, r_squares);
  }
  squares[0] = hn::GetLane(hn::SumOfLanes(d, w_squares));
  squares[1] = hn::GetLane(hn::SumOfLanes(d, r_squares));
}

/// w -= rate r, from the moments that lamb_measure() wrote.
template <typename T>
HWY_INLINE void lamb_move(const AdamStep& s, const KernelArgs& args, double rate, int64_t begin,
                          int64_t end) {
  const hn::ScalableTag<T> d;
  const Direction<T> direction(d, s);
  const auto rates = hn::Set(d, static_cast<T>(rate));
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t i = begin; i < end; i += lanes) {
    const auto count = static_cast<size_t>(std::min(lanes, end - i));
    const auto w = load_n(d, args.input<T>(0) + i, count);
    const auto r = direction(w, load_n(d, args.output<T>(1) + i, count),
                             load_n(d, args.output<T>(2) + i, count));
    store_n(hn::NegMulAdd(rates, r, w), d, args.output<T>(0) + i, count);
  }
}

void measure_f32(const AdamStep& s, const KernelArgs& a, int64_t begin, int64_t end,
                 double* squares) {
  lamb_measure<float>(s, a, begin, end, squares);
}
void measure_f64(const AdamStep& s, const KernelArgs& a, int64_t begin, int64_t end,
                 double* squares) {
  lamb_measure<double>(s, a, begin, end, squares);
}
void move_f32(const AdamStep& s, const KernelArgs& a, double rate, int64_t begin, int64_t end) {
  lamb_move<float>(s, a, rate, begin, end);
}
void move_f64(const AdamStep& s, const KernelArgs& a, double rate, int64_t begin, int64_t end) {
  lamb_move<double>(s, a, rate, begin, end);
}

}  // namespace HWY_NAMESPACE
}  // namespace steep::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace steep::cpu {
namespace {

HWY_EXPORT(measure_f32);
HWY_EXPORT(measure_f64);
HWY_EXPORT(move_f32);
HWY_EXPORT(move_f64);

/// The norm of the parameter by that of the step, from the squares of all parts.
double trust_of(const double* squares, int64_t parts) {
  double w_squares = 0, r_squares = 0;
  for (int64_t part = 0; part < parts; ++part) {
    w_squares += squares[2 * part];
    r_squares += squares[2 * part + 1];
  }
  const bool degenerate = w_squares == 0 || r_squares == 0;
  return degenerate ? 1 : std::sqrt(w_squares) / std::sqrt(r_squares);
}

class Lamb final : public Kernel {
 public:
  Lamb(const NodeSpec& node, StepInputs inputs)
      : size_(node.in(0).size()),
        f32_(node.in(0).dtype == DType::f32),
        bias_correction_(node.attrs.integer("bias_correction") != 0),
        options_(node.attrs),
        inputs_(inputs) {
    may_share = {{0, 0}, {kM, 1}, {kV, 2}};
    scratch_bytes = static_cast<size_t>(sum_parts(size_)) * 2 * sizeof(double);
  }

  void execute(const KernelArgs& args) const override {
    const AdamStep step = options_.at(inputs_, args, bias_correction_);
    auto* squares = static_cast<double*>(args.scratch);
    const int64_t parts = sum_parts(size_);
    parallel_for(parts, 1, [&](int64_t first, int64_t last) {
      for (int64_t part = first; part < last; ++part) {
        const int64_t begin = part * kSumPart;
        const int64_t end = std::min(begin + kSumPart, size_);
        f32_ ? HWY_DYNAMIC_DISPATCH(measure_f32)(step, args, begin, end, squares + 2 * part)
             : HWY_DYNAMIC_DISPATCH(measure_f64)(step, args, begin, end, squares + 2 * part);
      }
    });
    const double trust = trust_of(squares, parts);
    parallel_for(size_, kSumPart, [&](int64_t begin, int64_t end) {
      f32_ ? HWY_DYNAMIC_DISPATCH(move_f32)(step, args, step.lr * trust, begin, end)
           : HWY_DYNAMIC_DISPATCH(move_f64)(step, args, step.lr * trust, begin, end);
    });
  }

 private:
  int64_t size_;
  bool f32_, bias_correction_;
  AdamOptions options_;
  StepInputs inputs_;
};

std::unique_ptr<Kernel> make_lamb(const NodeSpec& node, std::string* why_not) {
  const auto inputs = step_inputs(node, 4, why_not);
  return inputs ? std::make_unique<Lamb>(node, *inputs) : nullptr;
}

class NarrowLamb final : public Kernel {
 public:
  NarrowLamb(const NodeSpec& node, StepInputs inputs, NarrowMoments moments)
      : parts_(narrow_parts(node.in(0).size())),
        bias_correction_(node.attrs.integer("bias_correction") != 0),
        options_(node.attrs),
        inputs_(inputs),
        moments_(moments) {
    may_share = moments_.shared();
    scratch_bytes = static_cast<size_t>(parts_) * 2 * sizeof(double);
  }

  void execute(const KernelArgs& args) const override {
    const AdamStep step = options_.at(inputs_, args, bias_correction_);
    auto* squares = static_cast<double*>(args.scratch);
    parallel_for(parts_, 16, [&](int64_t first, int64_t last) {
      NarrowMoments::Part part;
      for (int64_t i = first; i < last; ++i) {
        moments_.read(args, i, part);
        HWY_DYNAMIC_DISPATCH(measure_f32)(step, part.args(), 0, part.count, squares + 2 * i);
      }
    });
    const double rate = step.lr * trust_of(squares, parts_);
    moments_.update(args, [&](NarrowMoments::Part& part) {
      double unused[2];
      HWY_DYNAMIC_DISPATCH(measure_f32)(step, part.args(), 0, part.count, unused);
      HWY_DYNAMIC_DISPATCH(move_f32)(step, part.args(), rate, 0, part.count);
    });
  }

 private:
  int64_t parts_;
  bool bias_correction_;
  AdamOptions options_;
  StepInputs inputs_;
  NarrowMoments moments_;
};

std::unique_ptr<Kernel> make_narrow_lamb(const NodeSpec& node, std::string* why_not) {
  auto moments = NarrowMoments::of(node, 2, why_not);
  if (moments && !moments->wide()) {
    *why_not = "the parameter is not float32";
    moments.reset();
  }
  const auto inputs = moments ? step_numbers(node, 4, why_not) : std::nullopt;
  return inputs ? std::make_unique<NarrowLamb>(node, *inputs, *moments) : nullptr;
}

}  // namespace

void register_lamb(std::vector<Candidate>& list) {
  list.push_back({"steep.NarrowLamb", "simd", make_narrow_lamb});
  list.push_back({"steep.Lamb", "simd", make_lamb});
}

}  // namespace steep::cpu
#endif  // HWY_ONCE
