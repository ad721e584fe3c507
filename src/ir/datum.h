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

/// Copies what of `results` lies in the bytes of `fed` or of a result before it: who gets them may
/// write into one without changing another.
void keep_apart(std::vector<Datum>& results, std::span<const Datum> fed);

}  // namespace steep
