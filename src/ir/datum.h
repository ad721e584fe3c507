// Datum (steep/datum.h) beside the types of the graph.
#pragma once

#include <span>

#include "ir/type.h"
#include "steep/datum.h"

namespace steep {

/// Whether it can stand for a value of that kind, of any dtype and shape.
bool fits(const Datum& datum, Kind kind);
/// Throws DataError unless every datum is a tensor.
std::vector<Tensor> to_tensors(std::span<const Datum> data);

/// Copies each result that shares bytes with `fed` or with an earlier result, so that the caller
/// may write into one without changing another.
void keep_apart(std::vector<Datum>& results, std::span<const Datum> fed);

}  // namespace steep
