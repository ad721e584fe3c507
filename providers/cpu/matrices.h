// Shared by kernels of linear algebra: stacks of matrices that broadcast, and substitution.
// Matrices are row-major. Results are bit-identical for any split of the columns.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "providers/cpu/build_kernel.h"
#include "providers/cpu/parallel.h"

namespace steep::cpu {

/// y[0, m) -= Σ f[i · step] · x[i · row + (0, m)] over i in [0, count).
template <typename T>
void subtract_rows(T* __restrict y, int64_t m, const T* f, int64_t step, int64_t count,
                   const T* __restrict x, int64_t row) {
  int64_t i = 0;
  for (; i + 4 <= count; i += 4) {
    const T f0 = f[i * step], f1 = f[(i + 1) * step];
    const T f2 = f[(i + 2) * step], f3 = f[(i + 3) * step];
    const T* x0 = x + i * row;
    const T *x1 = x0 + row, *x2 = x1 + row, *x3 = x2 + row;
    for (int64_t j = 0; j < m; ++j) y[j] -= (f0 * x0[j] + f1 * x1[j]) + (f2 * x2[j] + f3 * x3[j]);
  }
  for (; i < count; ++i) {
    const T* from = x + i * row;
    for (int64_t j = 0; j < m; ++j) y[j] -= f[i * step] * from[j];
  }
}

/// A triangular matrix n by n: element (i, j) is at[i · down + j · across], i ≥ j where `lower`.
template <typename T>
struct Triangle {
  const T* at;
  int64_t n, down, across;
  bool lower;
  bool unit;  ///< the diagonal counts as ones and is not read

  /// Replaces the columns x[n, m], with rows `row` elements apart, by the solution.
  void substitute(T* x, int64_t m, int64_t row) const {
    for (int64_t step = 0; step < n; ++step) {
      if (step % kPolled == kPolled - 1) poll();
      const int64_t i = lower ? step : n - 1 - step;
      const int64_t first = lower ? 0 : i + 1;
      T* to = x + i * row;
      subtract_rows(to, m, at + i * down + first * across, across, step, x + first * row, row);
      if (unit) continue;
      const T diagonal = at[i * (down + across)];
      for (int64_t j = 0; j < m; ++j) to[j] /= diagonal;
    }
  }

 private:
  static constexpr int64_t kPolled = 128;
};

/// Stacks a [.., n, n] and b [.., n, k] that broadcast to x [.., n, k].
struct Systems {
  Dims stack, strides_a, strides_b;  ///< stack of x; strides in matrices, 0 for broadcast axes
  int64_t n = 0, k = 0;
  bool same = false;  ///< b has the shape of x

  /// Returns nothing, and the reason, when the shapes do not fit.
  static std::optional<Systems> of(const Dims& a, const Dims& b, const Dims& x,
                                   std::string* why_not);

  int64_t count() const { return element_count(stack); }

  /// Calls body(a, b, x, first, columns) in parallel, with the numbers of the matrices, for columns
  /// [first, first + columns) of b and x.
  template <typename F>
  void for_columns(F&& body) const {
    constexpr int64_t kBlock = 64;
    const int64_t blocks = (k + kBlock - 1) / kBlock;
    const int64_t cost = n * n * std::min(k, kBlock);
    parallel_for(count() * blocks, grain_of(32768, cost), [&](int64_t begin, int64_t end) {
      for (int64_t at = begin; at < end; ++at) {
        const int64_t x = at / blocks, first = at % blocks * kBlock;
        int64_t a = 0, b = 0, rest = x;
        for (size_t axis = stack.size(); axis-- > 0;) {
          const int64_t index = rest % stack[axis];
          rest /= stack[axis];
          a += index * strides_a[axis];
          b += index * strides_b[axis];
        }
        body(a, b, x, first, std::min(kBlock, k - first));
      }
    });
  }

  /// Copies columns of b's matrix to x's, unless both are the same memory.
  template <typename T>
  void copy_columns(const T* b, T* x, int64_t columns) const {
    if (b == x) return;
    for (int64_t i = 0; i < n; ++i) std::copy(b + i * k, b + i * k + columns, x + i * k);
  }
};

/// A kernel that solves systems with the right-hand sides in input `b`. `solve(args, a, x,
/// columns)` solves with the a-th matrix in place: x [n, columns], with rows k elements apart,
/// holds right-hand sides and then the solution. `triangles`: number of triangular solves, for the
/// flops.
template <typename T, typename Solve>
std::unique_ptr<Kernel> solving(const Systems& systems, int b, int triangles, Solve solve) {
  auto run = [=, s = systems](const KernelArgs& args) {
    s.for_columns([&](int64_t at_a, int64_t at_b, int64_t at_x, int64_t first, int64_t columns) {
      const int64_t size = s.n * s.k;
      T* x = args.output<T>(0) + at_x * size + first;
      s.copy_columns(args.input<T>(b) + at_b * size + first, x, columns);
      solve(args, at_a, x, columns);
    });
  };
  std::vector<std::pair<int, int>> may_share;
  if (systems.same) may_share.emplace_back(b, 0);
  auto kernel = kernel_from(run, 0, std::move(may_share));
  kernel->flops = static_cast<double>(systems.count() * systems.k) * triangles *
                  static_cast<double>(systems.n * systems.n);
  return kernel;
}

/// The stack of square matrices in input 0; nothing, and the reason, when it is none.
std::optional<Dims> square_stack(const NodeSpec& node, std::string* why_not);

/// Calls make with a value of input 0's type, float or double; declines other types.
template <typename Make>
std::unique_ptr<Kernel> of_floats(const NodeSpec& node, std::string* why_not, Make&& make) {
  const DType dtype = node.in(0).dtype;
  if (dtype == DType::f32) return make(float{});
  if (dtype == DType::f64) return make(double{});
  return decline(why_not, "dtype is {}", name_of(dtype));
}

/// "the matrix", or for a stack the index: "matrix [1, 0]".
std::string name_of_matrix(const Dims& stack, int64_t number);

}  // namespace steep::cpu
