// Loops over the OpenMP thread pool, which Steep shares with PyTorch when both are in one process.
#pragma once

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>

#include "providers/cpu/kernel.h"

namespace steep::cpu {

/// The number of iterations per thread, where each iteration costs `cost` of a `budget`. Any `cost`
/// is valid.
inline int64_t grain_of(int64_t budget, int64_t cost) {
  return std::max<int64_t>(1, budget / std::max<int64_t>(1, cost));
}

/// Calls body(begin, end) on disjoint ranges that cover [0, n), in parallel when n > grain. The
/// split depends on the number of threads, so results must not depend on the split. Exceptions
/// propagate to the caller.
template <typename F>
void parallel_for(int64_t n, int64_t grain, F&& body) {
  if (n <= 0) return;
  const int64_t wanted =
      std::min<int64_t>(omp_get_max_threads(), (n + grain - 1) / std::max<int64_t>(grain, 1));
  // Long ranges run in pieces, with poll() between them. If a single iteration is worth a thread,
  // it may be long, so a piece is one iteration.
  const int64_t piece = grain <= 1 ? 1 : grain < (int64_t{1} << 40) ? 1024 * grain : n;
  auto in_pieces = [&](int64_t begin, int64_t end) {
    for (; end - begin > piece; begin += piece) {
      body(begin, begin + piece);
      poll();
    }
    body(begin, end);
  };
  if (wanted <= 1 || omp_in_parallel()) {
    in_pieces(int64_t{0}, n);
    return;
  }
  std::exception_ptr failure;
  std::atomic<bool> failed{false};
#pragma omp parallel num_threads(static_cast<int>(wanted))
  {
    const int64_t t = omp_get_thread_num();
    const int64_t threads = omp_get_num_threads();
    const int64_t begin = n * t / threads;
    const int64_t end = n * (t + 1) / threads;
    const Team team(failed);
    try {
      if (begin < end) in_pieces(begin, end);
    } catch (...) {
#pragma omp critical
      if (!failure) failure = std::current_exception();
      failed = true;
    }
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace steep::cpu
