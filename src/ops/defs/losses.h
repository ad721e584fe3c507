// Shared by the losses over class scores.
#pragma once

#include "ops/build.h"

namespace steep {

/// Labels per row: which rows count, a label that is a valid index, and the weight of each row (0
/// for rows that do not count).
struct LabelRows {
  Value counts;   ///< bool; null when every row counts
  Value labels;   ///< 0 in rows that do not count
  Value weights;  ///< of dtype `dtype`; null when every row has weight 1
};
LabelRows label_rows(Node n, Value labels, Value class_weights, DType dtype);

/// For scores [N, C] and labels [N]: pick() gives the scores at the labels, [N, 1]; is_label() is
/// true at the labels, bool [N, C].
Value pick(Value scores, Value labels);
Value is_label(Value scores, Value labels);

/// For scores that are a part of the classes, beginning with class `first` (an attribute of n):
/// makes rows->labels indices of this part, 0 where the label is a class of another part. Returns
/// which labels are in this part, bool [N]; null without the attribute. REQUIRES: known classes.
Value labels_of_part(Node n, Value scores, LabelRows* rows);

/// mean: Σ losses / Σ weights; sum: Σ losses; none: unchanged. `losses` are already multiplied by
/// their weights.
Value reduce_losses(Node n, Value losses, Value weights);

/// (N, C, d…) → (N d…, C): moves the classes last and joins the other axes.
Value classes_last(Value scores);

}  // namespace steep
