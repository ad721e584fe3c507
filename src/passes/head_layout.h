// How four axes of a value, those of attention heads, lie in memory: what lets a rewrite look
// through reshapes and transposes.
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

  /// Of a value with three or four dimensions, the last two of them rows and columns, or columns
  /// and rows (`swapped`). Three dimensions have a batch of 1.
  static HeadLayout of(Value heads, bool swapped);

  /// The axes in the order in which they lie in memory, if the value holds them one inside the
  /// other, columns innermost.
  std::optional<Ints> order() const;

  /// Heads [batch, head, row, column] as a permutation of the axes in order(): for each axis, its
  /// place there. REQUIRES: order().
  Ints perm() const;
  /// The extents in order(). REQUIRES: order().
  Ints ordered_extents() const;

  /// The same heads in the operand of the value's producer, a reshape, transpose or constant
  /// factor; nothing when the producer is something else.
  std::optional<HeadLayout> before() const;
  /// The same heads in the result of `user`, which reads the value.
  std::optional<HeadLayout> after(Node user) const;
};

/// What lets a layout be followed from value to value, beside views.
std::vector<RowInfo> head_layout_rows();

}  // namespace steep
