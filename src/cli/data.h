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
  std::vector<std::string> paths;
  std::vector<std::string> map;  ///< "input=array", or "input=column,column"
  std::string label_array;
  int64_t batch = 32;
  bool batch_given = false;
  const Limits* limits = nullptr;  ///< null: the defaults
};
/// `labels`: also --label-array.
void add_data_options(CLI::App& app, DataChoice& choice, bool labels = true);

/// Files' arrays for a session's inputs.
struct Feed {
  std::string path;                  ///< the first of them, "and 2 more"
  std::vector<std::string> names{};  ///< of the arrays, in the order of the inputs
  /// As the inputs have them; of mapped files perhaps of another dtype, which sessions convert.
  std::vector<Tensor> arrays{};
  bool labelled = true;           ///< else the label, the last input, is left out
  std::string text{};             ///< which array is fed to what, and which to nothing
  std::vector<int64_t> chosen{};  ///< rows of the arrays, in order; empty: all
  int64_t rows() const {
    return chosen.empty() ? arrays[0].dims()[0] : static_cast<int64_t>(chosen.size());
  }
};

/// One behind the other, along the first axis. Throws ShapeError, naming `name`, for parts of other
/// extents or dtypes.
Tensor join_rows(const std::vector<Tensor>& parts, const std::string& name);

/// Files with the same arrays are concatenated. Files with different arrays (such as one .npy file
/// for each input) are combined. An input without an array is made from the columns of a CSV that
/// no other input uses, in their order. `labels`: of the input that is the label; none without a
/// loss. A label without an array is an error where `needs_label`, and where arrays are left over
/// that may be it. Throws DataError, which lists the arrays: an input without an array, two arrays
/// for one input, a label that cannot be identified by name, a number or class that does not fit.
/// ShapeError: rows or extents that differ.
Feed feed_from(const DataChoice& choice, std::span<const TensorInfo> inputs,
               const std::optional<LabelForm>& labels, bool needs_label);

/// Takes `part` of the rows out of `feed`, rounded, and returns them: drawn by `seed`, or without
/// `shuffle` the last ones. Throws DataError where either would have no row.
Feed split_off(Feed* feed, double part, bool shuffle, uint64_t seed);

/// How rows are cut into batches.
struct Cut {
  int64_t batch = 0;
  bool drop_last = false;  ///< rows that make no full batch are left out
  int64_t left_out = 0;    ///< rows, as the model takes no smaller batch
  std::string text{};      ///< "batches of 8 rows, which the model fixes; 3 rows left out"; or ""
  std::string left_out_text() const;  ///< "; 3 rows left out", or ""
};

/// How the rows of `feed` are cut for inputs that may fix their number: by --batch, or without it
/// by what they fix. The rest, which such a model does not take, is left out, too, unless `whole`:
/// a result is for each row. Throws ShapeError and DataError for a --batch, or a rest, that does
/// not fit; the remedy names the options.
Cut cut_for(const DataChoice& choice, const Feed& feed, std::span<const TensorInfo> inputs,
            bool drop_last, bool whole = false);

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
