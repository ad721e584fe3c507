// --metric: measures of the quality of outputs, beside the loss.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "steep/steep.h"
#include "train/labels.h"
#include "train/loss_output.h"

namespace steep::cli {

/// --metric.
void add_metric_option(CLI::App& app, std::vector<std::string>& metrics, const std::string& when);

/// Index of the output that the loss reads among a session's outputs; their number if there is
/// none.
size_t scored_output(const TrainingSession& session);

/// Sums over one pass of the data: call clear() before the next.
class Scores {
 public:
  /// `probabilities`, for binary_cross_entropy_with_logits: whether the output is the sigmoid of
  /// the value that the loss reads. Throws DataError for a metric that does not fit the loss.
  Scores(std::vector<std::string> metrics, const TrainingSession& session,
         std::optional<LabelForm> labels, bool probabilities);

  bool any() const { return !metrics_.empty(); }
  void clear();
  /// Throws ShapeError if the labels do not match the output.
  void add(const EvalResult& result, const Tensor& labels);
  /// Values by name, in the order of the constructor's list; NaN if nothing counts.
  std::vector<std::pair<std::string, double>> values() const;

 private:
  void add_classes(const Tensor& scores, const Tensor& labels);
  void add_binary(const Tensor& scores, const Tensor& labels);
  void add_elements(const Tensor& y, const Tensor& target);
  double f1() const;
  double r2() const;

  enum class Of { classes, binary, elements };
  std::vector<std::string> metrics_;
  std::optional<LabelForm> labels_;
  Of of_ = Of::elements;
  size_t at_ = 0;
  double threshold_ = 0;

  struct Counts {
    int64_t both = 0, label = 0, guesses = 0;
  };
  std::vector<Counts> classes_;  // for f1; with binary labels only the positive class
  std::vector<int64_t> within_;  // by metric: hits of topN and accuracy
  int64_t counted_ = 0;
  struct Column {
    double count = 0, mean = 0, spread = 0, error = 0;  // spread: Σ (t - mean)²; error: Σ (t - y)²
  };
  std::vector<Column> columns_;
};

/// Whether the output is the sigmoid of the value that the loss reads: see Scores. Reads the model
/// only if a metric depends on it. Throws ModelError, IoError.
bool holds_probabilities(const std::string& model, const TrainingOptions& options,
                         const std::vector<std::string>& metrics);

}  // namespace steep::cli
