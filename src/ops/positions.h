// Extents and positions as values, for rules and decompositions that work before shapes are known.
#pragma once

#include "ops/build.h"

namespace steep {

/// Extent of an axis (counted from the front): an int64 scalar.
Value extent_of(Value x, int64_t axis);

/// 0, 1, …, count - 1. `count`: an int64 scalar.
Value positions(Value count);

/// The numbers begin, …, end - 1.
Ints counting(int64_t begin, int64_t end);

/// A scalar as a vector of one element.
Value as_vector(Value scalar);

/// An integer of any type and of one element as an int64 scalar.
Value as_index(Value v);

/// A vector on `axis` of `rank` axes; the others are 1.
Value along_axis(Value vector, int64_t axis, int64_t rank);

/// The elements begin, …, end - 1 of a vector; one element, still as a vector.
Value part(Value vector, int64_t begin, int64_t end);
Value part(Value vector, int64_t at);

/// Indices as kernels that count negative ones from the end read them: such as are negative here
/// become `extent` (of their type, one element), which is past the end.
Value from_the_front(Value index, Value extent);

/// x[N, C, ...] as [N, C, elements of a plane]: where there are no elements too, of which a -1 in a
/// Reshape would know nothing.
Value planes(Value x);

/// The indices start, …, end - 1 of an axis (int64 scalars, neither negative nor past its end).
Value slice(Value x, int64_t axis, Value start, Value end);

}  // namespace steep
