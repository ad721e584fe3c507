// What the losses over class scores share.
#pragma once

#include "ops/build.h"

namespace steep {

/// Per-row view of labels: which rows count, a label that is safe to index with, and the weight of
/// each row (0 where it does not count).
struct LabelRows {
  Value counts;   ///< bool; null when every row counts
  Value labels;   ///< 0 where the row does not count
  Value weights;  ///< of dtype `dtype`; null when every row counts once
};
LabelRows label_rows(Node n, Value labels, Value class_weights, DType dtype);

/// Of scores [N, C] and labels [N]: the labels' scores [N, 1]; where the labels are, bool [N, C].
Value pick(Value scores, Value labels);
Value is_label(Value scores, Value labels);

/// mean: Σ losses / Σ weights; sum: Σ losses; none: as they are. `losses` hold their weights
/// already.
Value reduce_losses(Node n, Value losses, Value weights);

/// (N, C, d…) → (N d…, C): the classes last, everything else joined.
Value classes_last(Value scores);

}  // namespace steep
