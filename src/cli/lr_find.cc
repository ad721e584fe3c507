// steep lr-find: suggests a learning rate. Trains with a rate that rises at each step, and watches
// the loss (Smith, Cyclical Learning Rates for Training Neural Networks, 2017).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <memory>
#include <optional>

#include "cli/chart.h"
#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/data.h"
#include "cli/interrupts.h"
#include "cli/model_options.h"
#include "cli/option_flags.h"
#include "cli/progress.h"
#include "cli/trained_columns.h"
#include "runtime/budget.h"
#include "runtime/disk.h"
#include "steep/error.h"

namespace steep::cli {
namespace {

struct FindChoice {
  ModelChoice model;
  DataArguments data;
  double from = 1e-7;
  double to = 10;
  int64_t steps = 100;
  std::string plot;
  bool json = false;
};

struct Trial {
  double lr;
  double loss;      ///< of the step, before its update
  double smoothed;  ///< moving average of the losses so far
};

constexpr double kKept = 0.9;    // the average's decay per step
constexpr double kDiverged = 4;  // times the least average so far: the search ends
constexpr int64_t kFirst = 10;   // averages before this step are too noisy
constexpr int64_t kTableRows = 20;

class Search {
 public:
  explicit Search(const FindChoice& choice)
      : choice_(choice),
        session_(choice.model.path, training_options(choice.model)),
        weight_(session_),
        feed_(feed_from(choice.data, session_.input_info(), weight_.labels(), true)),
        cut_(cut_for(choice.data, feed_, session_.input_info(), false, false,
                     session_.batch_note())),
        batches_(feed_, {.batch_size = cut_.batch,
                         .shuffle = true,
                         .drop_last = cut_.drop_last,
                         .seed = choice.model.options.seed}) {}

  int go() {
    say(feed_.text);
    if (!cut_.text.empty()) say(cut_.text);
    if (!feed_.warning.empty()) say("warning: " + feed_.warning);
    const std::string note = output_note(choice_.model.options.output, session_);
    if (!note.empty()) say(note);
    for (const std::string& text : session_.warnings()) say("warning: " + text);
    std::exception_ptr interrupt;  // the rates that were tried are shown before it takes effect
    try {
      run();
    } catch (const InterruptedError&) {
      if (trials_.empty()) throw;
      interrupt = std::current_exception();
    }
    if (trials_.empty()) {
      throw DataError(ErrorParts{.what = "No learning rate was tried.", .received = end_reason_});
    }
    print_table();
    if (interrupt) std::rethrow_exception(interrupt);  // too few rates for a suggestion
    const std::optional<double> best = suggestion();
    if (!end_reason_.empty()) say(end_reason_);
    print_suggestion(best);
    if (!choice_.plot.empty()) draw(best);
    return kDone;
  }

 private:
  void say(const std::string& text) const {
    if (!choice_.json) return fmt::print("{}\n", text);
    fmt::print("{}\n", to_line({{"report", "note"}, {"text", text}}));
  }

  double rate(int64_t step) const {
    const double part = static_cast<double>(step) / static_cast<double>(choice_.steps - 1);
    return choice_.from * std::pow(choice_.to / choice_.from, part);
  }

  void run() {
    double mean = 0, weight = 0, least = 0;
    int64_t at = 0, without = 0;
    for (int64_t step = 0; step < choice_.steps; ++at) {
      const std::vector<Tensor> batch = batches_.get(at / batches_.count(), at % batches_.count());
      if (weight_.of(batch) == 0) {
        if (++without == batches_.count()) return;
        continue;
      }
      without = 0;
      const double lr = rate(step);
      session_.set_lr(lr);
      const std::optional<double> loss = loss_of(batch, lr);
      if (!loss) return;
      mean = kKept * mean + (1 - kKept) * *loss;
      weight = kKept * weight + (1 - kKept);
      trials_.push_back({.lr = lr, .loss = *loss, .smoothed = mean / weight});
      const double now = trials_.back().smoothed;
      if (step == 0 || now < least) least = now;
      if (step >= kFirst && now > kDiverged * std::fabs(least)) {
        end_reason_ = fmt::format("ended at {:.3g}: the loss is {} times as large as at its least",
                                  lr, kDiverged);
        return;
      }
      ++step;
    }
  }

  /// The loss of one step. If it is not finite, nothing, and the reason is in end_reason_.
  std::optional<double> loss_of(const std::vector<Tensor>& batch, double lr) {
    try {
      const StepResult result = session_.step(batch);
      if (std::isfinite(result.loss)) return result.loss;
      end_reason_ = fmt::format("ended at {:.3g}: the loss is not finite", lr);
    } catch (const DataError& error) {
      if (trials_.empty()) throw;
      end_reason_ = fmt::format("ended at {:.3g}: {}", lr, error.parts().what);
    }
    return {};
  }

  void print_table() const {
    const auto count = static_cast<int64_t>(trials_.size());
    const int64_t each = choice_.json ? 1 : std::max<int64_t>(1, count / kTableRows);
    if (!choice_.json) fmt::print("{:>10}  {:>12}  {:>12}\n", "lr", "loss", "smoothed");
    for (int64_t i = 0; i < count; i += each) {
      const Trial& t = trials_[static_cast<size_t>(i)];
      if (choice_.json) {
        fmt::print("{}\n", to_line({{"report", "step"},
                                    {"step", i + 1},
                                    {"lr", t.lr},
                                    {"loss", t.loss},
                                    {"smoothed", t.smoothed}}));
      } else {
        fmt::print("{:>10.3g}  {:>12.6g}  {:>12.6g}\n", t.lr, t.loss, t.smoothed);
      }
    }
  }

  /// A tenth of the rate with the least smoothed loss. Nothing if that loss is not below the first
  /// losses by more than their spread.
  std::optional<double> suggestion() const {
    if (trials_.size() <= kFirst) return {};
    const auto first = trials_.begin() + kFirst - 1;
    double spread = 0;
    for (auto t = trials_.begin(); t <= first; ++t) {
      spread += (t->loss - first->smoothed) * (t->loss - first->smoothed) / kFirst;
    }
    const auto least = std::min_element(first, trials_.end(), [](const Trial& a, const Trial& b) {
      return a.smoothed < b.smoothed;
    });
    if (!(first->smoothed - least->smoothed > std::sqrt(spread))) return {};
    return least->lr / 10;
  }

  void print_suggestion(std::optional<double> lr) const {
    if (!lr) {
      return say("no suggestion: no rate made the loss fall; try other --from, --to or --steps");
    }
    if (choice_.json) {
      return fmt::print("{}\n", to_line({{"report", "suggestion"}, {"lr", *lr}}));
    }
    fmt::print("suggestion: --lr {:.2g}, a tenth of the rate at which the loss is least\n", *lr);
  }

  void draw(std::optional<double> best) const {
    Chart chart{.title = "loss by learning rate", .x = "learning rate", .y = "loss", .log_x = true};
    Curve loss{.name = "loss", .points = {}}, smoothed{.name = "smoothed", .points = {}};
    for (const Trial& t : trials_) {
      loss.points.emplace_back(t.lr, t.loss);
      smoothed.points.emplace_back(t.lr, t.smoothed);
    }
    chart.curves = {std::move(loss), std::move(smoothed)};
    chart.mark = best;
    if (best) chart.mark_name = fmt::format("suggestion: {:.2g}", *best);
    const std::string svg = to_svg(chart);
    write_file(choice_.plot, [&](FileWriter& file) { file.write(svg); });
    say("wrote " + destination_text(choice_.plot));
  }

  const FindChoice& choice_;
  TrainingSession session_;
  LossWeight weight_;
  Feed feed_;
  Cut cut_;
  FeedBatches batches_;
  std::vector<Trial> trials_;
  std::string end_reason_;  ///< why the search ended before --steps
};

void add_options(CLI::App& app, FindChoice& choice) {
  add_model_options(app, choice.model);
  add_provider_option(app, choice.model.providers);
  add_pass_option(app, choice.model.options.disabled_passes);
  add_data_options(app, choice.data);
  choice.data.limits = &choice.model.options.limits;
  choice.data.loss = &choice.model.options.loss;
  TrainingOptions& o = choice.model.options;
  add_optimizer_option(app, choice.model, "How weights are updated");
  visit_optimizer_options([&](const OptionRow& row, auto member) {
    if (row.key != "lr") add_flag_of(app, row, o.optimizer.*member);
  });
  visit_step_options([&](const OptionRow& row, auto member) {
    const bool other = row.key == kDisabledPasses || row.key == "ema_decay" ||
                       row.key == "grad_norm" || row.key == "check_finite";
    if (!other) add_flag_of(app, row, o.*member);
  });
  app.add_option("--from", choice.from, "The first learning rate")
      ->capture_default_str()
      ->transform(real(1e-12, 1e6));
  app.add_option("--to", choice.to, "The last one")
      ->capture_default_str()
      ->transform(real(1e-12, 1e6));
  constexpr int64_t kMostSteps = 1'000'000;
  app.add_option("--steps", choice.steps, "Steps between them, over as many epochs as it takes")
      ->capture_default_str()
      ->transform(whole(2 * kFirst, kMostSteps));
  add_picture_option(app, "--plot", choice.plot, "Draw the losses into this file, a name in .svg");
  app.add_flag("--json", choice.json, "Print each step, and the suggestion, as a line of JSON");
}

}  // namespace

Command add_lr_find(CLI::App& parent) {
  auto choice = std::make_shared<FindChoice>();
  CLI::App& app = *parent.add_subcommand("lr-find", "Try rising learning rates, and suggest one");
  add_options(app, *choice);
  app.footer(
      "Each step has a rate that is a little higher, by the same factor, than the one before. The "
      "run ends\n"
      "when the loss is not finite, or 4 times as large as its least. The suggestion is a tenth "
      "of the rate\n"
      "at which the smoothed loss is least. Nothing is saved; the model stays as it is.\n"
      "Examples:\n"
      "  steep lr-find mlp.onnx --data digits.npz --loss softmax_cross_entropy --optimizer adamw\n"
      "  steep lr-find model.onnx --data train.npz --loss mse --from 1e-5 --to 1 --steps 200 \\\n"
      "      --plot rates.svg");
  return [choice, &app] {
    check_usage(app, choice->model);
    load_ops(choice->model.ops, choice->model.options.limits);
    check_optimizer_usage(app, choice->model.options.optimizer);
    if (!(choice->from < choice->to)) {
      throw CLI::ValidationError("--to", "expected a rate above that of --from");
    }
    say_when_files_shrink();
    use_threads(choice->model.options.threads);
    if (!choice->plot.empty()) check_destination(choice->plot);
    const Budget budget(choice->model.options.limits);
    choice->model.options.optimizer.lr = choice->from;
    match_trained_columns(&choice->data, choice->model.path, choice->model.options.limits);
    return Search(*choice).go();
  };
}

}  // namespace steep::cli
