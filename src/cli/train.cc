// steep train: an inference model, data, a loss, an optimizer → trained weights.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <memory>

#include "cli/commands.h"
#include "cli/interrupts.h"
#include "cli/metrics.h"
#include "cli/position.h"
#include "cli/progress.h"
#include "cli/train_options.h"
#include "runtime/disk.h"
#include "steep/error.h"
#include "train/names.h"
#include "train/parameters.h"

namespace steep::cli {
namespace {

std::string label_of(const TrainingSession& session) {
  return session.options().loss.empty() ? "" : session.options().label;
}

class Run {
 public:
  explicit Run(const TrainChoice& choice)
      : choice_(choice),
        session_(open()),
        inputs_(session_.input_info()),
        batches_(arrays_for(choice.data, inputs_, label_of(session_)), batch_options()) {}

  int go() {
    if (!choice_.resume.empty()) resume();
    first_step_ = session_.step_count();
    const int64_t rows = batches_.row_count();
    Progress progress(static_cast<double>(choice_.epochs) * static_cast<double>(rows),
                      static_cast<double>(position_.epoch) * static_cast<double>(rows) +
                          static_cast<double>(position_.batch * choice_.data.batch));
    Metrics metrics(choice_.metrics, session_.step_count());
    announce(progress);
    if (position_.epoch < choice_.epochs && position_.batch < batches_.count()) {
      const StepPlan plan = session_.plan(batches_.get(position_.epoch, position_.batch));
      progress.line("step planned: " + plan.text());
    }
    catch_interrupts();
    if (!choice_.profile.empty()) session_.start_profile();

    try {
      if (!run_epochs(progress, metrics)) return stop(progress);
    } catch (const InterruptedError&) {
      return stop(progress);
    }
    finish(progress);
    return kDone;
  }

 private:
  /// False: to be stopped between two steps.
  bool run_epochs(Progress& progress, Metrics& metrics) {
    for (; position_.epoch < choice_.epochs; next_epoch()) {
      for (; position_.batch < batches_.count(); ++position_.batch) {
        if (interrupted() || progress.lost()) return false;
        one_step(progress, metrics);
      }
      progress.line(epoch_summary(progress));
      if (!choice_.checkpoint.empty() && position_.epoch + 1 < choice_.epochs) save_after_epoch();
    }
    return true;
  }

  TrainingSession open() const {
    TrainingOptions options = training_options(choice_.model);
    if (options.schedule.kind != "constant" && options.schedule.total_steps == 0) {
      // The whole run. The data is read twice for this, once for its size; files are small beside
      // training.
      const auto arrays = load_arrays(choice_.data.path, options.limits);
      int64_t rows = 0;
      for (const auto& [name, array] : arrays) {
        if (!array.dims().empty()) rows = std::max(rows, array.dims()[0]);
      }
      const int64_t batch = choice_.data.batch;
      const int64_t steps = choice_.drop_last ? rows / batch : (rows + batch - 1) / batch;
      const double total = static_cast<double>(steps) * static_cast<double>(choice_.epochs);
      options.schedule.total_steps =
          std::max(static_cast<int64_t>(std::min(total, 1e18)), options.schedule.warmup_steps + 1);
    }
    return TrainingSession(choice_.model.path, options);
  }

  BatchOptions batch_options() const {
    return {.batch_size = choice_.data.batch,
            .shuffle = !choice_.no_shuffle,
            .drop_last = choice_.drop_last,
            .seed = choice_.model.options.seed};
  }

  Setting setting() const {
    return {.rows = batches_.row_count(),
            .batch = choice_.data.batch,
            .seed = choice_.model.options.seed,
            .shuffle = !choice_.no_shuffle,
            .drop_last = choice_.drop_last};
  }

  void resume() {
    position_ = position_from(session_.load_checkpoint(choice_.resume), choice_.resume, setting(),
                              batches_.count());
    if (choice_.lr_given) session_.set_lr(choice_.model.options.optimizer.lr);
  }

  void save(const std::string& folder) {
    session_.save_checkpoint(folder, to_text(setting(), position_));
  }

  void save_after_epoch() {
    const Position here = position_;
    next_epoch();
    save(choice_.checkpoint);
    position_ = here;
  }

  void next_epoch() { position_ = {.epoch = position_.epoch + 1}; }

  void announce(Progress& progress) const {
    int64_t count = 0;
    for (const std::string& name : session_.parameter_names()) count += session_.state(name).size();
    progress.line(fmt::format("training {} parameters in {} tensors on {} rows, {} steps an epoch",
                              count, session_.parameter_names().size(), batches_.row_count(),
                              batches_.count()));
    progress.line("trained: " + list_names(session_.parameter_names()));
    for (const std::string& line : describe(session_.left_out())) progress.line(line);
    for (const std::string& text : session_.warnings()) progress.line("warning: " + text);
    if (!choice_.resume.empty()) {
      progress.line(fmt::format("resumed {} after step {}", choice_.resume, session_.step_count()));
      if (position_.epoch >= choice_.epochs) {
        progress.line(fmt::format("nothing is left of --epochs {}", choice_.epochs));
      }
      if (const std::string note = session_.checkpoint_note(); !note.empty()) {
        progress.line("warning: " + note);
      }
    }
    if (!choice_.keeps_weights()) {
      progress.line(
          "the trained weights will not be kept: neither --out nor --checkpoint is given");
    }
  }

  void one_step(Progress& progress, Metrics& metrics) {
    const std::vector<Tensor> batch = batches_.get(position_.epoch, position_.batch);
    const StepResult result = session_.step(batch);
    const int64_t rows = batch[0].dims()[0];
    if (result.skipped) {
      progress.line(fmt::format("skipped a batch: gradients overflowed at loss scale {:g}",
                                result.loss_scale));
      progress.step(rows, fmt::format("loss scale {:g}", session_.loss_scale()));
      return;
    }
    position_.loss_sum += result.loss * static_cast<double>(rows);
    position_.loss_rows += rows;
    metrics.add(result.step, position_.epoch + 1, result.loss, result.lr, result.grad_norm);
    progress.step(rows, fmt::format("epoch {}/{}  step {}/{}  loss {:.6g}  lr {:.3g}",
                                    position_.epoch + 1, choice_.epochs, position_.batch + 1,
                                    batches_.count(), result.loss, result.lr));
    if (choice_.checkpoint_every > 0 && result.step % choice_.checkpoint_every == 0) {
      ++position_.batch;
      save(choice_.checkpoint);
      --position_.batch;
    }
  }

  std::string epoch_summary(const Progress& progress) {
    std::string text = fmt::format(
        "epoch {}/{}  loss {:.6g}", position_.epoch + 1, choice_.epochs,
        position_.loss_sum / static_cast<double>(std::max<int64_t>(position_.loss_rows, 1)));
    if (!choice_.validation.empty()) text += fmt::format("  validation loss {:.6g}", validate());
    return text + fmt::format("  {:.0f} samples/s", progress.samples_per_second());
  }

  double validate() {
    if (!validation_) {
      DataChoice data = choice_.data;
      data.path = choice_.validation;
      BatchOptions options = batch_options();
      options.shuffle = false;
      validation_ =
          std::make_unique<Batches>(arrays_for(data, inputs_, label_of(session_)), options);
    }
    double sum = 0;
    int64_t rows = 0;
    for (int64_t i = 0; i < validation_->count(); ++i) {
      const std::vector<Tensor> batch = validation_->get(0, i);
      sum += session_.eval(batch).loss.value_or(0) * static_cast<double>(batch[0].dims()[0]);
      rows += batch[0].dims()[0];
    }
    return sum / static_cast<double>(rows);
  }

  int stop(Progress& progress) {
    const std::string folder = choice_.interrupted_folder();
    if (session_.step_count() == first_step_ && std::filesystem::exists(folder)) {
      progress.line("stopped before the first step; " + folder + " stays as it was");
      return kInterrupted;
    }
    save(folder);
    std::vector<std::string> again;
    for (size_t i = 0; i < choice_.command_line.size(); ++i) {
      const std::string& word = choice_.command_line[i];
      if (word.rfind("--resume=", 0) == 0) continue;
      if (word == "--resume") {
        ++i;
      } else {
        again.push_back(word.find(' ') == std::string::npos ? word : "'" + word + "'");
      }
    }
    progress.line(
        fmt::format("stopped after step {}; the checkpoint is in {}\nresume with: {} --resume {}",
                    session_.step_count(), folder, fmt::join(again, " "), folder));
    return kInterrupted;
  }

  void finish(Progress& progress) {
    if (!choice_.checkpoint.empty()) {
      save(choice_.checkpoint);
      progress.line("wrote " + choice_.checkpoint);
    }
    if (!choice_.out.empty()) {
      session_.export_onnx(choice_.out, choice_.for_inference);
      progress.line("wrote " + destination_text(choice_.out));
    }
    if (!choice_.profile.empty()) {
      session_.write_profile(choice_.profile);
      progress.line("wrote " + destination_text(choice_.profile));
    }
    if (!choice_.keeps_weights()) {
      progress.line("the trained weights were not kept: neither --out nor --checkpoint was given");
    }
  }

  const TrainChoice& choice_;
  TrainingSession session_;
  std::vector<TensorInfo> inputs_;
  Batches batches_;
  std::unique_ptr<Batches> validation_;
  Position position_;
  int64_t first_step_ = 0;  ///< the session's count before this run
};

}  // namespace

Command add_train(CLI::App& parent, std::vector<std::string> command_line) {
  auto choice = std::make_shared<TrainChoice>();
  choice->command_line = std::move(command_line);
  CLI::App& app = *parent.add_subcommand("train", "Train a model's initializers");
  add_train_options(app, *choice);
  return [choice, &app] {
    check_train_usage(app, *choice);
    check_destinations(*choice);
    outlive_closed_pipes();
    return Run(*choice).go();
  };
}

}  // namespace steep::cli
