// Plain loops, which the compiler vectorises for each instruction set.
#include <algorithm>
#include <limits>

#include "providers/cpu/isa.h"
#include "providers/cpu/reduce.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "providers/cpu/reduce_loops.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace steep::cpu {
namespace HWY_NAMESPACE {

/// `take` adds an element, `join` adds a partial result.
template <Reduction r, typename T>
struct Op {
  static constexpr bool kSum =
      r == Reduction::sum || r == Reduction::sum_abs || r == Reduction::sum_square;
  // A few floats are added in float before they are added in double; products may leave float's
  // range at once, so they use double.
  using Number = std::conditional_t<std::is_same_v<T, Bf16>, float, T>;
  using Lane = std::conditional_t<r == Reduction::prod, Accumulator<T>, Number>;

  template <typename A>
  static constexpr A identity() {
    if constexpr (kSum) return 0;
    if constexpr (r == Reduction::prod) return 1;
    using Limits = std::numeric_limits<A>;
    const bool largest = r == Reduction::min;
    if constexpr (Limits::has_infinity) return largest ? Limits::infinity() : -Limits::infinity();
    return largest ? Limits::max() : Limits::lowest();
  }

  /// Integers wrap.
  template <typename A>
  static HWY_INLINE A plus(A a, A b) {
    if constexpr (std::is_integral_v<A>) {
      return static_cast<A>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
    } else {
      return a + b;
    }
  }
  template <typename A>
  static HWY_INLINE A times(A a, A b) {
    if constexpr (std::is_integral_v<A>) {
      return static_cast<A>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
    } else {
      return a * b;
    }
  }

  template <typename A>
  static HWY_INLINE A join(A a, A b) {
    if constexpr (kSum) {
      return plus(a, b);
    } else if constexpr (r == Reduction::prod) {
      return times(a, b);
    } else if constexpr (r == Reduction::max) {
      return b > a || b != b ? b : a;  // NaN wins
    } else {
      return b < a || b != b ? b : a;
    }
  }

  static HWY_INLINE Lane prepare(T element) {
    const Number x = element;
    if constexpr (r == Reduction::sum_abs) {
      if constexpr (std::is_integral_v<Number>) {
        return x < 0 ? times<Number>(x, -1) : x;
      } else {
        return x < 0 ? -x : x;
      }
    } else if constexpr (r == Reduction::sum_square) {
      return times(x, x);
    } else {
      return static_cast<Lane>(x);
    }
  }
};

/// Adds all whole runs of kLanes adjacent elements to `sum`; returns the number of elements added.
template <int64_t kLanes, Reduction r, typename T>
HWY_INLINE int64_t runs(const T* x, int64_t n, Accumulator<T>& sum) {
  using O = Op<r, T>;
  using Lane = typename O::Lane;
  constexpr int64_t kBlock = 32 * kLanes;  // a lane takes 32 elements before it goes to the total
  int64_t i = 0;
  while (n - i >= kLanes) {
    Lane lanes[kLanes];
    for (int64_t k = 0; k < kLanes; ++k) lanes[k] = O::prepare(x[i + k]);
    const int64_t end = std::min(n, i + kBlock);
    for (i += kLanes; i + kLanes <= end; i += kLanes) {
      for (int64_t k = 0; k < kLanes; ++k) lanes[k] = O::join(lanes[k], O::prepare(x[i + k]));
    }
    Accumulator<T> wide[kLanes];
    for (int64_t k = 0; k < kLanes; ++k) wide[k] = static_cast<Accumulator<T>>(lanes[k]);
    for (int64_t half = kLanes / 2; half > 0; half /= 2) {
      for (int64_t k = 0; k < half; ++k) wide[k] = O::join(wide[k], wide[k + half]);
    }
    sum = O::join(sum, wide[0]);
  }
  return i;
}

template <Reduction r, typename T>
HWY_INLINE Accumulator<T> row(const T* x, int64_t n) {
  using O = Op<r, T>;
  auto sum = O::template identity<Accumulator<T>>();
  int64_t i = runs<64, r>(x, n, sum);
  i += runs<8, r>(x + i, n - i, sum);
  for (; i < n; ++i) sum = O::join(sum, static_cast<Accumulator<T>>(O::prepare(x[i])));
  return sum;
}

template <Reduction r, typename T>
void rows(const T* x, int64_t count, int64_t n, Accumulator<T>* totals) {
  for (int64_t i = 0; i < count; ++i) totals[i] = row<r>(x + i * n, n);
}

template <Reduction r, typename T>
void columns(const T* x, int64_t rows, int64_t stride, int64_t count, Accumulator<T>* total) {
  using O = Op<r, T>;
  using Lane = typename O::Lane;
  constexpr int64_t kRows = 32;
  for (int64_t c = 0; c < count; ++c) total[c] = O::template identity<Accumulator<T>>();
  Lane lanes[kReduceColumns];
  for (int64_t begin = 0; begin < rows; begin += kRows) {
    const int64_t end = std::min(rows, begin + kRows);
    const T* p = x + begin * stride;
    for (int64_t c = 0; c < count; ++c) lanes[c] = O::prepare(p[c]);
    int64_t i = begin + 1;
    for (; i + 4 <= end; i += 4) {
      const T* p0 = x + i * stride;
      const T* p1 = p0 + stride;
      const T* p2 = p1 + stride;
      const T* p3 = p2 + stride;
      for (int64_t c = 0; c < count; ++c) {
        const Lane first = O::join(O::prepare(p0[c]), O::prepare(p1[c]));
        const Lane second = O::join(O::prepare(p2[c]), O::prepare(p3[c]));
        lanes[c] = O::join(lanes[c], O::join(first, second));
      }
    }
    for (; i < end; ++i) {
      p = x + i * stride;
      for (int64_t c = 0; c < count; ++c) lanes[c] = O::join(lanes[c], O::prepare(p[c]));
    }
    for (int64_t c = 0; c < count; ++c) {
      total[c] = O::join(total[c], static_cast<Accumulator<T>>(lanes[c]));
    }
  }
}

template <typename T>
ReduceLoops<T> choose(Reduction reduction) {
  switch (reduction) {
    case Reduction::sum: return {rows<Reduction::sum, T>, columns<Reduction::sum, T>};
    case Reduction::sum_abs: return {rows<Reduction::sum_abs, T>, columns<Reduction::sum_abs, T>};
    case Reduction::sum_square:
      return {rows<Reduction::sum_square, T>, columns<Reduction::sum_square, T>};
    case Reduction::max: return {rows<Reduction::max, T>, columns<Reduction::max, T>};
    case Reduction::min: return {rows<Reduction::min, T>, columns<Reduction::min, T>};
    case Reduction::prod: break;
  }
  return {rows<Reduction::prod, T>, columns<Reduction::prod, T>};
}

ReduceLoops<float> choose_float(Reduction reduction) { return choose<float>(reduction); }
ReduceLoops<Bf16> choose_bf16(Reduction reduction) { return choose<Bf16>(reduction); }
ReduceLoops<double> choose_double(Reduction reduction) { return choose<double>(reduction); }
ReduceLoops<int64_t> choose_int(Reduction reduction) { return choose<int64_t>(reduction); }

}  // namespace HWY_NAMESPACE
}  // namespace steep::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace steep::cpu {

HWY_EXPORT(choose_float);
HWY_EXPORT(choose_bf16);
HWY_EXPORT(choose_double);
HWY_EXPORT(choose_int);

template <>
ReduceLoops<float> reduce_loops(Reduction reduction) {
  limit_isa();
  return HWY_DYNAMIC_DISPATCH(choose_float)(reduction);
}
template <>
ReduceLoops<Bf16> reduce_loops(Reduction reduction) {
  limit_isa();
  return HWY_DYNAMIC_DISPATCH(choose_bf16)(reduction);
}
template <>
ReduceLoops<double> reduce_loops(Reduction reduction) {
  limit_isa();
  return HWY_DYNAMIC_DISPATCH(choose_double)(reduction);
}
template <>
ReduceLoops<int64_t> reduce_loops(Reduction reduction) {
  limit_isa();
  return HWY_DYNAMIC_DISPATCH(choose_int)(reduction);
}

}  // namespace steep::cpu
#endif  // HWY_ONCE
