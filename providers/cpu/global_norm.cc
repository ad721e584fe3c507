// steep.GlobalNorm: the root of the sum of squares over all elements of all inputs.

#include <functional>

#include "providers/cpu/optimizer.h"
#include "providers/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "providers/cpu/global_norm.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file again.
#include "providers/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace steep::cpu {
namespace HWY_NAMESPACE {

/// In double, which can hold the square of every float.
double square_sum_f32(const float* x, size_t n) {
  const hn::ScalableTag<double> d;
  const hn::Rebind<float, decltype(d)> half;
  const size_t lanes = hn::Lanes(d);
  auto s0 = hn::Zero(d), s1 = hn::Zero(d);
  size_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    const auto a = hn::PromoteTo(d, hn::LoadU(half, x + i));
    const auto b = hn::PromoteTo(d, hn::LoadU(half, x + i + lanes));
    s0 = hn::MulAdd(a, a, s0);
    s1 = hn::MulAdd(b, b, s1);
  }
  double rest = 0;
  for (; i < n; ++i) rest += static_cast<double>(x[i]) * x[i];
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(s0, s1))) + rest;
}

}  // namespace HWY_NAMESPACE
}  // namespace steep::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace steep::cpu {
namespace {

HWY_EXPORT(square_sum_f32);

struct Part {
  size_t input;
  int64_t begin, end;
  bool f32;
};

class GlobalNorm final : public Kernel {
 public:
  explicit GlobalNorm(const NodeSpec& node) {
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const int64_t size = node.in(i).present() ? node.in(i).size() : 0;
      for (int64_t begin = 0; begin < size; begin += kSumPart) {
        parts_.push_back(
            {i, begin, std::min(begin + kSumPart, size), node.in(i).dtype == DType::f32});
      }
    }
    scratch_bytes = parts_.size() * sizeof(double);
  }

  void execute(const KernelArgs& args) const override {
    auto* sums = static_cast<double*>(args.scratch);
    const auto count = static_cast<int64_t>(parts_.size());
    parallel_for(count, 4, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) sums[i] = sum(parts_[static_cast<size_t>(i)], args);
    });
    double total = 0;
    for (int64_t i = 0; i < count; ++i) total += sums[i];
    *args.output<float>(0) = static_cast<float>(std::sqrt(total));
  }

 private:
  static double sum(const Part& part, const KernelArgs& args) {
    if (part.f32) {
      return HWY_DYNAMIC_DISPATCH(square_sum_f32)(args.input<float>(part.input) + part.begin,
                                                  static_cast<size_t>(part.end - part.begin));
    }
    const double* x = args.input<double>(part.input);
    double total = 0;
    for (int64_t i = part.begin; i < part.end; ++i) total += x[i] * x[i];
    return total;
  }

  std::vector<Part> parts_;
};

std::unique_ptr<Kernel> make_global_norm(const NodeSpec& node, std::string* why_not) {
  for (const Operand& x : node.inputs) {
    if (!x.present() || x.dtype == DType::f32 || x.dtype == DType::f64) continue;
    *why_not = "a gradient is neither float32 nor float64";
    return nullptr;
  }
  return std::make_unique<GlobalNorm>(node);
}

}  // namespace

void register_global_norm(std::vector<Candidate>& list) {
  list.push_back({"steep.GlobalNorm", "simd", make_global_norm});
}

}  // namespace steep::cpu
#endif  // HWY_ONCE
