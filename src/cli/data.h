// Assigns the arrays of data files to the inputs of a session, and cuts them into batches.
#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cli/late_rows.h"
#include "steep/steep.h"
#include "train/finite.h"
#include "train/labels.h"

namespace steep::cli {

/// --data, --map, --label-array, --batch, and the options of images.
struct DataArguments {
  std::vector<std::string> paths;
  std::vector<std::string> map;  ///< "input=array", or "input=column,column"
  std::string label_array;
  /// By input, columns that it has if the files have no array for it: those of an earlier feed.
  std::map<std::string, std::string> columns{};
  const char* columns_of = "--data has";  ///< whose columns these are, in errors
  const std::string* loss = nullptr;      ///< --loss; null: none
  int64_t batch = 32;
  bool batch_given = false;
  ImageArguments images;
  const Limits* limits = nullptr;  ///< null: the defaults
};
/// `labels`: also --label-array.
void add_data_options(CLI::App& app, DataArguments& choice, bool labels = true);

/// The arrays for a session's inputs.
struct Feed {
  std::string path;                  ///< the first file, "and 2 more"
  std::vector<std::string> names{};  ///< of the arrays, in the order of the inputs
  /// In the dtypes of the inputs, except for mapped files: sessions convert these.
  std::vector<Tensor> arrays{};
  std::map<std::string, std::string> columns{};  ///< of tables, "a,b,c", by input
  bool labelled = true;                ///< false: the label, which is the last input, is left out
  std::string text{};                  ///< the array of each input, and the unused arrays, as text
  std::string warning{};               ///< "" if there is none
  std::vector<int64_t> row_numbers{};  ///< rows of the arrays, in order; empty: all
  LateRows late{};                     ///< read by FeedBatches
  int64_t rows() const {
    return row_numbers.empty() ? arrays[0].dims()[0] : static_cast<int64_t>(row_numbers.size());
  }
};

/// Files with the same arrays are concatenated. Files with different arrays (such as one .npy file
/// for each input) are combined. An input without an array is made from the CSV columns that no
/// other input uses, in their order; if these are too many, without those named as labels.
/// `labels`: the form of the label input; none if there is no loss. A label without an array is an
/// error if `needs_label`, and if an unused array may be the label. Throws DataError, which lists
/// the arrays: an input without an array, two arrays for one input, a label that cannot be
/// identified by name, a number or class that does not fit. Throws ShapeError: rows or extents that
/// differ.
Feed feed_from(const DataArguments& choice, std::span<const TensorInfo> inputs,
               const std::optional<LabelForm>& labels, bool needs_label);

/// The batches of a feed.
class FeedBatches {
 public:
  /// `options`: their `rows` are those of the feed.
  FeedBatches(const Feed& feed, BatchOptions options);
  int64_t row_count() const { return batches_.row_count(); }
  int64_t count() const { return batches_.count(); }
  /// As Batches::get(). Throws also as load_images() does.
  std::vector<Tensor> get(int64_t epoch, int64_t batch);

 private:
  Batches batches_;
  LateRows late_;
};

/// The first `count` rows of the arrays, as a batch.
std::vector<Tensor> first_rows(const Feed& feed, int64_t count);

/// Removes a fraction `part` of the rows, rounded, from `feed`, and returns them: random rows by
/// `seed`, or the last ones without `shuffle`. Throws DataError if one of the two would have no
/// rows.
Feed split_off(Feed* feed, double part, bool shuffle, uint64_t seed);

/// The division of rows into batches.
struct Cut {
  int64_t batch = 0;
  bool drop_last = false;  ///< rows of an incomplete last batch are left out
  int64_t left_out = 0;    ///< rows left out: too few for the model
  std::string text{};      ///< "batches of 8 rows, which the model fixes; 3 rows left out"; or ""
  std::string left_out_text() const;  ///< "; 3 rows left out", or ""
};

/// Divides the rows of `feed` into batches of the size of --batch or, without it, of the size that
/// the inputs fix. A model with a fixed size does not accept an incomplete batch; these rows are
/// left out, unless `whole` requires a result for each row. Throws ShapeError and DataError if
/// --batch or the remaining rows do not fit; the remedy names the options. `note`: why the number
/// is fixed, or "".
Cut cut_for(const DataArguments& choice, const Feed& feed, std::span<const TensorInfo> inputs,
            bool drop_last, bool whole = false, const std::string& note = "");

/// A text on the output that the loss is attached to if --output does not name it and there are
/// several, else "".
std::string output_note(const std::string& named, const TrainingSession& session);

/// The fixed number of rows of the inputs that fix one; 0 if they differ or none does.
int64_t fixed_rows(std::span<const TensorInfo> inputs);

/// The weight of a batch in a mean of losses.
class LossWeight {
 public:
  explicit LossWeight(const TrainingSession& session);
  const std::optional<LabelForm>& labels() const { return labels_; }
  /// Index of the label among the inputs; the number of inputs if there is no label.
  size_t at() const { return at_; }
  /// The number of rows; if labels may be ignored, the number of labels that count.
  int64_t of(std::span<const Tensor> batch) const;
  /// Whether labels may be ignored; then of_labels() is the weight of a batch with these labels.
  bool counts_labels() const;
  int64_t of_labels(const Tensor& labels) const;

 private:
  std::optional<LabelForm> labels_;
  size_t at_;
};

/// The mean loss over batches, each with its weight.
struct LossMean {
  double sum = 0;
  double weight = 0;
  void add(double loss, double of) {
    if (of != 0) sum += loss * of, weight += of;  // without weight, the loss is 0/0
  }
  double value() const { return without_nan_sign(sum / weight); }
};
/// The weight of a batch: EvalResult::weight, or the number of its rows.
double weight_of(const EvalResult& result, std::span<const Tensor> batch);

}  // namespace steep::cli
