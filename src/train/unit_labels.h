// Labels of losses that compare probabilities.
#pragma once

#include <string>

#include "steep/tensor.h"

namespace steep {

/// Throws DataError, which names `name` and the row, for a label that is not from 0 to 1, if `loss`
/// is a binary cross entropy. Labels of a dtype that does not convert to floats are not checked.
void check_unit_labels(const Tensor& labels, const std::string& loss, const std::string& name);

}  // namespace steep
