// steep.Adam: one pass over parameter, gradient and both moments. Rounds as torch.optim's fused
// Adam and AdamW, and as transformers' AdamW in PyTorch. steep.NarrowAdam: the same, with moments
// that are kept in fewer bits.

#include <functional>

#include "providers/cpu/narrow_moments.h"
#include "providers/cpu/optimizer.h"
#include "providers/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "providers/cpu/adam.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file again.
#include "providers/cpu/extremes-inl.h"
#include "providers/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace steep::cpu {
namespace HWY_NAMESPACE {

/// Where weight decay is applied: the attribute `decoupled`.
enum class Decay { in_gradient, before, after };

/// Calls update(i, load, store) for each vector from element i on; the last vector may be shorter.
template <class D, typename Update>
HWY_INLINE void for_vectors(D d, int64_t begin, int64_t end, const Update& update) {
  using T = hn::TFromD<D>;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = begin;
  for (; i + lanes <= end; i += lanes) {
    update(
        i, [&](const T* p) HWY_ATTR { return hn::LoadU(d, p); },
        [&](auto x, T* p) HWY_ATTR { hn::StoreU(x, d, p); });
  }
  const auto rest = static_cast<size_t>(end - i);
  if (rest != 0) {
    update(
        i, [&](const T* p) HWY_ATTR { return load_n(d, p, rest); },
        [&](auto x, T* p) HWY_ATTR { store_n(x, d, p, rest); });
  }
}

/// Updates elements [begin, end). Inputs and outputs may be the same arrays. kFolded: the
/// correction of the second moment is a part of two numbers, as in transformers' AdamW. That saves
/// one of three slow operations, and the parameter may differ in its last place.
template <Decay kDecay, bool kFolded, typename T>
HWY_INLINE void adam_range(const AdamStep& s, const KernelArgs& args, int64_t begin, int64_t end) {
  const hn::ScalableTag<T> d;
  const auto set = [&](double v) { return hn::Set(d, static_cast<T>(v)); };
  const auto grad_scale = set(s.grad_scale), decay = set(s.weight_decay);
  const auto shrink = set(1 - s.lr * s.weight_decay);
  const auto beta1 = set(s.beta1), one_less_beta1 = set(1 - s.beta1), beta2 = set(s.beta2),
             one_less_beta2 = set(1 - s.beta2);
  // as torch.lerp, which starts from the nearer end
  const bool from_m = static_cast<T>(1 - s.beta1) < T{0.5};
  const auto along = from_m ? one_less_beta1 : hn::Sub(one_less_beta1, set(1));
  const double root = std::sqrt(s.correction2);
  const auto root_correction = set(root);
  const auto epsilon = set(kFolded && kDecay != Decay::after ? s.epsilon * root : s.epsilon);
  const bool shrinks_after = s.weight_decay != 0;
  const auto less = set(-s.lr * s.weight_decay);
  const auto step_size = set(kFolded ? -(s.lr * root / s.correction1) : -s.lr / s.correction1);
  const auto *param = args.input<T>(0), *grad = args.input<T>(1);
  const auto *m_in = args.input<T>(kM), *v_in = args.input<T>(kV);
  const T* greatest_in = s.amsgrad ? args.input<T>(kGreatest) : nullptr;
  T *param_out = args.output<T>(0), *m_out = args.output<T>(1), *v_out = args.output<T>(2);
  T* greatest_out = s.amsgrad ? args.output<T>(3) : nullptr;

  const auto update = [&](int64_t i, auto load, auto store) HWY_ATTR {
    auto w = load(param + i);
    auto g = hn::Mul(load(grad + i), grad_scale);
    if constexpr (kDecay == Decay::before) w = hn::Mul(w, shrink);
    if constexpr (kDecay == Decay::in_gradient) g = hn::MulAdd(decay, w, g);
    auto m = load(m_in + i);
    if constexpr (kDecay == Decay::after) {
      m = hn::MulAdd(one_less_beta1, g, hn::Mul(m, beta1));
    } else {
      m = hn::MulAdd(along, hn::Sub(g, m), from_m ? m : g);
    }
    const auto v = hn::MulAdd(hn::Mul(one_less_beta2, g), g, hn::Mul(load(v_in + i), beta2));
    auto greatest = v;
    if (greatest_in != nullptr) {
      greatest = max_nan(load(greatest_in + i), v);
      store(greatest, greatest_out + i);
    }
    auto denominator = hn::Sqrt(greatest);
    if constexpr (!kFolded) denominator = hn::Div(denominator, root_correction);
    denominator = hn::Add(denominator, epsilon);
    w = hn::Add(w, hn::Div(hn::Mul(step_size, m), denominator));
    if (kDecay == Decay::after && shrinks_after) w = hn::MulAdd(less, w, w);
    store(w, param_out + i);
    store(m, m_out + i);
    store(v, v_out + i);
  };
  for_vectors(d, begin, end, update);
}

template <bool kFolded, typename T>
HWY_INLINE void adam_of(int64_t decoupled, const AdamStep& s, const KernelArgs& args, int64_t begin,
                        int64_t end) {
  switch (static_cast<Decay>(decoupled)) {
    case Decay::in_gradient: return adam_range<Decay::in_gradient, kFolded, T>(s, args, begin, end);
    case Decay::before: return adam_range<Decay::before, kFolded, T>(s, args, begin, end);
    case Decay::after: return adam_range<Decay::after, true, T>(s, args, begin, end);
  }
}

void adam_f32(int64_t decoupled, const AdamStep& s, const KernelArgs& args, int64_t begin,
              int64_t end) {
  adam_of<false, float>(decoupled, s, args, begin, end);
}
void adam_f64(int64_t decoupled, const AdamStep& s, const KernelArgs& args, int64_t begin,
              int64_t end) {
  adam_of<false, double>(decoupled, s, args, begin, end);
}
void adam_folded(int64_t decoupled, const AdamStep& s, const KernelArgs& args, int64_t begin,
                 int64_t end) {
  adam_of<true, float>(decoupled, s, args, begin, end);
}

}  // namespace HWY_NAMESPACE
}  // namespace steep::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace steep::cpu {
namespace {

HWY_EXPORT(adam_f32);
HWY_EXPORT(adam_f64);
HWY_EXPORT(adam_folded);

class Adam final : public Kernel {
 public:
  Adam(const NodeSpec& node, StepInputs inputs)
      : size_(node.in(0).size()),
        f32_(node.in(0).dtype == DType::f32),
        decoupled_(node.attrs.integer("decoupled")),
        correct_(node.attrs.integer("bias_correction") != 0),
        amsgrad_(node.in(kGreatest).present()),
        options_(node.attrs),
        inputs_(inputs) {
    may_share = {{0, 0}, {kM, 1}, {kV, 2}};
    if (amsgrad_) may_share.emplace_back(kGreatest, 3);
  }

  void execute(const KernelArgs& args) const override {
    AdamStep step = options_.at(inputs_, args, correct_);
    step.amsgrad = amsgrad_;
    parallel_for(size_, 16384, [&](int64_t begin, int64_t end) {
      if (f32_) {
        HWY_DYNAMIC_DISPATCH(adam_f32)(decoupled_, step, args, begin, end);
      } else {
        HWY_DYNAMIC_DISPATCH(adam_f64)(decoupled_, step, args, begin, end);
      }
    });
  }

 private:
  int64_t size_;
  bool f32_;
  int64_t decoupled_;
  bool correct_, amsgrad_;
  AdamOptions options_;
  StepInputs inputs_;
};

std::unique_ptr<Kernel> make_adam(const NodeSpec& node, std::string* why_not) {
  const auto inputs = step_inputs(node, 4, why_not);
  if (node.attrs.integer("decoupled") == 2 && node.in(kGreatest).present()) {
    *why_not = "transformers' AdamW has no AMSGrad";
    return nullptr;
  }
  return inputs ? std::make_unique<Adam>(node, *inputs) : nullptr;
}

class NarrowAdam final : public Kernel {
 public:
  NarrowAdam(const NodeSpec& node, StepInputs inputs, NarrowMoments moments)
      : decoupled_(node.attrs.integer("decoupled")),
        correct_(node.attrs.integer("bias_correction") != 0),
        options_(node.attrs),
        inputs_(inputs),
        moments_(moments) {
    may_share = moments_.shared();
  }

  void execute(const KernelArgs& args) const override {
    const AdamStep step = options_.at(inputs_, args, correct_);
    moments_.update(args, [&](NarrowMoments::Part& part) {
      HWY_DYNAMIC_DISPATCH(adam_folded)(decoupled_, step, part.args(), 0, part.count);
    });
  }

 private:
  int64_t decoupled_;
  bool correct_;
  AdamOptions options_;
  StepInputs inputs_;
  NarrowMoments moments_;
};

std::unique_ptr<Kernel> make_narrow_adam(const NodeSpec& node, std::string* why_not) {
  const auto moments = NarrowMoments::of(node, 2, why_not);
  const auto inputs = moments ? step_numbers(node, 4, why_not) : std::nullopt;
  return inputs ? std::make_unique<NarrowAdam>(node, *inputs, *moments) : nullptr;
}

}  // namespace

void register_adam(std::vector<Candidate>& list) {
  list.push_back({"steep.Adam", "simd", make_adam});
  list.push_back({"steep.NarrowAdam", "simd", make_narrow_adam});
}

}  // namespace steep::cpu
#endif  // HWY_ONCE
