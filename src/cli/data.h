// Data files on their way into a session: which array is fed to which input, and in what batches.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "steep/steep.h"
#include "train/labels.h"

namespace steep::cli {

/// --data, --map, --label-array, --batch.
struct DataChoice {
  std::string path;
  std::vector<std::string> map;  ///< "input=array"
  std::string label_array;
  int64_t batch = 32;
  bool batch_given = false;
  const Limits* limits = nullptr;  ///< null: the defaults
};
void add_data_options(CLI::App& app, DataChoice& choice);

/// A file's arrays for a session's inputs.
struct Feed {
  std::string path;
  std::vector<std::string> names{};  ///< of the arrays, in the order of the inputs
  std::vector<Tensor> arrays{};      ///< as the inputs have them
  bool labelled = true;              ///< else the label, the last input, is left out
  std::string text{};                ///< which array is fed to what, and which to nothing
  int64_t rows() const { return arrays[0].dims()[0]; }
};

/// `labels`: of the input that is the label; none without a loss. A label without an array is an
/// error where `needs_label`, and where arrays are left over that may be it. Throws DataError that
/// names the arrays there are: an input without one, two for one input, a label that no name
/// tells; a number or class that does not fit. ShapeError: rows or extents that differ.
Feed feed_from(const DataChoice& choice, std::span<const TensorInfo> inputs,
               const std::optional<LabelForm>& labels, bool needs_label);

/// How the rows of `feed` are cut for inputs that may fix their number: --batch, or without it what
/// they fix. `can_drop`: is there an option --drop-last? Throws ShapeError and DataError for a
/// batch, the last one included, that does not fit; the remedy names the options.
int64_t batch_size_for(const DataChoice& choice, const Feed& feed,
                       std::span<const TensorInfo> inputs, bool drop_last);

/// The number of rows that all inputs fix which fix one; 0 when none does.
int64_t fixed_rows(std::span<const TensorInfo> inputs);

/// What a batch's loss is a mean of.
class LossWeight {
 public:
  explicit LossWeight(const TrainingSession& session);
  const std::optional<LabelForm>& labels() const { return labels_; }
  /// Place of the label among the inputs; that many inputs where there is none.
  size_t at() const { return at_; }
  /// Rows; where labels are ignored, those that count.
  int64_t of(std::span<const Tensor> batch) const;

 private:
  std::optional<LabelForm> labels_;
  size_t at_;
};

/// The mean loss of batches, each as heavy as what it is a mean of.
struct LossMean {
  double sum = 0;
  double weight = 0;
  void add(double loss, double of) {
    if (of != 0) sum += loss * of, weight += of;  // of nothing, the loss is 0/0
  }
  double value() const { return sum / weight; }
};
/// What the loss of a batch is a mean of: rows, or what counts among its labels.
double weight_of(const EvalResult& result, std::span<const Tensor> batch);

}  // namespace steep::cli
