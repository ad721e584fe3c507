// Loops over the OpenMP pool, which is PyTorch's own when both live in one process.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <exception>

namespace steep::cpu {

/// Calls body(begin, end) on disjoint ranges that cover [0, n), in parallel when n > grain. The
/// split depends on the number of threads, so results must not depend on the split. Exceptions
/// reach the caller.
template <typename F>
void parallel_for(int64_t n, int64_t grain, F&& body) {
  if (n <= 0) return;
  const int64_t wanted =
      std::min<int64_t>(omp_get_max_threads(), (n + grain - 1) / std::max<int64_t>(grain, 1));
  if (wanted <= 1 || omp_in_parallel()) {
    body(int64_t{0}, n);
    return;
  }
  std::exception_ptr failure;
#pragma omp parallel num_threads(static_cast<int>(wanted))
  {
    const int64_t t = omp_get_thread_num();
    const int64_t threads = omp_get_num_threads();
    const int64_t begin = n * t / threads;
    const int64_t end = n * (t + 1) / threads;
    try {
      if (begin < end) body(begin, end);
    } catch (...) {
#pragma omp critical
      failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace steep::cpu
