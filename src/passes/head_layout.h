// The strides of the four axes of attention heads in memory. Rewrites use them to look through
// reshapes and transposes.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "ops/pattern.h"

namespace steep {

/// The axes [batch, head, row, column] of heads.
constexpr size_t kHeadAxes = 4;

/// Heads as a strided view of the row-major elements of `value`, times `scale`.
struct HeadLayout {
  Value value;
  std::array<int64_t, kHeadAxes> extents{}, strides{};  // the stride of an extent of 1 is 0
  double scale = 1;

  /// The layout of a value with three or four axes, the last two of them rows and columns, or
  /// columns and rows (`swapped`). With three axes the batch is 1.
  static HeadLayout of(Value heads, bool swapped);

  /// The axes from outermost to innermost, if they are nested in the value's memory with columns
  /// innermost; else nothing.
  std::optional<Ints> order() const;

  /// For each axis of [batch, head, row, column], its position in order(). REQUIRES: order() has a
  /// value.
  Ints perm() const;
  /// The extents, in the order of order(). REQUIRES: order() has a value.
  Ints ordered_extents() const;

  /// The same heads in the operand of the value's producer, if that is a reshape, transpose or
  /// constant factor; else nothing.
  std::optional<HeadLayout> before() const;
  /// The same heads in the result of `user`, which reads the value.
  std::optional<HeadLayout> after(Node user) const;
};

/// The patterns, besides views, that a layout can be followed through.
std::vector<PatternRuleInfo> head_layout_patterns();

}  // namespace steep
