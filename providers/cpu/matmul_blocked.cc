// Products of any size in float32 and float64, without oneDNN: b is packed into panels as wide as
// the registers allow; a task is some rows and one panel. Goto & van de Geijn, Anatomy of
// High-Performance Matrix Multiplication, 2008, without the packing of a.
#include <fmt/format.h>

#include <algorithm>

#include "providers/cpu/build_kernel.h"
#include "providers/cpu/matmul.h"
#include "providers/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "providers/cpu/matmul_blocked.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file again.
#include "providers/cpu/matmul_tiles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace steep::cpu {
namespace HWY_NAMESPACE {

/// Terms of the sum per pass: a panel with this depth stays in the nearest caches.
constexpr int64_t kStretch = 256;

template <typename T>
int64_t width() {
  return panel_width(hn::ScalableTag<T>());
}

/// Packs columns of b, from j on, as [k, width]; pads with 0.
template <typename T>
void pack_panel(const MatMulProblem& p, const T* b, int64_t j, T* to) {
  const int64_t wide = width<T>(), count = std::min(wide, p.n - j);
  const T* from = b + j * p.b_n;
  for (int64_t k = 0; k < p.k; ++k) {
    for (int64_t c = count; c < wide; ++c) to[k * wide + c] = 0;
  }
  if (p.b_n == 1) {
    for (int64_t k = 0; k < p.k; ++k) std::copy_n(from + k * p.b_k, count, to + k * wide);
    return;
  }
  constexpr int64_t kRows = 16;  // one cache line of each row
  for (int64_t first = 0; first < p.k; first += kRows) {
    const int64_t last = std::min(first + kRows, p.k);
    for (int64_t c = 0; c < count; ++c) {
      for (int64_t k = first; k < last; ++k) to[k * wide + c] = from[k * p.b_k + c * p.b_n];
    }
  }
}

/// Computes rows [begin, end) of the columns from j on, or adds to them; `b`, `bias` (if per
/// column) and `y` point at column j. `b_k`: stride of b along k.
template <typename T>
void multiply_panel(const MatMulProblem& p, const T* a, const T* b, int64_t b_k, const T* bias,
                    T* y, int64_t begin, int64_t end, int64_t j, bool adds) {
  const hn::ScalableTag<T> d;
  const int64_t count = std::min(panel_width(d), p.n - j);
  for (int64_t k = 0; k == 0 || k < p.k; k += kStretch) {
    const Tile<T> tile{p,
                       a + k * p.a_k,
                       b + k * b_k,
                       b_k,
                       bias,
                       y,
                       std::min(kStretch, p.k - k),
                       k == 0 && !adds,
                       k + kStretch >= p.k};
    panel(d, tile, begin, end, 0, count);
  }
}

// Functions without types of this target, because the dispatcher does not have these types.
int64_t width_f32() { return width<float>(); }
int64_t width_f64() { return width<double>(); }
void pack_f32(const MatMulProblem& p, const float* b, int64_t j, float* to) {
  pack_panel(p, b, j, to);
}
void pack_f64(const MatMulProblem& p, const double* b, int64_t j, double* to) {
  pack_panel(p, b, j, to);
}
void multiply_f32(const MatMulProblem& p, const float* a, const float* b, int64_t b_k,
                  const float* bias, float* y, int64_t begin, int64_t end, int64_t j, bool adds) {
  multiply_panel(p, a, b, b_k, bias, y, begin, end, j, adds);
}
void multiply_f64(const MatMulProblem& p, const double* a, const double* b, int64_t b_k,
                  const double* bias, double* y, int64_t begin, int64_t end, int64_t j, bool adds) {
  multiply_panel(p, a, b, b_k, bias, y, begin, end, j, adds);
}

}  // namespace HWY_NAMESPACE
}  // namespace steep::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace steep::cpu {
namespace {

HWY_EXPORT(width_f32);
HWY_EXPORT(width_f64);
HWY_EXPORT(pack_f32);
HWY_EXPORT(pack_f64);
HWY_EXPORT(multiply_f32);
HWY_EXPORT(multiply_f64);

template <typename T>
int64_t width() {
  if constexpr (sizeof(T) == 4) return HWY_DYNAMIC_DISPATCH(width_f32)();
  return HWY_DYNAMIC_DISPATCH(width_f64)();
}

void pack(const MatMulProblem& p, const float* b, int64_t j, float* to) {
  HWY_DYNAMIC_DISPATCH(pack_f32)(p, b, j, to);
}
void pack(const MatMulProblem& p, const double* b, int64_t j, double* to) {
  HWY_DYNAMIC_DISPATCH(pack_f64)(p, b, j, to);
}

void multiply(const MatMulProblem& p, const float* a, const float* b, int64_t b_k,
              const float* bias, float* y, int64_t begin, int64_t end, int64_t j, bool adds) {
  HWY_DYNAMIC_DISPATCH(multiply_f32)(p, a, b, b_k, bias, y, begin, end, j, adds);
}
void multiply(const MatMulProblem& p, const double* a, const double* b, int64_t b_k,
              const double* bias, double* y, int64_t begin, int64_t end, int64_t j, bool adds) {
  HWY_DYNAMIC_DISPATCH(multiply_f64)(p, a, b, b_k, bias, y, begin, end, j, adds);
}

/// Rows per task: their part of a, for one pass, stays in the second-level cache.
constexpr int64_t kRows = 64;
/// With at most this many rows of a, copying b to panels does not pay.
constexpr int64_t kFewRows = 32;

int64_t panels_of(int64_t n, int64_t width) { return (n + width - 1) / width; }

/// A b of one panel lies as its packed copy would.
template <typename T>
bool needs_packing(const MatMulProblem& p) {
  return p.b_n != 1 || (p.m > kFewRows && p.n > width<T>());
}

template <typename T>
void pack_panels(const MatMulProblem& p, const T* b, T* packed) {
  const int64_t wide = width<T>(), panel = wide * p.k;
  parallel_for(panels_of(p.n, wide), grain_of(65536, panel), [&](int64_t begin, int64_t end) {
    for (int64_t j = begin; j < end; ++j) pack(p, b, j * wide, packed + j * panel);
  });
}

/// The panels of the right factor: columns [j, j + width) of it begin at b + j / width * stride.
template <typename T>
struct Panels {
  const T* b;
  int64_t stride;
  int64_t b_k;  ///< stride along k, within a panel
};

template <typename T>
void multiply_panels(const MatMulProblem& p, const T* bias, const T* a, const Panels<T>& b, T* y,
                     bool adds) {
  const int64_t wide = width<T>(), panels = panels_of(p.n, wide);
  const int64_t chunks = (p.m + kRows - 1) / kRows;
  const int64_t cost = std::min(p.m, kRows) * wide * p.k;
  parallel_for(chunks * panels, grain_of(1 << 18, cost), [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t j = task / chunks * wide, row = task % chunks * kRows;
      multiply(p, a, b.b + task / chunks * b.stride, b.b_k,
               bias == nullptr || p.bias_on_rows ? bias : bias + j, y + j, row,
               std::min(row + kRows, p.m), j, adds);
    }
  });
}

/// One product of the batch. `packed`: for the panels of b, if needs_packing().
template <typename T>
void multiply_one(const MatMulProblem& p, const T* bias, const T* a, const T* b, T* y, T* packed) {
  const int64_t wide = width<T>();
  if (needs_packing<T>(p)) {
    pack_panels(p, b, packed);
    multiply_panels<T>(p, bias, a, {packed, wide * p.k, wide}, y, p.addend);
  } else {
    multiply_panels<T>(p, bias, a, {b, wide, p.b_k}, y, p.addend);
  }
}

template <typename T>
class BlockedMatMul final : public Kernel {
 public:
  explicit BlockedMatMul(MatMulProblem problem) : p_(std::move(problem)) {
    flops = 2.0 * static_cast<double>(p_.multiplications());
    if (p_.addend) may_share = {{3, 0}};
    if (needs_packing<T>(p_)) scratch_bytes = blocked_scratch(p_.dtype, p_.n, p_.k);
  }

  void execute(const KernelArgs& args) const override {
    if (p_.addend) copy_addend<T>(p_, args);
    multiply_batch(args, 0, args.input<T>(p_.swapped ? 1 : 0), args.input<T>(p_.swapped ? 0 : 1),
                   args.output<T>(0));
  }

 private:
  void multiply_batch(const KernelArgs& args, size_t depth, const T* a, const T* b, T* y) const {
    if (depth == p_.batch.size()) {
      const T* bias = p_.bias ? args.input<T>(2) : nullptr;
      return multiply_one(p_, bias, a, b, y, static_cast<T*>(args.scratch));
    }
    for (int64_t i = 0; i < p_.batch[depth]; ++i) {
      multiply_batch(args, depth + 1, a + i * p_.a_batch[depth], b + i * p_.b_batch[depth],
                     y + i * p_.y_batch[depth]);
    }
  }

  MatMulProblem p_;
};

}  // namespace

size_t blocked_scratch(DType dtype, int64_t n, int64_t k) {
  const int64_t wide = dtype == DType::f32 ? width<float>() : width<double>();
  return static_cast<size_t>(panels_of(n, wide) * wide * k) * size_of(dtype);
}

void multiply_blocked(const MatMulProblem& p, const float* a, const float* b, float* y,
                      void* scratch) {
  multiply_one<float>(p, nullptr, a, b, y, static_cast<float*>(scratch));
}
void multiply_blocked(const MatMulProblem& p, const double* a, const double* b, double* y,
                      void* scratch) {
  multiply_one<double>(p, nullptr, a, b, y, static_cast<double*>(scratch));
}

void pack_factor(const MatMulProblem& p, const float* b, void* packed) {
  pack_panels(p, b, static_cast<float*>(packed));
}
void pack_factor(const MatMulProblem& p, const double* b, void* packed) {
  pack_panels(p, b, static_cast<double*>(packed));
}

void multiply_packed(const MatMulProblem& p, const float* a, const void* packed, float* y,
                     bool adds) {
  const int64_t wide = width<float>();
  multiply_panels<float>(p, nullptr, a, {static_cast<const float*>(packed), wide * p.k, wide}, y,
                         adds);
}
void multiply_packed(const MatMulProblem& p, const double* a, const void* packed, double* y,
                     bool adds) {
  const int64_t wide = width<double>();
  multiply_panels<double>(p, nullptr, a, {static_cast<const double*>(packed), wide * p.k, wide}, y,
                          adds);
}

std::unique_ptr<Kernel> make_blocked_matmul(const NodeSpec& node, std::string* why_not) {
  auto problem = read_matmul(node, why_not, true);
  if (!problem) return nullptr;
  if (problem->addend && !problem->adds_product()) {
    return decline(why_not, "only a plain product can be added to existing values");
  }
  if (problem->y_n != 1) problem = problem->swap();
  if (problem->y_n != 1) return decline(why_not, "no axis of the result is contiguous");
  if (problem->dtype != problem->y_dtype) return decline(why_not, "the result is of another dtype");
  if (problem->dtype == DType::f32) return std::make_unique<BlockedMatMul<float>>(*problem);
  if (problem->dtype == DType::f64) return std::make_unique<BlockedMatMul<double>>(*problem);
  return decline(why_not, "dtype is neither float32 nor float64");
}

}  // namespace steep::cpu
#endif  // HWY_ONCE
