#include "cli/scores.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <utility>

#include "cli/command_line.h"
#include "data/convert.h"
#include "model/import/import.h"
#include "steep/error.h"
#include "train/loss.h"
#include "train/name_suggestions.h"

namespace steep::cli {
namespace {

constexpr int64_t kMostTop = 1000;

/// 5 for "top5"; 0 for another metric.
int64_t top_of(const std::string& metric) {
  if (!metric.starts_with("top") || metric.size() < 4 || metric.size() > 7) return 0;
  int64_t n = 0;
  for (const char c : metric.substr(3)) {
    if (c < '0' || c > '9') return 0;
    n = 10 * n + (c - '0');
  }
  return n <= kMostTop ? n : 0;
}

/// The number of classes before the label, sorted by descending score, then by number.
int64_t place(const double* row, int64_t classes, int64_t label) {
  int64_t before = 0;
  for (int64_t c = 0; c < classes; ++c) {
    before += row[c] > row[label] || (row[c] == row[label] && c < label);
  }
  return before;
}

}  // namespace

void add_metric_option(CLI::App& app, std::vector<std::string>& metrics, const std::string& when) {
  app.add_option("--metric", metrics,
                 "Also " + when +
                     ": accuracy, f1 (the mean over classes), top5 or another number (losses of\n"
                     "classes); accuracy, f1 (binary cross entropies); r2 (mse, l1, huber)")
      ->delimiter(',')
      ->check([](const std::string& name) {
        const std::vector<std::string> names{"accuracy", "f1", "r2", "top5"};
        if (std::find(names.begin(), names.end(), name) != names.end() || top_of(name) > 0)
          return std::string();
        const std::string near = closest_name(name, names);
        return fmt::format("expected accuracy, f1, top5 or another number, or r2, received '{}'{}",
                           name, near.empty() ? "" : fmt::format(": did you mean '{}'?", near));
      });
}

size_t scored_output(const TrainingSession& session) {
  return output_of_loss(session.options(), session.output_info());
}

Scores::Scores(std::vector<std::string> metrics, const TrainingSession& session,
               std::optional<LabelForm> labels, bool probabilities)
    : metrics_(std::move(metrics)), labels_(std::move(labels)), at_(scored_output(session)) {
  if (metrics_.empty()) return;
  const std::string& loss = session.options().loss;
  if (!labels_ || at_ == session.output_info().size()) {
    throw DataError(ErrorParts{.what = "--metric needs a loss of --loss on an output of the model.",
                               .expected = "--loss, and --output where there are several",
                               .received = loss.empty() ? "the model's own loss" : loss});
  }
  const bool binary = loss.starts_with("binary_cross_entropy");
  of_ = labels_->classes ? Of::classes : binary ? Of::binary : Of::elements;
  threshold_ = loss == "binary_cross_entropy" || probabilities ? 0.5 : 0;
  for (const std::string& metric : metrics_) {
    const bool has = of_ == Of::elements ? metric == "r2"
                     : of_ == Of::binary ? metric == "accuracy" || metric == "f1"
                                         : metric != "r2";
    if (has && labels_->count >= 0 && top_of(metric) >= labels_->count) {
      throw DataError(
          ErrorParts{.what = fmt::format("--metric {} is 1 for any outputs.", metric),
                     .expected = fmt::format("a number below the {} classes", labels_->count),
                     .received = metric,
                     .remedy = "Give accuracy, or a smaller number."});
    }
    if (has) continue;
    throw DataError(ErrorParts{.what = fmt::format("--metric {} does not suit the loss.", metric),
                               .expected = of_ == Of::elements ? "r2"
                                           : of_ == Of::binary
                                               ? "accuracy or f1"
                                               : "accuracy, f1, or top5 or another number",
                               .received = fmt::format("{} with --loss {}", metric, loss)});
  }
  clear();
}

void Scores::clear() {
  classes_.clear();
  within_.assign(metrics_.size(), 0);
  counted_ = 0;
  columns_.clear();
}

void Scores::add(const EvalResult& result, const Tensor& labels) {
  if (metrics_.empty()) return;
  const Tensor y = convert(result.outputs[at_], DType::f64, "output");
  if (of_ == Of::classes) {
    if (y.dims().empty() || y.size() != labels.size() * y.dims().back()) {
      throw ShapeError(ErrorParts{.what = "Labels do not match the scores of --metric.",
                                  .expected = to_string(y.dims()) + " without the last axis",
                                  .received = to_string(labels.dims())});
    }
    return add_classes(y, labels);
  }
  if (y.size() != labels.size()) {
    throw ShapeError(ErrorParts{.what = "Labels do not match the output of --metric.",
                                .expected = to_string(y.dims()),
                                .received = to_string(labels.dims())});
  }
  const Tensor target = convert(labels, DType::f64, "label");
  of_ == Of::binary ? add_binary(y, target) : add_elements(y, target);
}

void Scores::add_classes(const Tensor& scores, const Tensor& labels) {
  const int64_t classes = scores.dims().back();
  classes_.resize(std::max(classes_.size(), static_cast<size_t>(classes)));
  const auto* label = labels.data<int64_t>();
  const auto* row = scores.data<double>();
  for (int64_t i = 0; i < labels.size(); ++i, row += classes) {
    if (label[i] == labels_->ignored) continue;
    const int64_t before = place(row, classes, label[i]);
    for (size_t m = 0; m < metrics_.size(); ++m) {
      within_[m] += before < (metrics_[m] == "accuracy" ? 1 : top_of(metrics_[m]));
    }
    ++counted_;
    const auto guess = static_cast<size_t>(std::max_element(row, row + classes) - row);
    const auto is = static_cast<size_t>(label[i]);
    ++classes_[is].label;
    ++classes_[guess].guesses;
    classes_[is].both += guess == is;
  }
}

void Scores::add_binary(const Tensor& scores, const Tensor& labels) {
  classes_.resize(1);
  const auto* y = scores.data<double>();
  const auto* t = labels.data<double>();
  for (int64_t i = 0; i < scores.size(); ++i) {
    const bool said = y[i] > threshold_, is = t[i] > 0.5;
    for (int64_t& within : within_) within += said == is;
    ++counted_;
    classes_[0].label += is;
    classes_[0].guesses += said;
    classes_[0].both += said && is;
  }
}

void Scores::add_elements(const Tensor& y, const Tensor& target) {
  const int64_t rows = target.dims().empty() ? 1 : target.dims()[0];
  const auto width = static_cast<size_t>(rows == 0 ? 0 : target.size() / rows);
  columns_.resize(std::max(columns_.size(), width));
  for (int64_t i = 0; i < target.size(); ++i) {
    Column& column = columns_[static_cast<size_t>(i) % width];
    const double t = target.data<double>()[i], e = t - y.data<double>()[i];
    const double before = t - column.mean;  // Welford's algorithm
    column.count += 1;
    column.mean += before / column.count;
    column.spread += before * (t - column.mean);
    column.error += e * e;
  }
}

double Scores::f1() const {
  double sum = 0, classes = 0;
  for (const Counts& c : classes_) {
    if (c.label + c.guesses == 0) continue;
    sum += 2 * static_cast<double>(c.both) / static_cast<double>(c.label + c.guesses);
    classes += 1;
  }
  return sum / classes;
}

double Scores::r2() const {
  double sum = 0;
  for (const Column& c : columns_) sum += 1 - c.error / c.spread;
  return sum / static_cast<double>(columns_.size());
}

std::vector<std::pair<std::string, double>> Scores::values() const {
  std::vector<std::pair<std::string, double>> values;
  for (size_t m = 0; m < metrics_.size(); ++m) {
    const std::string& name = metrics_[m];
    const double share = static_cast<double>(within_[m]) / static_cast<double>(counted_);
    values.emplace_back(name, name == "f1" ? f1() : name == "r2" ? r2() : share);
  }
  return values;
}

bool holds_probabilities(const std::string& model, const TrainingOptions& options,
                         const std::vector<std::string>& metrics) {
  if (options.loss != "binary_cross_entropy_with_logits" || metrics.empty()) return false;
  ImportedModel source =
      import_model(std::filesystem::path(model), {.limits = options.limits, .leave_out = true});
  offer_output(source.graph, options);
  return reads_scores_within(source.graph, options);
}

}  // namespace steep::cli
