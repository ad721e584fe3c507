// Classifies masks of attention scores, as far as constants are known.
#pragma once

#include <vector>

#include "ops/pattern.h"

namespace steep {

enum class MaskKind : uint8_t {
  nothing,  ///< masks nothing out
  causal,   ///< masks out later keys: column > row
  other,    ///< any other mask, or unknown
};

/// A finite mask value up to this one acts like -inf, in a row that has another value.
inline constexpr double kShutOut = -1e30;

/// The kind of a mask that is added: 0 keeps a score, a number up to `shut` masks it out.
MaskKind kind_of_bias(Value bias, double shut);

/// The kind of a boolean mask that says which scores are kept; if `inverted`, which are masked out.
MaskKind kind_of_keep(Value keep, bool inverted);

/// The patterns of masks.
std::vector<PatternRuleInfo> attention_mask_patterns();

}  // namespace steep
