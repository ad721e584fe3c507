// Det and the cofactor matrices for its gradient, by elimination with partial pivoting, in double.
#include <algorithm>
#include <cmath>

#include "providers/cpu/build_kernel.h"
#include "providers/cpu/cpu.h"
#include "providers/cpu/parallel.h"

namespace steep::cpu {
namespace {

/// A square matrix in scratch, row-major.
struct Matrix {
  double* at;
  int64_t n;
  double& operator()(int64_t i, int64_t j) const { return at[i * n + j]; }
};

/// Transforms `a` to upper triangular form and returns its determinant. Applies the same row
/// operations to `b` if it is not null.
double eliminate(Matrix a, const Matrix* b) {
  double det = 1;
  for (int64_t k = 0; k < a.n; ++k) {
    int64_t pivot = k;
    for (int64_t i = k + 1; i < a.n; ++i) {
      if (std::abs(a(i, k)) > std::abs(a(pivot, k))) pivot = i;
    }
    if (pivot != k) {
      det = -det;
      std::swap_ranges(&a(k, 0), &a(k, 0) + a.n, &a(pivot, 0));
      if (b != nullptr) std::swap_ranges(&(*b)(k, 0), &(*b)(k, 0) + a.n, &(*b)(pivot, 0));
    }
    det *= a(k, k);
    if (a(k, k) == 0) return 0;
    for (int64_t i = k + 1; i < a.n; ++i) {
      const double factor = a(i, k) / a(k, k);
      for (int64_t j = k; j < a.n; ++j) a(i, j) -= factor * a(k, j);
      for (int64_t j = 0; b != nullptr && j < a.n; ++j) (*b)(i, j) -= factor * (*b)(k, j);
    }
  }
  return det;
}

/// Whether a triangular matrix is far enough from singular to divide by its diagonal.
bool well_conditioned(Matrix u) {
  double low = INFINITY, high = 0;
  for (int64_t k = 0; k < u.n; ++k) {
    low = std::min(low, std::abs(u(k, k)));
    high = std::max(high, std::abs(u(k, k)));
  }
  return low > 1e-6 * high;
}

template <typename T>
void load(const T* x, Matrix m) {
  std::copy(x, x + m.n * m.n, m.at);
}

/// Cofactors: the determinant times the transposed inverse; for nearly singular matrices, one minor
/// after the other. `work` has room for two matrices.
template <typename T>
void cofactors(const T* x, T* y, int64_t n, double* work) {
  const Matrix a{work, n}, b{work + n * n, n};
  load(x, a);
  std::fill(b.at, b.at + n * n, 0.0);
  for (int64_t i = 0; i < n; ++i) b(i, i) = 1;
  const double det = eliminate(a, &b);
  if (det != 0 && well_conditioned(a)) {
    for (int64_t c = 0; c < n; ++c) {  // column c of the inverse, from the last row up
      for (int64_t i = n; i-- > 0;) {
        for (int64_t j = i + 1; j < n; ++j) b(i, c) -= a(i, j) * b(j, c);
        b(i, c) /= a(i, i);
        y[c * n + i] = static_cast<T>(det * b(i, c));
      }
    }
    return;
  }
  for (int64_t row = 0; row < n; ++row) {
    for (int64_t column = 0; column < n; ++column) {
      double* to = a.at;
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t j = 0; j < n; ++j) {
          if (i != row && j != column) *to++ = static_cast<double>(x[i * n + j]);
        }
      }
      const double minor = eliminate({a.at, n - 1}, nullptr);
      y[row * n + column] = static_cast<T>((row + column) % 2 == 0 ? minor : -minor);
    }
  }
}

/// `whole`: cofactors instead of the determinant.
template <bool whole>
std::unique_ptr<Kernel> make(const NodeSpec& node, std::string* why_not) {
  const Operand& x = node.in(0);
  if (x.rank() < 2 || x.dims.end()[-1] != x.dims.end()[-2])
    return decline(why_not, "the matrices are not square");
  const int64_t n = x.dims.back();
  const int64_t count = extent(x.dims, 0, x.rank() - 2);
  auto of_type = [&]<typename T>(T) -> std::unique_ptr<Kernel> {
    auto run = [n, count](const KernelArgs& args) {
      parallel_for(count, grain_of(4096, n * n), [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          double* work = static_cast<double*>(args.scratch) + i * 2 * n * n;
          const T* from = args.input<T>(0) + i * n * n;
          if constexpr (whole) {
            cofactors(from, args.output<T>(0) + i * n * n, n, work);
          } else {
            load(from, {work, n});
            args.output<T>(0)[i] = static_cast<T>(eliminate({work, n}, nullptr));
          }
        }
      });
    };
    return kernel_from(run, static_cast<size_t>(count * 2 * n * n) * sizeof(double));
  };
  if (x.dtype == DType::f32) return of_type(float{});
  if (x.dtype == DType::f64) return of_type(double{});
  return decline(why_not, "dtype is {}", name_of(x.dtype));
}

}  // namespace

void register_det(std::vector<Candidate>& list) {
  list.push_back({"Det", "elimination", make<false>});
  list.push_back({"steep.Cofactors", "elimination", make<true>});
}

}  // namespace steep::cpu
