// What a mask of attention scores says, where constants tell.
#pragma once

#include <vector>

#include "ops/pattern.h"

namespace steep {

enum class MaskKind : uint8_t {
  nothing,  ///< lets everything through
  causal,   ///< shuts out the keys behind each query: column > row
  other,    ///< or unknown
};

/// From here on a finite mask shuts out as -inf does, in a row that has anything else.
inline constexpr double kShutOut = -1e30;

/// Of a mask that is added: 0, or a number up to kShutOut.
MaskKind kind_of_bias(Value bias);

/// Of a mask that says which scores are kept (`inverted`: which are not).
MaskKind kind_of_keep(Value keep, bool inverted);

/// What masks are recognised by.
std::vector<RowInfo> attention_mask_rows();

}  // namespace steep
