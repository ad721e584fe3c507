// Converts labels to the form that the loss takes.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "steep/steep.h"

namespace steep {

/// The form of labels that a loss takes.
struct LabelForm {
  TensorInfo input;                  ///< the label input
  bool classes = false;              ///< labels are class numbers, int64; else floats
  bool broadcasts = false;           ///< labels of another rank would broadcast against the outputs
  int64_t count = -1;                ///< number of classes; -1 if the model does not fix it
  std::optional<int64_t> ignored{};  ///< label that does not count in the loss
};

/// The form of the labels of a session with these options, inputs and outputs. None if the options
/// name no loss.
std::optional<LabelForm> label_form(const TrainingOptions& options,
                                    std::span<const TensorInfo> inputs,
                                    std::span<const TensorInfo> outputs);

/// Whether labels of this dtype and shape have the form already, so that as_labels() changes
/// nothing.
bool suits(const Tensor& labels, const LabelForm& form);

/// Converts labels to the form that the loss takes. Labels in unknown forms are returned as they
/// are, and the loss refuses them.
///
/// A last axis of one element is added or removed if that gives the loss's shape. Labels of mse
/// must have the output's rank, else this throws ShapeError. Class numbers may be floats with whole
/// values, or one-hot rows: one more axis with `count` numbers of any dtype, one of them 1 and the
/// others 0. Dtypes are converted by convert(). Throws DataError, which names the element or row,
/// for a fraction, for a row that is not one-hot and for a number that does not fit.
Tensor as_labels(const Tensor& labels, const LabelForm& form);

/// Throws DataError, which names the row of `labels` and `name`, for a class number that is out of
/// range and not ignored, and if no label counts. `labels` is a result of as_labels().
void check_classes(const Tensor& labels, const LabelForm& form, const std::string& name);

/// The number of labels that are not ignored.
int64_t count_labels(const Tensor& labels, const LabelForm& form);

}  // namespace steep
