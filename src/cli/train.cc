// steep train: an inference model, data, a loss, an optimizer → trained weights.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <numeric>
#include <optional>

#include "cli/best_epoch.h"
#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/curves.h"
#include "cli/data.h"
#include "cli/finite_weights.h"
#include "cli/interrupts.h"
#include "cli/keep.h"
#include "cli/launcher.h"
#include "cli/position.h"
#include "cli/progress.h"
#include "cli/scores.h"
#include "cli/shares.h"
#include "cli/team.h"
#include "cli/train_options.h"
#include "cli/trained_columns.h"
#include "runtime/budget.h"
#include "runtime/counted.h"
#include "runtime/disk.h"
#include "steep/error.h"
#include "steep/parallel.h"
#include "train/name_suggestions.h"
#include "train/parameters.h"

namespace steep::cli {
namespace {

class Run {
 public:
  Run(const TrainArguments& choice, const Team& team)
      : choice_(choice),
        team_(team),
        session_(open()),
        weight_(session_),
        feed_(feed_from(choice.data, session_.input_info(), weight_.labels(), true)),
        split_rows_(hold_out()),
        cut_(cut_for(choice.data, feed_, session_.input_info(), choice.drop_last, false,
                     session_.batch_note())),
        data_(checksums_of_rows(feed_, session_.input_info())),
        batches_(feed_, batch_options(), team.rank(), team.size()),
        parallel_(session_, team.peers(), facts(), static_cast<int>(choice.zero),
                  choice.wire_precision),
        scores_(choice.scores, session_, weight_.labels(),
                holds_probabilities(choice.model.path, session_.options(), choice.scores)),
        keeper_(team) {
    if (length_is_open()) set_length();
    if (team_.leads()) check_room(choice_, session_);
    if (choice_.validates()) open_validation();
  }

  int go() {
    if (!choice_.resume.empty()) resume();
    first_step_ = session_.step_count();
    finite_.emplace(session_);
    const int64_t rows = batches_.row_count();
    Progress progress(static_cast<double>(choice_.epochs) * static_cast<double>(rows),
                      static_cast<double>(position_.epoch) * static_cast<double>(rows) +
                          static_cast<double>(position_.batch * cut_.batch),
                      choice_.json, !team_.leads());
    curves_ = std::make_unique<Curves>(if_leading(choice_.metrics), if_leading(choice_.tensorboard),
                                       first_step_, keeper_);
    announce(progress);
    if (position_.epoch < choice_.epochs && position_.batch < batches_.count() && !is_enough()) {
      const bool parts = choice_.accumulate > 1;
      progress.line((parts ? "step planned, without the sums of gradients: " : "step planned: ") +
                    plan_batches());
      if (validation_) team_.of_lead([&] { return try_validation(); });
    }
    catch_interrupts();
    if (!if_leading(choice_.profile).empty()) session_.start_profile();

    try {
      if (!run_epochs(progress)) return stop(progress);
      finish(progress);
    } catch (const InterruptedError&) {
      return stop(progress);
    } catch (const std::exception&) {
      rescue(progress);
      throw;
    }
    return kDone;
  }

  /// Errors of files, which did not end the run; "" if there are none.
  const std::string& trouble() const { return keeper_.trouble(); }

 private:
  /// Returns false if the run has to stop, which happens between two steps only.
  bool run_epochs(Progress& progress) {
    for (; position_.epoch < choice_.epochs; next_epoch()) {
      if (is_enough()) return say_enough(progress);
      progress.begin_epoch();
      for (; position_.batch < batches_.count(); ++position_.batch) {
        if (parallel_.accumulated() == 0) {
          if (team_.any(interrupted() || progress.lost())) return false;
          applied_ = position_;
        }
        one_batch(progress);
      }
      end_epoch(progress);
      if (!choice_.checkpoint.empty() && position_.epoch + 1 < choice_.epochs) {
        save_after_epoch(progress);
      }
    }
    return true;
  }

  bool say_enough(Progress& progress) const {
    progress.line(fmt::format(
        "stopped early: {} without a {}{}",
        counted(position_.epoch - position_.best_epoch, "epoch"), awaited(position_),
        session_.step_count() > first_step_ ? "" : "; raise --early-stopping to train on"));
    return true;
  }

  /// Whether --early-stopping has seen enough epochs without an improvement.
  bool is_enough() const {
    return choice_.early_stopping > 0 &&
           position_.epoch - position_.best_epoch >= choice_.early_stopping;
  }

  bool is_divided() const { return choice_.zero > 0 && !team_.alone(); }

  std::string if_leading(const std::string& path) const { return team_.leads() ? path : ""; }

  /// What must be the same in all processes, beside the session's options.
  std::map<std::string, std::string> facts() const {
    if (team_.alone()) return {};
    require_open_rows(session_.input_info());
    return {{"model", hash_of_file(choice_.model.path)},
            {"data and batches", to_text(setting(), {})},
            {"option epochs", std::to_string(choice_.epochs)},
            {"option early stopping", std::to_string(choice_.early_stopping)},
            {"option checkpoint-every", std::to_string(choice_.checkpoint_every)}};
  }

  std::optional<Feed> hold_out() {
    if (choice_.validation_split == 0) return {};
    return split_off(&feed_, choice_.validation_split, !choice_.no_shuffle,
                     choice_.model.options.seed);
  }

  bool length_is_open() const {
    const ScheduleOptions& schedule = choice_.model.options.schedule;
    return schedule.kind != "constant" && schedule.total_steps == 0;
  }

  TrainingSession open() const {
    TrainingOptions options = options_of(choice_);
    // A placeholder until set_length(): the number of rows is known only after the session is open.
    if (length_is_open()) options.schedule.total_steps = options.schedule.warmup_steps + 1;
    return TrainingSession(choice_.model.path, options);
  }

  /// Sets the schedule's length to that of the whole run.
  void set_length() {
    ScheduleOptions schedule = session_.options().schedule;
    const double total =
        static_cast<double>(steps_an_epoch()) * static_cast<double>(choice_.epochs);
    schedule.total_steps =
        std::max(static_cast<int64_t>(std::min(total, 1e18)), schedule.warmup_steps + 1);
    session_.set_schedule(schedule);
  }

  int64_t steps_an_epoch() const {
    return (batches_.count() + choice_.accumulate - 1) / choice_.accumulate;
  }

  void open_validation() {
    DataArguments data = choice_.data;
    if (!split_rows_) data.paths = choice_.validation;
    data.columns = feed_.columns;
    if (feed_.late.images.set) data.images.classes = feed_.late.images.set->classes;
    const std::vector<TensorInfo>& inputs = session_.input_info();
    const Feed feed = split_rows_ ? *split_rows_ : feed_from(data, inputs, weight_.labels(), true);
    const Cut cut = cut_for(data, feed, inputs, false);
    validation_text_ = feed.text;
    if (!split_rows_ && !feed.warning.empty()) validation_warning_ = "validation: " + feed.warning;
    if (!cut.text.empty()) validation_text_ += "; " + cut.text;
    validation_ = std::make_unique<FeedBatches>(
        feed, BatchOptions{.batch_size = cut.batch, .shuffle = false, .drop_last = cut.drop_last});
  }

  /// Plans for both batch sizes that occur. Returns the text of the plan for the next batch.
  std::string plan_batches() {
    const std::vector<Tensor> batch = batches_.get(position_.epoch, position_.batch);
    if (batch[0].dims()[0] == 0) return "no rows";
    const StepPlan next = session_.plan(batch);
    const int64_t rows = batches_.row_count(), last = rows % cut_.batch;
    if (cut_.drop_last || last == 0 || rows < cut_.batch) return next.text();
    const std::vector<Tensor> short_batch = batches_.sample(last);
    if (short_batch[0].dims()[0] == 0) return next.text();
    try {
      session_.plan(short_batch);
    } catch (const ShapeError& error) {
      ErrorParts parts = error.parts();
      parts.what = fmt::format("The last batch, of {}, does not fit the model: {}",
                               counted(last, "row"), parts.what);
      parts.remedy =
          fmt::format("Leave it out with --drop-last, or give a --batch that divides {}.", rows);
      throw ShapeError(std::move(parts));
    }
    return next.text();
  }

  BatchOptions batch_options() const {
    return {.batch_size = cut_.batch,
            .shuffle = !choice_.no_shuffle,
            .drop_last = cut_.drop_last,
            .seed = choice_.model.options.seed};
  }

  ResumeSettings setting() const {
    return {.rows = batches_.row_count(),
            .batch = cut_.batch,
            .seed = choice_.model.options.seed,
            .shuffle = !choice_.no_shuffle,
            .drop_last = cut_.drop_last,
            .accumulate = choice_.accumulate,
            .data = data_};
  }

  void resume() {
    if (choice_.early_stopping > 0) {
      const std::string best = choice_.best_folder(choice_.resume);
      if (std::filesystem::exists(best)) {
        session_.load_checkpoint(best);
        best_.remember(session_);
      }
    }
    position_ = position_from(session_.load_checkpoint(choice_.resume), choice_.resume, setting(),
                              batches_.count(), &other_rows_);
    if (choice_.lr_given) session_.set_lr(choice_.model.options.optimizer.lr);
    if (best_.empty()) position_.seek_best();  // its weights are not there
  }

  /// Remembers the epoch if it is the best so far.
  void look_at(double loss, Progress& progress) {
    if (position_.best && !(loss < *position_.best)) return;
    if (!std::isfinite(loss)) return;
    position_.best = loss;
    position_.best_epoch = position_.epoch + 1;
    best_.remember(session_);
    if (choice_.checkpoint.empty()) return;
    const Position here = position_;
    next_epoch();
    save(choice_.best_folder(choice_.checkpoint), progress);
    position_ = here;
  }

  /// Sets the weights to those of the best epoch.
  void restore_best(Progress& progress) {
    if (best_.empty() && choice_.early_stopping > 0) progress.line(kNoBest);
    if (best_.empty()) return;
    best_.restore(&session_);
    progress.line(fmt::format("the best epoch was {}, with a validation loss of {:.6g}",
                              position_.best_epoch, position_.best.value_or(0)));
  }

  /// As Keeper::write(). Divided states are written by all processes together.
  std::string save(const std::string& folder, Progress& progress) {
    finite_->require();
    const auto write = [&](const std::filesystem::path& path) {
      parallel_.save_checkpoint(path, to_text(setting(), position_), choice_.full_checkpoints);
    };
    return is_divided() ? keeper_.write_together(folder, progress, write)
                        : keeper_.write(folder, progress, write);
  }

  void save_after_epoch(Progress& progress) {
    const Position here = position_;
    next_epoch();
    save(choice_.checkpoint, progress);
    position_ = here;
  }

  void next_epoch() {
    position_ = {
        .epoch = position_.epoch + 1, .best = position_.best, .best_epoch = position_.best_epoch};
  }

  void announce(Progress& progress) const {
    int64_t count = 0;
    for (const std::string& name : session_.parameter_names()) count += session_.state(name).size();
    progress.line(fmt::format("training {} in {} on {}, {} an epoch", counted(count, "parameter"),
                              counted(session_.parameter_names().size(), "tensor"),
                              counted(batches_.row_count(), "row"),
                              counted(steps_an_epoch(), "step")));
    progress.line(feed_.text);
    if (!team_.alone()) {
      progress.line(fmt::format("{} processes share the {} rows of each batch{}", team_.size(),
                                cut_.batch, is_divided() ? divided_by(choice_.zero) : ""));
    }
    if (validation_) progress.line("validation, " + validation_text_);
    if (const std::string note = session_.batch_note(); !note.empty() || !cut_.text.empty()) {
      progress.line(note.empty() ? cut_.text : note + cut_.left_out_text());
    }
    if (const auto adapted = session_.adapted_names(); !adapted.empty()) {
      progress.line(fmt::format("adapters of rank {}: {}", session_.options().lora_rank,
                                list_names(adapted)));
    }
    const std::string output = output_note(choice_.model.options.output, session_);
    if (!output.empty()) progress.line(output);
    progress.line("trained: " + list_names(session_.parameter_names()));
    for (const std::string& line : describe(session_.left_out())) progress.line(line);
    progress.warning(feed_.warning);
    progress.warning(other_rows_);
    progress.warning(validation_warning_);
    for (const std::string& text : session_.warnings()) progress.warning(text);
    progress.warning(parallel_.warning());
    if (!choice_.resume.empty()) {
      progress.line(fmt::format("resumed {} after step {}", choice_.resume, session_.step_count()));
      if (position_.epoch >= choice_.epochs)
        progress.line(fmt::format("all of --epochs {} are done already", choice_.epochs));
      progress.warning(session_.checkpoint_note());
    }
    if (!choice_.keeps_weights()) {
      progress.line(
          "the trained weights will not be kept: neither --out nor --checkpoint is given");
    }
  }

  /// Runs a step, or with --accumulate a part of one.
  void one_batch(Progress& progress) {
    const std::vector<Tensor> batch = batches_.get(position_.epoch, position_.batch);
    const int64_t rows = batches_.rows_of(position_.batch), weight = weight_of_all(batch);
    const int64_t next = position_.batch + 1;
    const bool last = next == batches_.count() || next % choice_.accumulate == 0;
    std::optional<StepResult> result;
    if (weight == 0) {  // the loss would be 0/0
      ++left_out_;
      progress.step(rows, "no label counts");
    } else {
      result = one_part(batch, weight, rows, progress);
    }
    if (choice_.accumulate > 1) {
      result.reset();
      if (last && parallel_.accumulated() > 0) result = apply_parts(progress);
    }
    if (!result) return;
    curves_->add_row(*result, position_.epoch + 1, progress);
    Fields values{{"loss/step", result->loss}, {"lr", result->lr}};
    if (result->grad_norm != 0) values["grad_norm"] = result->grad_norm;
    curves_->add_values(result->step, values, progress);
    const int64_t step = (next + choice_.accumulate - 1) / choice_.accumulate;
    progress.step(
        rows,
        fmt::format("epoch {}/{}  step {}/{}  loss {:.6g}  lr {:.3g}", position_.epoch + 1,
                    choice_.epochs, step, steps_an_epoch(), result->loss, result->lr),
        {{"epoch", position_.epoch + 1},
         {"step", result->step},
         {"loss", result->loss},
         {"lr", result->lr}});
    if (choice_.checkpoint_every > 0 && result->step % choice_.checkpoint_every == 0) {
      ++position_.batch;
      save(choice_.checkpoint, progress);
      --position_.batch;
    }
  }

  /// The weight of the position's batch in the mean loss, of the rows of all processes; `batch` are
  /// those of this one.
  int64_t weight_of_all(const std::vector<Tensor>& batch) {
    if (team_.alone()) return weight_.of(batch);
    if (!weight_.counts_labels()) return batches_.rows_of(position_.batch);
    return weight_.of_labels(batches_.whole(weight_.at(), position_.epoch, position_.batch));
  }

  /// Nothing if the gradients overflowed, or if no label counts.
  std::optional<StepResult> one_part(const std::vector<Tensor>& batch, int64_t weight, int64_t rows,
                                     Progress& progress) {
    const bool parts = choice_.accumulate > 1, together = !team_.alone();
    const double before = parts && together ? session_.accumulated_gradients().weight : 0;
    std::optional<StepResult> result =
        parts ? parallel_.accumulate(batch, rows) : parallel_.step_if_any(batch);
    if (result && result->skipped) {
      say_skipped(*result, rows, progress);
      return {};
    }
    const bool none = !result || std::isnan(result->loss);
    if (none && !(parts && together)) {  // all classes in the batch have weight 0
      ++left_out_;
      progress.step(rows, "no label counts");
      return {};
    }
    if (parts) {
      part_losses_.add(none ? 0 : result->loss, together ? weight_of_part(batch, before) : 1,
                       weight);
    } else {
      position_.loss_sum += result->loss * static_cast<double>(weight);
      position_.loss_rows += weight;
    }
    return result;
  }

  /// The weight of this process's rows in the mean loss of a part.
  double weight_of_part(const std::vector<Tensor>& batch, double before) {
    const AccumulatedGradients sums = session_.accumulated_gradients();
    return sums.weighs ? sums.weight - before : static_cast<double>(batch[0].dims()[0]);
  }

  std::optional<StepResult> apply_parts(Progress& progress) {
    std::optional<StepResult> result = parallel_.apply_if_any();
    const PartLosses::Sum loss = part_losses_.take(team_);
    if (result && result->skipped) say_skipped(*result, 0, progress);
    if (!result || result->skipped) return {};
    position_.loss_sum += loss.loss;
    position_.loss_rows += loss.counts;
    return result;
  }

  void say_skipped(const StepResult& result, int64_t rows, Progress& progress) const {
    progress.line(
        fmt::format("skipped a batch: gradients overflowed at loss scale {:g}", result.loss_scale));
    progress.step(rows, fmt::format("loss scale {:g}", session_.loss_scale()));
  }

  void end_epoch(Progress& progress) {
    progress.end_steps();
    const double loss =
        position_.loss_sum / static_cast<double>(std::max<int64_t>(position_.loss_rows, 1));
    std::string text =
        fmt::format("epoch {}/{}  loss {:.6g}", position_.epoch + 1, choice_.epochs, loss);
    Fields fields{{"epoch", position_.epoch + 1}, {"step", session_.step_count()}, {"loss", loss}};
    Fields values;
    values["loss/epoch"] = loss;
    if (validation_) {
      std::vector<int64_t> all(static_cast<size_t>(validation_->count()));
      std::iota(all.begin(), all.end(), int64_t{0});
      const double validation_loss = team_.of_lead([&] { return validate(all); });
      text += fmt::format("  validation loss {:.6g}", validation_loss);
      fields["validation_loss"] = validation_loss;
      values["loss/validation"] = validation_loss;
      for (const auto& [name, value] : scores_.values()) {
        text += fmt::format("  {} {:.4f}", name, value);
        fields[name] = value;
        values["validation/" + name] = value;
      }
      if (choice_.early_stopping > 0) look_at(validation_loss, progress);
    }
    if (left_out_ > 0) {
      text += fmt::format("  batches left out, as no label counts: {}", left_out_);
      fields["batches_left_out"] = left_out_;
    }
    left_out_ = 0;
    if (const std::optional<uint64_t> sent = team_.peers()->sent_bytes(); sent && !team_.alone()) {
      text += fmt::format("  sent {}", bytes_text(*sent - sent_));
      fields["sent_bytes"] = *sent - sent_;
      sent_ = *sent;
    }
    curves_->add_values(session_.step_count(), values, progress);
    progress.epoch(text, std::move(fields));
  }

  /// Validates the first and the last batch, whose sizes may differ.
  double try_validation() {
    const double first = validate({0});
    return validation_->count() > 1 ? validate({validation_->count() - 1}) : first;
  }

  double validate(const std::vector<int64_t>& batches) {
    LossMean mean;
    scores_.clear();
    for (const int64_t i : batches) {
      const std::vector<Tensor> batch = validation_->get(0, i);
      const EvalResult result = session_.eval(batch);
      if (scores_.any()) scores_.add(result, batch[weight_.at()]);
      mean.add(result.loss.value_or(0), weight_of(result, batch));
    }
    return mean.value();
  }

  /// If a step in parts is incomplete, goes back to the end of the last complete step.
  void leave_parts() {
    if (parallel_.accumulated() == 0) return;
    parallel_.drop_gradients();
    part_losses_.clear();
    position_ = applied_;
  }

  int stop(Progress& progress) {
    leave_parts();
    std::string folder = choice_.interrupted_folder();
    if (session_.step_count() == first_step_ && std::filesystem::exists(folder)) {
      progress.line("stopped before the first step; " + folder + " stays as it was");
      return kInterrupted;
    }
    folder = save(folder, progress);
    progress.line(fmt::format("stopped after step {}; the checkpoint is in {}\nresume with: {}",
                              session_.step_count(), folder,
                              choice_.resume_command(folder, team_.size())));
    return kInterrupted;
  }

  /// After an error, saves the weights of the steps before it.
  void rescue(Progress& progress) {
    if (session_.step_count() == first_step_) return;
    leave_parts();
    if (is_divided() && !team_.peers()->failed_together()) {
      progress.line("what was trained cannot be kept: other processes have some of its states");
      return;
    }
    try {
      progress.line("what was trained is in " + save(choice_.failed_folder(), progress));
    } catch (const std::exception& error) {
      progress.line(fmt::format("what was trained cannot be kept: {}", error.what()));
    }
  }

  void finish(Progress& progress) {
    if (!choice_.checkpoint.empty()) {
      progress.line("wrote " + save(choice_.checkpoint, progress));
    }
    restore_best(progress);
    if (!choice_.out.empty()) {
      finite_->require();
      const std::string path =
          keeper_.write(choice_.out, progress, [&](const std::filesystem::path& file) {
            session_.export_onnx(file, choice_.exported(columns_metadata(feed_, weight_.labels())));
          });
      progress.line("wrote " + destination_text(path));
    }
    if (!if_leading(choice_.profile).empty()) {
      try {
        session_.write_profile(choice_.profile);
        progress.line("wrote " + destination_text(choice_.profile));
      } catch (const IoError& error) {
        keeper_.note(error.parts().what, progress);
      }
    }
    if (!choice_.keeps_weights()) {
      progress.line("the trained weights were not kept: neither --out nor --checkpoint was given");
    }
  }

  const TrainArguments& choice_;
  const Team& team_;
  TrainingSession session_;
  LossWeight weight_;
  Feed feed_;
  std::optional<Feed> split_rows_;  ///< rows of --validation-split
  Cut cut_;
  const std::vector<uint32_t> data_;  // checksums
  Shares batches_;
  DataParallel parallel_;
  Scores scores_;
  std::unique_ptr<FeedBatches> validation_;
  Keeper keeper_;
  std::unique_ptr<Curves> curves_;
  std::string validation_text_, validation_warning_, other_rows_;  ///< the last two: warnings
  Position position_;
  Position applied_;  ///< the position after the last step
  BestEpoch best_;
  std::optional<FiniteWeights> finite_;  ///< beside those of the file or checkpoint
  int64_t first_step_ = 0;               ///< the session's number of steps before this run
  PartLosses part_losses_;
  uint64_t sent_ = 0;     ///< bytes that rank 0 had sent at the end of the last epoch
  int64_t left_out_ = 0;  ///< batches of this epoch without a label that counts
};

}  // namespace

Command add_train(CLI::App& parent, std::vector<std::string> command_line) {
  auto choice = std::make_shared<TrainArguments>();
  choice->command_line = std::move(command_line);
  CLI::App& app = *parent.add_subcommand("train", "Train a model's initializers");
  add_train_options(app, *choice);
  return [choice, &app] {
    check_train_usage(app, *choice);
    const Team team(choice->parallel);
    if (team.alone()) refuse_several_processes();  // also where MPI has another launcher
    std::unique_ptr<Run> run;
    const int code = team.together([&] {
      if (team.leads()) check_destinations(*choice);
      outlive_failing_writes();
      say_when_files_shrink();
      use_threads(choice->model.options.threads);
      const Budget budget(choice->model.options.limits);  // applies to the data, too
      match_trained_columns(&choice->data, choice->model.path, choice->model.options.limits);
      run = std::make_unique<Run>(*choice, team);
      return run->go();
    });
    if (!run->trouble().empty()) throw IoError(ErrorParts{.what = run->trouble()});
    return code;
  };
}

}  // namespace steep::cli
