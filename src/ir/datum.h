// Functions on Datum (steep/datum.h) that the runtime needs.
#pragma once

#include <span>

#include "ir/type.h"
#include "steep/datum.h"

namespace steep {

/// Whether the datum can be a value of that kind. Ignores dtype and shape.
bool fits(const Datum& datum, Kind kind);
/// Throws DataError unless every datum is a tensor.
std::vector<Tensor> to_tensors(std::span<const Datum> data);

/// Copies each result that shares bytes with `inputs` or with an earlier result, so that the caller
/// may write into a result without changing another result or an input.
void keep_apart(std::vector<Datum>& results, std::span<const Datum> inputs);

/// Copies results that have bytes of one of `others`.
void copy_if_of(std::span<const Tensor> others, std::vector<Datum>& results);

}  // namespace steep
