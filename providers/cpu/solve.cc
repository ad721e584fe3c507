// steep.LU by elimination with partial pivoting, in blocks of columns, and the operators that use
// it.
#include <cmath>

#include "providers/cpu/cpu.h"
#include "providers/cpu/matrices.h"

namespace steep::cpu {
namespace {

constexpr int64_t kPanel = 32;

/// Decomposes columns [from, to), whose rows [from, n) hold the remaining matrix. Swaps whole rows.
/// Returns the index of the first zero pivot, counted from 1, or 0.
template <typename T>
int32_t eliminate(T* lu, int64_t* pivots, int64_t n, int64_t from, int64_t to) {
  int32_t zero = 0;
  for (int64_t k = from; k < to; ++k) {
    int64_t pivot = k;
    for (int64_t i = k + 1; i < n; ++i) {
      // As in LAPACK, the first of the largest elements is the pivot.
      if (std::abs(lu[i * n + k]) > std::abs(lu[pivot * n + k])) pivot = i;
    }
    pivots[k] = pivot;
    if (pivot != k) std::swap_ranges(lu + k * n, lu + (k + 1) * n, lu + pivot * n);
    const T* row = lu + k * n;
    if (row[k] == 0) {
      if (zero == 0) zero = static_cast<int32_t>(k + 1);
      continue;  // all elements below are zeros, too
    }
    for (int64_t i = k + 1; i < n; ++i) {
      T* to_row = lu + i * n;
      to_row[k] /= row[k];
      subtract_rows(to_row + k + 1, to - k - 1, to_row + k, 1, 1, row + k + 1, n);
    }
  }
  return zero;
}

template <typename T>
int32_t factorise(T* lu, int64_t* pivots, int64_t n) {
  int32_t zero = 0;
  for (int64_t from = 0; from < n; from += kPanel) {
    const int64_t to = std::min(n, from + kPanel), width = to - from, rest = n - to;
    const int32_t position = eliminate(lu, pivots, n, from, to);
    if (zero == 0) zero = position;
    if (rest == 0) break;
    const Triangle<T> corner{.at = lu + from * n + from,
                             .n = width,
                             .down = n,
                             .across = 1,
                             .lower = true,
                             .unit = true};
    corner.substitute(lu + from * n + to, rest, n);
    // The rows of a large matrix are worth several threads. In a stack each matrix has a thread
    // already.
    parallel_for(rest, grain_of(65536, width * rest), [&](int64_t begin, int64_t end) {
      for (int64_t i = to + begin; i < to + end; ++i)
        subtract_rows(lu + i * n + to, rest, lu + i * n + from, 1, width, lu + from * n + to, n);
    });
    poll();
  }
  return zero;
}

std::unique_ptr<Kernel> make_lu(const NodeSpec& node, std::string* why_not) {
  const auto stack = square_stack(node, why_not);
  if (!stack) return nullptr;
  const int64_t n = node.in(0).dims.back(), count = element_count(*stack);
  const bool check = node.attrs.integer("check") != 0;
  const bool keeps = node.out(1).present(), tells = node.out(2).present();
  return of_floats(node, why_not, [&]<typename T>(T) {
    auto run = [=, stack = *stack, id = NodeId(node)](const KernelArgs& args) {
      auto* info = static_cast<int32_t*>(args.scratch);
      auto* pivots =
          reinterpret_cast<int64_t*>(static_cast<char*>(args.scratch) +
                                     whole_lines(static_cast<size_t>(count) * sizeof(int32_t)));
      if (keeps && args.out[1] != nullptr) pivots = args.output<int64_t>(1);
      parallel_for(count, grain_of(32768, n * n * n), [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const T* from = args.input<T>(0) + i * n * n;
          T* lu = args.output<T>(0) + i * n * n;
          if (from != lu) std::copy(from, from + n * n, lu);
          info[i] = factorise(lu, pivots + i * n, n);
        }
      });
      if (tells && args.out[2] != nullptr) std::copy(info, info + count, args.output<int32_t>(2));
      const auto* bad = std::find_if(info, info + count, [](int32_t at) { return at != 0; });
      if (!check || bad == info + count) return;
      id.data_error("A matrix is singular.", "matrices that have an inverse",
                    fmt::format("pivot {} of {} is zero", *bad, name_of_matrix(stack, bad - info)));
    };
    auto kernel = kernel_from(run,
                              whole_lines(static_cast<size_t>(count) * sizeof(int32_t)) +
                                  static_cast<size_t>(count * n) * sizeof(int64_t),
                              {{0, 0}});
    kernel->flops = static_cast<double>(count * n) * static_cast<double>(n * n) * 2 / 3;
    return kernel;
  });
}

std::unique_ptr<Kernel> make_solve(const NodeSpec& node, std::string* why_not) {
  const auto systems = Systems::of(node.in(1).dims, node.in(3).dims, node.out(0).dims, why_not);
  if (!systems) return nullptr;
  if (node.in(0).dims != node.in(1).dims || node.in(2).size() * systems->n != node.in(1).size())
    return decline(why_not, "the decomposition is not of the matrices");
  const bool transpose = node.attrs.integer("transpose") != 0;
  return of_floats(node, why_not, [&]<typename T>(T) {
    auto solve = [=, s = *systems](const KernelArgs& args, int64_t a, T* x, int64_t columns) {
      const int64_t n = s.n, k = s.k;
      const int64_t* pivots = args.input<int64_t>(2) + a * n;
      auto swap = [&](int64_t i) {
        const int64_t j = std::clamp<int64_t>(pivots[i], 0, n - 1);
        if (i != j) std::swap_ranges(x + i * k, x + i * k + columns, x + j * k);
      };
      auto triangle = [&](bool lower, bool unit) {
        return Triangle<T>{.at = args.input<T>(1) + a * n * n,
                           .n = n,
                           .down = transpose ? 1 : n,
                           .across = transpose ? n : 1,
                           .lower = lower,
                           .unit = unit};
      };
      if (!transpose) {
        for (int64_t i = 0; i < n; ++i) swap(i);
      }
      triangle(true, !transpose).substitute(x, columns, k);
      triangle(false, transpose).substitute(x, columns, k);
      if (transpose) {
        for (int64_t i = n; i-- > 0;) swap(i);
      }
    };
    return solving<T>(*systems, 3, 2, solve);
  });
}

std::unique_ptr<Kernel> make_slog_det(const NodeSpec& node, std::string* why_not) {
  const auto stack = square_stack(node, why_not);
  if (!stack) return nullptr;
  const int64_t n = node.in(0).dims.back(), count = element_count(*stack);
  if (node.in(0).dims != node.in(1).dims || node.in(2).size() != count * n)
    return decline(why_not, "the decomposition is not of the matrices");
  const bool both = node.out(1).present();
  return of_floats(node, why_not, [&]<typename T>(T) {
    return kernel_from([=](const KernelArgs& args) {
      for (int64_t at = 0; at < count; ++at) {
        const T* lu = args.input<T>(1) + at * n * n;
        const int64_t* pivots = args.input<int64_t>(2) + at * n;
        double sign = 1, sum = 0;
        for (int64_t i = 0; i < n; ++i) {
          const auto pivot = static_cast<double>(lu[i * n + i]);
          if ((pivot < 0) != (pivots[i] != i)) sign = -sign;
          if (pivot == 0 || std::isnan(pivot)) sign = 0;  // NaN gives sign 0, as in PyTorch
          sum += std::log(std::abs(pivot));
        }
        if (args.out[0] != nullptr) args.output<T>(0)[at] = static_cast<T>(sign);
        if (both && args.out[1] != nullptr) args.output<T>(1)[at] = static_cast<T>(sum);
      }
    });
  });
}

}  // namespace

void register_solve(std::vector<Candidate>& list) {
  list.push_back({"steep.LU", "elimination", make_lu});
  list.push_back({"steep.LUSolve", "substitution", make_solve});
  list.push_back({"steep.LUSlogDet", "by pivots", make_slog_det});
}

}  // namespace steep::cpu
