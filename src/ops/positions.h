// Extents and positions as values, for rules and decompositions that run before shapes are known.
#pragma once

#include "ops/build.h"

namespace steep {

/// Extent of an axis (counted from the front), as an int64 scalar.
Value extent_of(Value x, int64_t axis);

/// The vector 0, 1, …, count - 1. `count`: an int64 scalar.
Value positions(Value count);

/// The numbers begin, …, end - 1.
Ints counting(int64_t begin, int64_t end);

/// A scalar as a vector of one element.
Value as_vector(Value scalar);

/// A one-element integer value of any integer dtype as an int64 scalar.
Value as_index(Value v);

/// A vector along `axis` of `rank` axes; the other extents are 1.
Value along_axis(Value vector, int64_t axis, int64_t rank);

/// The elements begin, …, end - 1 of a vector. part(vector, at): one element, as a vector.
Value part(Value vector, int64_t begin, int64_t end);
Value part(Value vector, int64_t at);

/// Makes negative indices invalid for kernels that would count them from the end: replaces them by
/// `extent` (one element, of the index dtype), which is out of range.
Value from_the_front(Value index, Value extent);

/// x[N, C, ...] as [N, C, elements of a plane]. Also correct when x has no elements, where Reshape
/// could not resolve a -1.
Value planes(Value x);

/// The indices start, …, end - 1 of an axis (int64 scalars, neither negative nor past its end).
Value slice(Value x, int64_t axis, Value start, Value end);

}  // namespace steep
