// steep eval: the loss of a model on data, and its outputs.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>

#include "checkpoint/checkpoint.h"
#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/data.h"
#include "cli/interrupts.h"
#include "cli/model_options.h"
#include "cli/option_flags.h"
#include "cli/progress.h"
#include "cli/results.h"
#include "cli/scores.h"
#include "cli/trained_columns.h"
#include "runtime/budget.h"
#include "runtime/disk.h"
#include "steep/error.h"
#include "steep/inference.h"

namespace steep::cli {
namespace {

struct EvalChoice {
  ModelChoice model;
  DataArguments data;
  bool drop_last = false;
  std::string checkpoint;
  std::string out;
  std::vector<std::string> scores;  ///< --metric
  bool json = false;
  int64_t threads = 0;
};

/// The number of rows of `scores` [.., C] whose largest element is at the label, without ignored
/// labels.
int64_t count_right(const Tensor& scores, const Tensor& labels, const LabelForm& form) {
  const int64_t classes = scores.dims().back();
  const auto* label = labels.data<int64_t>();
  int64_t right = 0;
  auto count = [&](const auto* row) {
    for (int64_t i = 0; i < labels.size(); ++i, row += classes) {
      if (label[i] == form.ignored) continue;
      right += std::max_element(row, row + classes) - row == label[i];
    }
  };
  if (scores.dtype() == DType::f32) count(scores.data<float>());
  if (scores.dtype() == DType::f64) count(scores.data<double>());
  return right;
}

FeedBatches batches_of(const EvalChoice& choice, const Feed& feed, const Cut& cut) {
  if (!choice.json) fmt::print("{}\n", feed.text);
  if (!choice.json && !cut.text.empty()) fmt::print("{}\n", cut.text);
  if (!feed.warning.empty()) {  // --json: not into the results
    fmt::print(choice.json ? stderr : stdout, "warning: {}\n", feed.warning);
  }
  return {feed, {.batch_size = cut.batch, .shuffle = false, .drop_last = cut.drop_last}};
}

/// Whether an output of these is the loss if neither --loss nor --output is given.
bool has_loss(const std::vector<TensorInfo>& outputs) {
  const auto loss = outputs.size() == 1
                        ? outputs.begin()
                        : std::find_if(outputs.begin(), outputs.end(),
                                       [](const TensorInfo& o) { return o.name == "loss"; });
  return loss != outputs.end() &&
         (!loss->has_rank || std::all_of(loss->dims.begin(), loss->dims.end(),
                                         [](int64_t extent) { return extent == 1; }));
}

/// Prints one line: JSON, or names and numbers.
void print_report(const EvalChoice& choice, const Fields& fields, const std::string& text) {
  fmt::print("{}\n", choice.json ? to_line(fields) : text);
}

/// Runs a model that has no loss.
int write_outputs(const EvalChoice& choice, InferenceSession& session) {
  const Feed feed = feed_from(choice.data, session.input_info(), {}, false);
  FeedBatches batches = batches_of(
      choice, feed, cut_for(choice.data, feed, session.input_info(), choice.drop_last, true));
  Results results(choice.out, session.output_info());
  const int64_t rows = run_batches(session, batches, &results);
  constexpr const char* kNone = "no loss: the model has none, and --loss is not given";
  print_report(choice, {{"report", "eval"}, {"rows", rows}, {"text", kNone}},
               fmt::format("rows {}  {}", rows, kNone));
  results.write(!choice.json);
  return kDone;
}

/// The sums of print_loss().
struct EvalTotals {
  LossMean mean{};
  int64_t rows = 0;
  int64_t right = 0, counted = 0;  // numbers of labels; `counted`: without ignored ones
  int64_t labels = 0;
  std::string not_finite{};  // the first loss that is not finite, and its rows

  void add_loss(double loss, double weight, int64_t more) {
    if (weight != 0 && !std::isfinite(loss) && not_finite.empty()) {
      not_finite = fmt::format("{} in rows {} to {}", loss, rows, rows + more - 1);
    }
    mean.add(loss, weight);
    rows += more;
  }

  void add_labels(const Tensor& scores, const Tensor& batch_labels, const LabelForm& form) {
    right += count_right(scores, batch_labels, form);
    counted += count_labels(batch_labels, form);
    labels += batch_labels.size();
  }
};

/// `values`: the metrics.
void print_totals(const EvalChoice& choice, const EvalTotals& totals, const Feed& feed,
                  std::vector<std::pair<std::string, double>> values,
                  const std::vector<std::string>& warnings) {
  std::string text = fmt::format("rows {}", totals.rows);
  Fields fields{{"report", "eval"}, {"rows", totals.rows}};
  if (totals.rows < feed.rows()) fields["rows_left_out"] = feed.rows() - totals.rows;
  if (feed.labelled) {
    text += fmt::format("  loss {:.8g}", totals.mean.value());
    fields["loss"] = totals.mean.value();
  }
  if (totals.counted > 0) {
    values.emplace_back("accuracy",
                        static_cast<double>(totals.right) / static_cast<double>(totals.counted));
  }
  for (const auto& [name, value] : values) {
    text += fmt::format("  {} {:.4f}", name, value);
    fields[name] = value;
  }
  if (totals.counted < totals.labels) {
    const int64_t ignored = totals.labels - totals.counted;
    text += fmt::format("  labels {}, without {} ignored", totals.counted, ignored);
    fields["labels_ignored"] = ignored;
  }
  if (!warnings.empty()) fields["warnings"] = warnings;
  print_report(choice, fields, text);
}

/// Prints which output the loss is on, and what is doubtful about it.
void print_notes(const EvalChoice& choice, const TrainingSession& session) {
  if (const std::string note = output_note(choice.model.options.output, session); !note.empty())
    fmt::print("{}\n", note);
  for (const std::string& text : session.warnings()) fmt::print("warning: {}\n", text);
}

int print_loss(const EvalChoice& choice, TrainingSession& session) {
  const LossWeight weight(session);
  const std::optional<LabelForm>& labels = weight.labels();
  const Feed feed = feed_from(choice.data, session.input_info(), labels, false);
  const Cut cut = cut_for(choice.data, feed, session.input_info(), choice.drop_last,
                          !choice.out.empty(), session.batch_note());
  FeedBatches batches = batches_of(choice, feed, cut);
  if (!choice.json) print_notes(choice, session);
  const std::vector<TensorInfo> info = session.output_info();
  const size_t scores = scored_output(session);
  const bool classify = choice.scores.empty() && labels && labels->classes && feed.labelled &&
                        scores < info.size() &&
                        (info[scores].dtype == DType::f32 || info[scores].dtype == DType::f64);
  EvalTotals totals;
  Results results(choice.out, info);
  Scores metric(choice.scores, session, labels,
                holds_probabilities(choice.model.path, session.options(), choice.scores));
  if (metric.any() && !feed.labelled) {
    throw DataError(ErrorParts{.what = "--metric needs labels.", .node = feed.path});
  }
  for (int64_t i = 0; i < batches.count(); ++i) {
    const std::vector<Tensor> batch = batches.get(0, i);
    const EvalResult result = session.eval(batch);
    totals.add_loss(result.loss.value_or(0), weight_of(result, batch), batch[0].dims()[0]);
    if (classify) totals.add_labels(result.outputs[scores], batch[weight.at()], *labels);
    if (metric.any()) metric.add(result, batch[weight.at()]);
    results.add(result.outputs);
  }
  print_totals(choice, totals, feed, metric.values(), session.warnings());
  results.write(!choice.json);
  if (feed.labelled && totals.mean.weight == 0) totals.not_finite = "nan, since no label counts";
  if (totals.not_finite.empty()) return kDone;
  throw DataError(ErrorParts{.what = "The loss is not finite.",
                             .received = totals.not_finite,
                             .remedy = "Check these rows, and the model's weights."});
}

/// Whether a checkpoint is of a run with --ema.
bool has_averages(const std::string& checkpoint) {
  const auto no_data = [](const std::string&) { return false; };
  const std::map<std::string, Tensor> moments = read_checkpoint(checkpoint, no_data).moments;
  return std::any_of(moments.begin(), moments.end(),
                     [](const auto& moment) { return moment.first.starts_with("ema/"); });
}

int evaluate(const EvalChoice& choice) {
  const Budget budget(choice.model.options.limits);  // applies to the data, too
  if (!choice.out.empty()) check_destination(choice.out);
  TrainingOptions options = training_options(choice.model);
  // Averages are part of a checkpoint; no step changes them, so any decay will do.
  if (!choice.checkpoint.empty() && has_averages(choice.checkpoint)) options.ema_decay = 0.5;
  if (options.loss.empty() && options.output.empty() && choice.checkpoint.empty()) {
    InferenceSession session(std::filesystem::path(choice.model.path),
                             {.disabled_passes = options.disabled_passes,
                              .open_batch = true,
                              .running_statistics = true,
                              .limits = options.limits,
                              .providers = options.providers});
    if (!has_loss(session.output_info())) return write_outputs(choice, session);
  }
  TrainingSession session(choice.model.path, options);
  if (!choice.checkpoint.empty()) session.load_checkpoint(choice.checkpoint);
  return print_loss(choice, session);
}

}  // namespace

Command add_eval(CLI::App& parent) {
  auto choice = std::make_shared<EvalChoice>();
  CLI::App& app = *parent.add_subcommand("eval", "Print the loss on data, write the outputs");
  add_model_options(app, choice->model);
  add_data_options(app, choice->data);
  add_provider_option(app, choice->model.providers);
  add_pass_option(app, choice->model.options.disabled_passes);
  choice->data.limits = &choice->model.options.limits;
  choice->data.loss = &choice->model.options.loss;
  app.add_flag("--drop-last", choice->drop_last, "Leave out a last batch that is not full");
  add_optimizer_option(app, choice->model, "The optimizer of the run that wrote --checkpoint");
  OptimizerOptions& optimizer = choice->model.options.optimizer;
  visit_optimizer_options([&](const OptionRow& row, auto member) {
    // Only the settings that change which tensors a checkpoint has.
    if (row.key == "momentum" || row.key == "amsgrad" || row.key == "centered")
      add_flag_of(app, row, optimizer.*member);
  });
  app.add_option("--checkpoint", choice->checkpoint, "Take the weights from this checkpoint");
  add_results_option(app, choice->out);
  add_metric_option(app, choice->scores, "print");
  app.add_flag("--json", choice->json, "Print the result as one line of JSON");
  add_threads_option(app, choice->threads);
  app.footer(
      "The loss is the mean over rows. With --ignore-index, loss and accuracy are over the labels "
      "that\n"
      "count. If none counts, or the loss is not finite, the exit code is 3. Without labels, or\n"
      "if there is neither --loss nor a loss in the model, the command only writes the outputs.\n"
      "Examples:\n"
      "  steep eval trained.onnx --data test.npz --loss softmax_cross_entropy --label-array y\n"
      "  steep eval trained.onnx --data validation.npz --loss mse --metric r2 --json\n"
      "  steep eval trained.onnx --data test.npz --out outputs.npz");
  return [choice, &app] {
    check_usage(app, choice->model);
    load_ops(choice->model.ops, choice->model.options.limits);
    check_optimizer_usage(app, choice->model.options.optimizer);
    say_when_files_shrink();
    use_threads(choice->threads);
    match_trained_columns(&choice->data, choice->model.path, choice->model.options.limits);
    return evaluate(*choice);
  };
}

}  // namespace steep::cli
