// Labels as people have them, and as losses take them.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "steep/steep.h"

namespace steep {

/// What a loss takes as its labels.
struct LabelForm {
  TensorInfo input;                  ///< of the label
  bool classes = false;              ///< numbers of classes, int64; else floats
  bool broadcasts = false;           ///< of another rank, every label would meet every output
  int64_t count = -1;                ///< of classes; -1 when the model leaves it open
  std::optional<int64_t> ignored{};  ///< the number of no class, which counts for nothing
};

/// Of a session with these options, inputs and outputs. None without a loss of its own.
std::optional<LabelForm> label_form(const TrainingOptions& options,
                                    std::span<const TensorInfo> inputs,
                                    std::span<const TensorInfo> outputs);

/// Are labels of this dtype and shape what the loss takes, so that as_labels() changes nothing?
bool suits(const Tensor& labels, const LabelForm& form);

/// Labels in the form that the loss takes; what it does not know is left to the loss to refuse.
///
/// A last axis of one element is added or taken away where that gives the loss's shape; labels of
/// mse have to be of the output's rank, or this throws ShapeError. Numbers of
/// classes may be floats that are whole, and one-hot rows: an axis of `count` numbers more, of any
/// dtype, one of them 1 and the rest 0. Dtypes are converted as convert() does it. Throws DataError
/// that names the element or row: a fraction, a row that is not one-hot, a number that does not
/// fit.
Tensor as_labels(const Tensor& labels, const LabelForm& form);

/// Throws DataError, naming the row of `labels` and `name`, for a class that is not there and is
/// not ignored, and when none counts. `labels` are what as_labels() made.
void check_classes(const Tensor& labels, const LabelForm& form, const std::string& name);

/// How many labels count: those that are not ignored.
int64_t count_labels(const Tensor& labels, const LabelForm& form);

}  // namespace steep
