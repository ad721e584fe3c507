// An associative scan, as torch.associative_scan unrolls it.
#pragma once

#include <cstdint>
#include <utility>

#include "ops/build.h"

namespace steep::testing {

constexpr int kWrongScans = 9;

/// s[i] = a[i] s[i-1] + b[i] along axis 0 of `count` elements. `wrong` from 1 on: with one thing
/// that is not so in the first level.
inline Value unrolled_scan(Value a, Value b, int64_t count, int wrong = 0) {
  if (count < 2) return b;
  Graph& g = b.graph();
  const auto part = [&](Value x, int64_t start, int64_t end, int64_t step) {
    return apply("Slice", {x, ints(g, {start}), ints(g, {end}), ints(g, {0}), ints(g, {step})});
  };
  const Value b_even = part(b, 0, -1, 2), b_odd = part(b, 1, INT64_MAX, 2);
  const Value a_even = part(a, 0, -1, 2), a_odd = part(a, 1, INT64_MAX, 2);
  const Value pairs_a = (wrong == 1 ? a_odd : a_even) * a_odd;
  const Value pairs_b = (wrong == 2 ? a_even : a_odd) * b_even + (wrong == 3 ? b_even : b_odd);
  const Value odd = unrolled_scan(pairs_a, pairs_b, count / 2);
  Value even = part(wrong == 4 ? a : b, 0, 1, 1);
  if (count > 2) {
    Value before = count % 2 == 1 ? odd : part(odd, 0, -1, 1);
    if (wrong == 5) before = count % 2 == 1 ? b_odd : part(b_odd, 0, -1, 1);
    const Value factor = part(wrong == 6 ? b : a, 2, INT64_MAX, 2);
    even = concat({even, factor * before + part(wrong == 7 ? a : b, 2, INT64_MAX, 2)}, 0);
  }
  Ints one_behind(static_cast<size_t>(2 * b.rank()));
  one_behind[static_cast<size_t>(b.rank())] = 1;
  const Value second = count % 2 == 0 ? odd : apply("Pad", {odd, ints(g, one_behind)});
  Value first_of_each = even, second_of_each = second;
  if (wrong == 8 && count % 2 == 0) std::swap(first_of_each, second_of_each);
  const Value both = concat({unsqueeze(first_of_each, {1}), unsqueeze(second_of_each, {1})}, 1);
  Dims dims = b.type().dims();
  dims[0] = 2 * ((count + 1) / 2);
  const Value whole = reshape(both, Ints(dims.begin(), dims.end()));
  return count % 2 == 0 ? whole : part(whole, 0, count, 1);
}

}  // namespace steep::testing
