// Whether two nodes have the same attributes.
#pragma once

#include <optional>
#include <string>

#include "ir/attr.h"

namespace steep {

/// A text that two lists of attributes share only if their names, values and order are equal.
/// Nothing if one of them holds a tensor or a body.
std::optional<std::string> comparison_key(const Attrs& attrs);

}  // namespace steep
