// steep.Adam: one pass over parameter, gradient and both moments, in torch.optim's order of
// operations.

#include <functional>

#include "providers/cpu/optimizer.h"
#include "providers/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "providers/cpu/adam.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file again.
#include "providers/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace steep::cpu {
namespace HWY_NAMESPACE {

/// Elements [begin, end). Inputs and outputs may be the same arrays.
template <bool kDecoupled, typename T>
HWY_INLINE void adam_range(const AdamStep& s, const KernelArgs& args, int64_t begin, int64_t end) {
  const hn::ScalableTag<T> d;
  const auto set = [&](double v) { return hn::Set(d, static_cast<T>(v)); };
  const auto grad_scale = set(s.grad_scale), decay = set(s.weight_decay);
  const auto shrink = set(1 - s.lr * s.weight_decay);
  const auto one_less_beta1 = set(1 - s.beta1), beta2 = set(s.beta2),
             one_less_beta2 = set(1 - s.beta2);
  const auto root_correction = set(std::sqrt(s.correction2)), epsilon = set(s.epsilon);
  const auto step_size = set(-s.lr / s.correction1);
  const auto *param = args.input<T>(0), *grad = args.input<T>(1);
  const auto *m_in = args.input<T>(kM), *v_in = args.input<T>(kV);
  const T* greatest_in = s.amsgrad ? args.input<T>(kGreatest) : nullptr;
  T *param_out = args.output<T>(0), *m_out = args.output<T>(1), *v_out = args.output<T>(2);
  T* greatest_out = s.amsgrad ? args.output<T>(3) : nullptr;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));

  const auto update = [&](int64_t i, auto load, auto store) HWY_ATTR {
    auto w = load(param + i);
    auto g = hn::Mul(load(grad + i), grad_scale);
    if constexpr (kDecoupled) {
      w = hn::Mul(w, shrink);
    } else {
      g = hn::MulAdd(decay, w, g);
    }
    auto m = load(m_in + i);
    m = hn::MulAdd(one_less_beta1, hn::Sub(g, m), m);
    const auto v = hn::MulAdd(hn::Mul(one_less_beta2, g), g, hn::Mul(load(v_in + i), beta2));
    auto greatest = v;
    if (greatest_in != nullptr) {
      greatest = hn::Max(load(greatest_in + i), v);
      store(greatest, greatest_out + i);
    }
    const auto denominator = hn::Add(hn::Div(hn::Sqrt(greatest), root_correction), epsilon);
    w = hn::Add(w, hn::Div(hn::Mul(step_size, m), denominator));
    store(w, param_out + i);
    store(m, m_out + i);
    store(v, v_out + i);
  };
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

void adam_f32(const AdamStep& s, const KernelArgs& args, int64_t begin, int64_t end) {
  adam_range<false, float>(s, args, begin, end);
}
void adam_f64(const AdamStep& s, const KernelArgs& args, int64_t begin, int64_t end) {
  adam_range<false, double>(s, args, begin, end);
}
void adamw_f32(const AdamStep& s, const KernelArgs& args, int64_t begin, int64_t end) {
  adam_range<true, float>(s, args, begin, end);
}
void adamw_f64(const AdamStep& s, const KernelArgs& args, int64_t begin, int64_t end) {
  adam_range<true, double>(s, args, begin, end);
}

}  // namespace HWY_NAMESPACE
}  // namespace steep::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace steep::cpu {
namespace {

HWY_EXPORT(adam_f32);
HWY_EXPORT(adam_f64);
HWY_EXPORT(adamw_f32);
HWY_EXPORT(adamw_f64);

class Adam final : public Kernel {
 public:
  Adam(const NodeSpec& node, StepInputs inputs)
      : size_(node.in(0).size()),
        f32_(node.in(0).dtype == DType::f32),
        decoupled_(node.attrs.integer("decoupled") != 0),
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
      if (f32_ && decoupled_) {
        HWY_DYNAMIC_DISPATCH(adamw_f32)(step, args, begin, end);
      } else if (f32_) {
        HWY_DYNAMIC_DISPATCH(adam_f32)(step, args, begin, end);
      } else if (decoupled_) {
        HWY_DYNAMIC_DISPATCH(adamw_f64)(step, args, begin, end);
      } else {
        HWY_DYNAMIC_DISPATCH(adam_f64)(step, args, begin, end);
      }
    });
  }

 private:
  int64_t size_;
  bool f32_, decoupled_, correct_, amsgrad_;
  AdamOptions options_;
  StepInputs inputs_;
};

std::unique_ptr<Kernel> make_adam(const NodeSpec& node, std::string* why_not) {
  const auto inputs = step_inputs(node, 4, why_not);
  return inputs ? std::make_unique<Adam>(node, *inputs) : nullptr;
}

}  // namespace

void register_adam(std::vector<Candidate>& list) {
  list.push_back({"steep.Adam", "simd", make_adam});
}

}  // namespace steep::cpu
#endif  // HWY_ONCE
