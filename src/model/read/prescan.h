// A first look at a serialised model: sizes, counts and nesting, before anything is allocated for
// it.
#pragma once

#include <cstddef>
#include <span>

#include "steep/limits.h"

namespace steep {

/// Throws ModelError when the bytes are no model, declare more bytes than are present, or exceed
/// `limits`. Allocates O(max_depth); not recursive.
void scan_model(std::span<const std::byte> bytes, const Limits& limits);

}  // namespace steep
