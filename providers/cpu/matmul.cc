// MatMul and steep.MatMul: the list of candidates, and loops for every dtype and stride.

#include "providers/cpu/matmul.h"

#include <type_traits>

#include "providers/cpu/build_kernel.h"
#include "providers/cpu/choice.h"
#include "providers/cpu/cpu.h"
#include "providers/cpu/parallel.h"

namespace steep::cpu {
namespace {

// Signed overflow wraps, as in NumPy.
template <typename T>
struct Wrapping {
  using Type = T;
};
template <typename T>
  requires std::is_integral_v<T>
struct Wrapping<T> {
  using Type = std::make_unsigned_t<T>;
};

template <typename T>
class ReferenceMatMul final : public Kernel {
 public:
  explicit ReferenceMatMul(MatMulProblem problem) : p_(std::move(problem)) {
    flops = 2.0 * static_cast<double>(p_.multiplications());
  }

  void execute(const KernelArgs& args) const override {
    const int64_t rows = p_.batch_count() * p_.m;
    const int64_t cost = std::max<int64_t>(p_.n * p_.k, 1);
    parallel_for(rows, grain_of(65536, cost), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) compute_row(args, row);
    });
  }

 private:
  using Acc = typename Wrapping<T>::Type;
  static constexpr int64_t kBlock = 256;

  void compute_row(const KernelArgs& args, int64_t row) const {
    const T* a = args.input<T>(0) + (row % p_.m) * p_.a_m;
    const T* b = args.input<T>(1);
    T* y = args.output<T>(0) + (row % p_.m) * p_.y_m;
    int64_t rest = row / p_.m;
    for (size_t d = p_.batch.size(); d-- > 0;) {
      const int64_t i = rest % p_.batch[d];
      rest /= p_.batch[d];
      a += i * p_.a_batch[d];
      b += i * p_.b_batch[d];
      y += i * p_.y_batch[d];
    }
    for (int64_t j = 0; j < p_.n; j += kBlock) {
      const int64_t count = std::min(kBlock, p_.n - j);
      Acc sum[kBlock] = {};
      for (int64_t k = 0; k < p_.k; ++k) {
        const Acc factor = static_cast<Acc>(a[k * p_.a_k]);
        const T* w = b + k * p_.b_k + j * p_.b_n;
        for (int64_t c = 0; c < count; ++c) sum[c] += factor * static_cast<Acc>(w[c * p_.b_n]);
      }
      for (int64_t c = 0; c < count; ++c) {
        y[(j + c) * p_.y_n] = finish(args, static_cast<T>(sum[c]), j + c);
      }
    }
  }

  T finish(const KernelArgs& args, T value, int64_t column) const {
    if constexpr (std::is_floating_point_v<T>) {
      value *= static_cast<T>(p_.alpha);
      if (p_.bias) value += args.input<T>(2)[column];
    }
    return p_.relu && value < 0 ? T{0} : value;
  }

  MatMulProblem p_;
};

/// oneDNN's kernel, unless it multiplies bfloat16 more slowly than float32 here.
std::unique_ptr<Kernel> make_chosen_onednn(const NodeSpec& node, std::string* why_not) {
  static const bool native = has_products(DType::bf16);
  if (native && node.in(0).dtype == DType::bf16) {
    auto p = read_matmul(node, why_not, true);
    if (!p) return nullptr;
    if (p->y_n != 1 && p->y_m == 1) p = p->swap();
    if (p->multiplications() >= kFewMultiplications && widens_bf16(kind_of(*p))) {
      return decline(why_not, "its bfloat16 products are slower than float32 here");
    }
  }
  return make_onednn_matmul(node, why_not);
}

}  // namespace

std::unique_ptr<Kernel> make_reference_matmul(const NodeSpec& node, std::string* why_not) {
  auto p = read_matmul(node, why_not);
  if (!p) return nullptr;
  switch (p->dtype) {
    case DType::f32: return std::make_unique<ReferenceMatMul<float>>(*p);
    case DType::f64: return std::make_unique<ReferenceMatMul<double>>(*p);
    default: break;
  }
  if (p->alpha != 1 || p->bias) {
    *why_not = "alpha and bias need a float dtype";
    return nullptr;
  }
  switch (p->dtype) {
    case DType::i32: return std::make_unique<ReferenceMatMul<int32_t>>(*p);
    case DType::i64: return std::make_unique<ReferenceMatMul<int64_t>>(*p);
    case DType::u32: return std::make_unique<ReferenceMatMul<uint32_t>>(*p);
    case DType::u64: return std::make_unique<ReferenceMatMul<uint64_t>>(*p);
    default: *why_not = "dtype is not supported"; return nullptr;
  }
}

void register_matmul(std::vector<Candidate>& list) {
  for (std::string_view op : {"MatMul", "steep.MatMul"}) {
    list.push_back({op, "small", make_small_matmul});
    list.push_back({op, "onednn", make_chosen_onednn});
    list.push_back({op, "widened", make_widened_matmul});
    list.push_back({op, "blocked", make_blocked_matmul});
    list.push_back({op, "reference", make_reference_matmul});
  }
}

}  // namespace steep::cpu
