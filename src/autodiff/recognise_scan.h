// Finds linear recurrences that were unrolled as associative scans.
#pragma once

#include "ops/pattern.h"

namespace steep {

/// torch.associative_scan unrolls s[i] = a[i] s[i-1] + b[i] along axis 0 to log2(n) levels
/// (Blelloch 1990): neighbours are combined, (a, b) ∘ (c, d) = (a c, c b + d); their scan, "odd",
/// has the results at odd indices; "even" are those at even indices; both are stacked and
/// flattened. If the match is such a level, sets `result` to steep.Recurrence(b, a). "odd" has one
/// element, or is a recurrence itself, since producers are visited before readers: all levels
/// become one recurrence. It computes in order, so that results differ by rounding.
bool recognise_scan(const Match& match, Value& result);
/// The same for an odd number of elements: "odd" is "padded" by one element, "y" is cut from
/// "whole".
bool recognise_odd_scan(const Match& match, Value& result);

}  // namespace steep
