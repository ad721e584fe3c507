// Reductions: inner loops for every instruction set. The order of additions depends only on the
// shape, so results are bit-identical for any number of threads.
#pragma once

#include <cstdint>
#include <type_traits>

#include "providers/cpu/convert.h"

namespace steep::cpu {

enum class Reduction : uint8_t { sum, sum_abs, sum_square, max, min, prod };

/// The type of partial results: floats are summed in double, integers in 64 bits.
template <typename T>
using Accumulator = std::conditional_t<std::is_integral_v<T>, int64_t, double>;

/// The maximal number of columns per call of ReduceLoops::columns.
inline constexpr int64_t kReduceColumns = 1024;

template <typename T>
struct ReduceLoops {
  /// Reduces each of `count` rows of n adjacent elements into totals[count]. Rows are adjacent.
  void (*rows)(const T* x, int64_t count, int64_t n, Accumulator<T>* totals);
  /// Reduces `rows` rows of `columns` adjacent elements, `stride` elements apart, into
  /// total[columns].
  void (*columns)(const T* x, int64_t rows, int64_t stride, int64_t columns, Accumulator<T>* total);
};

/// T: float, Bf16, double, int64_t. The fastest loops for this machine.
template <typename T>
ReduceLoops<T> reduce_loops(Reduction reduction);

}  // namespace steep::cpu
