// steep train: an inference model, data, a loss, an optimizer → trained weights.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <csignal>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/metrics.h"
#include "cli/model_options.h"
#include "cli/progress.h"
#include "runtime/disk.h"
#include "steep/error.h"

namespace steep::cli {
namespace {

volatile std::sig_atomic_t interrupted = 0;

/// The first Ctrl-C is seen between two steps; a second one ends the process at once, which
/// checkpoints survive.
void catch_interrupts() {
  struct sigaction action {};
  action.sa_handler = [](int) { interrupted = 1; };
  action.sa_flags = static_cast<int>(SA_RESETHAND) | SA_RESTART;
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
}

struct TrainChoice {
  ModelChoice model;
  DataChoice data;
  std::string validation;
  int64_t epochs = 1;
  bool no_shuffle = false;
  bool drop_last = false;
  std::string checkpoint;
  int64_t checkpoint_every = 0;
  std::string resume;
  std::string out;
  bool for_inference = false;
  std::string metrics;
  std::string profile;
  bool lr_given = false;
  std::vector<std::string> command_line;
};

/// Where a run stands; travels in the checkpoint.
struct Position {
  int64_t epoch = 0;
  int64_t batch = 0;  ///< of the next step
  double loss_sum = 0;
  int64_t loss_rows = 0;
};

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
    const int64_t rows = batches_.row_count();
    Progress progress(choice_.epochs * rows,
                      position_.epoch * rows + position_.batch * choice_.data.batch);
    Metrics metrics(choice_.metrics, session_.step_count());
    announce(progress);
    if (position_.epoch < choice_.epochs && position_.batch < batches_.count()) {
      const StepPlan plan = session_.plan(batches_.get(position_.epoch, position_.batch));
      progress.line("step planned: " + plan.text());
    }
    catch_interrupts();
    if (!choice_.profile.empty()) session_.start_profile();

    for (; position_.epoch < choice_.epochs; next_epoch()) {
      for (; position_.batch < batches_.count(); ++position_.batch) {
        if (interrupted) return stop(progress);
        one_step(progress, metrics);
      }
      progress.line(epoch_summary(progress));
      if (!choice_.checkpoint.empty() && position_.epoch + 1 < choice_.epochs) save_after_epoch();
    }
    finish(progress);
    return kDone;
  }

 private:
  TrainingSession open() const {
    TrainingOptions options = training_options(choice_.model);
    if (options.schedule.kind != "constant" && options.schedule.total_steps == 0) {
      // The whole run. The data is read twice for this, once for its size; files are small beside
      // training.
      const auto arrays = load_arrays(choice_.data.path);
      int64_t rows = 0;
      for (const auto& [name, array] : arrays) {
        if (!array.dims().empty()) rows = std::max(rows, array.dims()[0]);
      }
      const int64_t batch = choice_.data.batch;
      const int64_t steps = choice_.drop_last ? rows / batch : (rows + batch - 1) / batch;
      options.schedule.total_steps =
          std::max(steps * choice_.epochs, options.schedule.warmup_steps + 1);
    }
    return TrainingSession(choice_.model.path, options);
  }

  BatchOptions batch_options() const {
    return {.batch_size = choice_.data.batch,
            .shuffle = !choice_.no_shuffle,
            .drop_last = choice_.drop_last,
            .seed = choice_.model.options.seed};
  }

  /// What must not change between a run and its resumption.
  nlohmann::json setting() const {
    return {{"rows", batches_.row_count()},
            {"batch", choice_.data.batch},
            {"seed", choice_.model.options.seed},
            {"shuffle", !choice_.no_shuffle},
            {"drop_last", choice_.drop_last}};
  }

  void resume() {
    const auto user =
        nlohmann::json::parse(session_.load_checkpoint(choice_.resume), nullptr, false);
    const auto run = user.is_object() ? user.find("run") : user.end();
    if (run == user.end() || !run->is_object() || !run->contains("setting")) {
      throw CheckpointError(ErrorParts{.what = choice_.resume + " was not written by `steep train`",
                                       .remedy = "resume from a checkpoint of `steep train`"});
    }
    if ((*run)["setting"] != setting()) {
      throw CheckpointError(ErrorParts{.what = "the run that is resumed had other data or batches",
                                       .node = choice_.resume,
                                       .expected = (*run)["setting"].dump(),
                                       .received = setting().dump(),
                                       .remedy = "give the same data, --batch and --seed"});
    }
    position_ = {run->value("epoch", int64_t{0}), run->value("next_batch", int64_t{0}),
                 run->value("loss_sum", 0.0), run->value("loss_rows", int64_t{0})};
    if (position_.epoch < 0 || position_.batch < 0) {
      throw CheckpointError(
          ErrorParts{.what = "the position of the run is damaged", .node = choice_.resume});
    }
    if (choice_.lr_given) session_.set_lr(choice_.model.options.optimizer.lr);
  }

  void save(const std::string& folder) {
    const nlohmann::json user{{"run",
                               {{"setting", setting()},
                                {"epoch", position_.epoch},
                                {"next_batch", position_.batch},
                                {"loss_sum", position_.loss_sum},
                                {"loss_rows", position_.loss_rows}}}};
    session_.save_checkpoint(folder, user.dump());
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
    if (!choice_.resume.empty()) {
      progress.line(fmt::format("resumed {} after step {}", choice_.resume, session_.step_count()));
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
    std::string folder = choice_.checkpoint;
    if (folder.empty()) {
      folder = std::filesystem::path(choice_.model.path).stem().string() + ".checkpoint";
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
  }

  const TrainChoice& choice_;
  TrainingSession session_;
  std::vector<TensorInfo> inputs_;
  Batches batches_;
  std::unique_ptr<Batches> validation_;
  Position position_;
};

void add_optimizer_options(CLI::App& app, TrainingOptions& o) {
  app.add_option("--optimizer", o.optimizer.kind, "sgd, adam, adamw or lamb")
      ->capture_default_str()
      ->check(CLI::IsMember({"sgd", "adam", "adamw", "lamb"}));
  app.add_option("--weight-decay", o.optimizer.weight_decay, "Weight decay")->capture_default_str();
  app.add_option("--momentum", o.optimizer.momentum, "Momentum (sgd)")->capture_default_str();
  app.add_option("--dampening", o.optimizer.dampening, "Dampening (sgd)")->capture_default_str();
  app.add_flag("--nesterov", o.optimizer.nesterov, "Nesterov's momentum (sgd)");
  app.add_option("--beta1", o.optimizer.beta1, "Decay of the first moment")->capture_default_str();
  app.add_option("--beta2", o.optimizer.beta2, "Decay of the second moment")->capture_default_str();
  app.add_option("--epsilon", o.optimizer.epsilon, "Added to the denominator")
      ->capture_default_str();
  app.add_option("--clip-norm", o.clip_norm, "Bound on the gradients' global norm");
  app.add_flag("--grad-norm", o.grad_norm, "Record the gradients' global norm");
  app.add_option("--schedule", o.schedule.kind, "constant, linear or cosine")
      ->capture_default_str()
      ->check(CLI::IsMember({"constant", "linear", "cosine"}));
  app.add_option("--warmup-steps", o.schedule.warmup_steps, "Steps of linear warm-up");
  app.add_option("--total-steps", o.schedule.total_steps,
                 "Length of the schedule (default: the run)");
  app.add_option("--min-lr-ratio", o.schedule.min_lr_ratio, "Final learning rate / --lr");
  app.add_option("--precision", o.precision,
                 "fp32, or bf16 or fp16: matrix products in 16 bits, weights in float32")
      ->capture_default_str()
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}));
  app.add_option("--loss-scale", o.loss_scale.initial, "Initial loss scale (fp16)")
      ->capture_default_str();
  app.add_option("--loss-scale-window", o.loss_scale.growth_interval,
                 "Double the loss scale after so many steps without overflow (fp16)")
      ->capture_default_str();
  app.add_option("--seed", o.seed, "Of shuffling and dropout")->capture_default_str();
  app.add_flag("--check-finite", o.check_finite,
               "Stop before a step with NaN or infinite gradients, not only such a loss");
}

}  // namespace

Command add_train(CLI::App& parent, std::vector<std::string> command_line) {
  auto choice = std::make_shared<TrainChoice>();
  choice->command_line = std::move(command_line);
  CLI::App& app = *parent.add_subcommand("train", "Train a model's initializers");
  add_model_options(app, choice->model);
  add_data_options(app, choice->data);
  CLI::Option* lr = app.add_option("--lr", choice->model.options.optimizer.lr, "Learning rate")
                        ->capture_default_str();
  add_optimizer_options(app, choice->model.options);
  app.add_option("--epochs", choice->epochs, "Passes over the data")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_flag("--no-shuffle", choice->no_shuffle, "Keep the order of the rows");
  app.add_flag("--drop-last", choice->drop_last, "Leave out a last batch that is not full");
  app.add_option("--validation", choice->validation, "Data for a validation loss after each epoch");
  CLI::Option* checkpoint = app.add_option("--checkpoint", choice->checkpoint,
                                           "Folder to save to, after each epoch and on Ctrl-C");
  app.add_option("--checkpoint-every", choice->checkpoint_every, "Also after so many steps")
      ->needs(checkpoint);
  app.add_option("--resume", choice->resume, "Continue from this checkpoint, bit for bit");
  app.add_option("--out", choice->out, "Write a copy of the model with the trained weights");
  app.add_flag("--for-inference", choice->for_inference,
               "Write it for running: batch normalisations folded into weights, no dropout");
  app.add_option("--metrics", choice->metrics, "Write a CSV with one row a step");
  app.add_option("--profile", choice->profile, "Write a Chrome/Perfetto trace");
  app.footer(
      "Examples:\n"
      "  steep train model.onnx --data train.npz --loss mse --optimizer sgd --lr 0.1 --out "
      "trained.onnx\n"
      "  steep train mlp.onnx --data digits.npz --loss softmax_cross_entropy --label-array y \\\n"
      "      --optimizer adam --epochs 20 --batch 64 --schedule cosine --checkpoint run --out "
      "mlp2.onnx\n"
      "  steep train model.onnx --data tokens.npz --loss softmax_cross_entropy --precision bf16\n"
      "  steep train mlp.onnx --data digits.npz … --resume run");
  return [choice, lr] {
    choice->lr_given = lr->count() > 0;
    return Run(*choice).go();
  };
}

}  // namespace steep::cli
