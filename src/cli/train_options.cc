#include "cli/train_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <map>
#include <system_error>
#include <utility>

#include "checkpoint/checkpoint.h"
#include "cli/command_line.h"
#include "cli/keep.h"
#include "runtime/disk.h"
#include "steep/error.h"

namespace steep::cli {
namespace {

void add_optimizer_options(CLI::App& app, ModelChoice& choice) {
  TrainingOptions& o = choice.options;
  add_optimizer_option(app, choice, "How weights are updated");
  app.add_option("--weight-decay", o.optimizer.weight_decay, "Weight decay")
      ->capture_default_str()
      ->transform(real(0));
  app.add_option("--momentum", o.optimizer.momentum, "Momentum (sgd, rmsprop)")
      ->capture_default_str()
      ->transform(real(0));
  app.add_option("--dampening", o.optimizer.dampening, "Dampening (sgd)")
      ->capture_default_str()
      ->transform(real(std::numeric_limits<double>::lowest()));
  app.add_flag("--nesterov", o.optimizer.nesterov, "Nesterov's momentum (sgd)");
  app.add_option("--beta1", o.optimizer.beta1, "Decay of the first moment")
      ->capture_default_str()
      ->transform(real(0, 1));
  app.add_option("--beta2", o.optimizer.beta2, "Decay of the second moment")
      ->capture_default_str()
      ->transform(real(0, 1));
  app.add_option("--epsilon", o.optimizer.epsilon,
                 "Added to the denominator (default: 1e-8; adagrad 1e-10, adadelta 1e-6)")
      ->transform(real(0));
  app.add_option("--momentum-decay", o.optimizer.momentum_decay, "Of the momentum (nadam)")
      ->capture_default_str()
      ->transform(real(0));
  app.add_option("--lr-decay", o.optimizer.lr_decay, "Of the learning rate (adagrad)")
      ->capture_default_str()
      ->transform(real(0));
  app.add_option("--initial-accumulator", o.optimizer.initial_accumulator_value,
                 "Where sums of squares begin (adagrad)")
      ->capture_default_str()
      ->transform(real(0));
  app.add_option("--rho", o.optimizer.rho, "Decay of the averages (adadelta)")
      ->capture_default_str()
      ->transform(real(0, 1));
  app.add_option("--alpha", o.optimizer.alpha, "Decay of the average of squares (rmsprop)")
      ->capture_default_str()
      ->transform(real(0));
  app.add_flag("--centered", o.optimizer.centered, "Divide by the variance (rmsprop)");
  app.add_flag("--amsgrad", o.optimizer.amsgrad,
               "Divide by the greatest second moment so far (adam, adamw)");
  app.add_flag("--decoupled-weight-decay", o.optimizer.decoupled_weight_decay,
               "Shrink weights, not gradients (adam, nadam, radam)");
  app.add_flag("--maximize", o.optimizer.maximize, "Go up");
  app.add_option("--clip-norm", o.clip_norm, "Bound on the gradients' global norm")
      ->transform(real(0));
  app.add_flag("--grad-norm", o.grad_norm, "Record the gradients' global norm");
  app.add_option("--schedule", o.schedule.kind, "constant, linear or cosine")
      ->capture_default_str()
      ->check(CLI::IsMember({"constant", "linear", "cosine"}));
  app.add_option("--warmup-steps", o.schedule.warmup_steps, "Steps of linear warm-up")
      ->transform(whole(0));
  app.add_option("--total-steps", o.schedule.total_steps,
                 "Length of the schedule (default: the run)")
      ->transform(whole(1));
  app.add_option("--min-lr-ratio", o.schedule.min_lr_ratio, "Final learning rate / --lr")
      ->transform(real(0, 1));
  app.add_option("--precision", o.precision,
                 "fp32, or bf16 or fp16: matrix products in 16 bits, weights in float32")
      ->capture_default_str()
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}));
  app.add_option("--loss-scale", o.loss_scale.initial, "Initial loss scale (fp16)")
      ->capture_default_str()
      ->transform(real(1, o.loss_scale.max));
  app.add_option("--loss-scale-window", o.loss_scale.growth_interval,
                 "Double the loss scale after so many steps without overflow (fp16)")
      ->capture_default_str()
      ->transform(whole(0));
  app.add_option("--seed", o.seed, "Of shuffling and dropout")
      ->capture_default_str()
      ->transform(whole(0, std::numeric_limits<int64_t>::max()));
  app.add_flag("--check-finite", o.check_finite,
               "Stop before a step with NaN or infinite gradients, and after one that leaves such "
               "weights; without it at such a loss only");
  app.add_flag(
      "!--no-master-weights", o.master_weights,
      "Train weights of float16 and bfloat16 without a float32 copy: small updates are lost");
  app.add_flag(
      "--stochastic-rounding", o.stochastic_rounding,
      "With --no-master-weights: round bfloat16 weights at random, to keep small updates on "
      "average");
}

}  // namespace

std::string TrainChoice::interrupted_folder() const {
  if (!checkpoint.empty()) return checkpoint;
  return std::filesystem::path(model.path).stem().string() + ".checkpoint";
}

std::string TrainChoice::failed_folder() const {
  std::filesystem::path folder = interrupted_folder();
  if (!folder.has_filename()) folder = folder.parent_path();
  return folder.string() + ".failed";
}

void add_train_options(CLI::App& app, TrainChoice& choice) {
  add_model_options(app, choice.model);
  add_provider_option(app, choice.model.providers);
  add_data_options(app, choice.data);
  choice.data.limits = &choice.model.options.limits;
  app.add_option("--lr", choice.model.options.optimizer.lr, "Learning rate")
      ->capture_default_str()
      ->transform(real(0));
  add_optimizer_options(app, choice.model);
  app.add_option("--epochs", choice.epochs, "Passes over the data")
      ->capture_default_str()
      ->transform(whole(1));
  app.add_flag("--no-shuffle", choice.no_shuffle, "Keep the order of the rows");
  app.add_flag(
      "--drop-last", choice.drop_last,
      "Leave out a last batch that is not full; of --validation where the model fixes the rows");
  app.add_option("--validation", choice.validation,
                 "Data for a validation loss after each epoch; tried before the first step");
  CLI::Option* checkpoint = app.add_option(
      "--checkpoint", choice.checkpoint,
      "Folder to save to: after each epoch, on Ctrl-C, SIGTERM and SIGHUP, and when\n"
      "standard output is closed. Without it these four save MODEL.checkpoint");
  app.add_option("--checkpoint-every", choice.checkpoint_every, "Also after so many steps")
      ->needs(checkpoint)
      ->transform(whole(1));
  app.add_option("--resume", choice.resume,
                 "Continue from this checkpoint; with as many threads, bit for bit");
  CLI::Option* out = app.add_option(
      "--out", choice.out,
      "Write a copy of the model with the trained weights. Without --out and --checkpoint\n"
      "they are not kept, which is then said before and after training");
  app.add_flag("--for-inference", choice.for_inference,
               "Write it for running: batch normalisations folded into weights, no dropout")
      ->needs(out);
  app.add_flag("--external-data", choice.external_data,
               "Write its tensors beside it, in OUT.data; without, that is done for a model of\n"
               "more than 2 GiB. Copy both files")
      ->needs(out);
  app.add_option("--metrics", choice.metrics, "Write a CSV with one row a step");
  app.add_option("--profile", choice.profile, "Write a Chrome/Perfetto trace");
  app.footer(
      "Epochs' losses are means over rows, with --ignore-index over the labels that count; a "
      "batch\n"
      "without any is left out. Files, arrays, labels, batches and space are looked at before the\n"
      "first step. What cannot be written where it was to go is written elsewhere, which is said;\n"
      "what was trained when an error ends the run is in CHECKPOINT.failed.\n"
      "Examples:\n"
      "  steep train model.onnx --data train.npz --loss mse --optimizer sgd --lr 0.1 --out "
      "trained.onnx\n"
      "  steep train mlp.onnx --data digits.npz --loss softmax_cross_entropy --label-array y \\\n"
      "      --optimizer adam --epochs 20 --batch 64 --schedule cosine --checkpoint run --out "
      "mlp2.onnx\n"
      "  steep train model.onnx --data tokens.npz --loss softmax_cross_entropy --precision bf16\n"
      "  steep train mlp.onnx --data digits.npz … --resume run");
}

void check_train_usage(const CLI::App& app, TrainChoice& choice) {
  const TrainingOptions& o = choice.model.options;
  check_usage(app, choice.model);
  load_ops(choice.model.ops, o.limits);
  check_optimizer_usage(app, o.optimizer);
  only_with(app, o.schedule.kind != "constant", "--schedule linear or cosine",
            {"--total-steps", "--min-lr-ratio"});
  only_with(app, o.precision == "fp16", "--precision fp16",
            {"--loss-scale", "--loss-scale-window"});
  choice.lr_given = app.count("--lr") > 0;
}

void check_destinations(const TrainChoice& choice) {
  namespace fs = std::filesystem;
  std::map<fs::path, std::string> taken;  // by whom
  auto take = [&](const std::string& name, const fs::path& path) {
    std::error_code error;
    const fs::path real = fs::weakly_canonical(path, error);
    return taken.emplace(error ? path : real, name).first->second;
  };
  take("--data", choice.data.path);
  if (!choice.validation.empty()) take("--validation", choice.validation);
  if (choice.out != choice.model.path) take("the model", choice.model.path);
  const std::pair<std::string, std::string> results[] = {{"--checkpoint", choice.checkpoint},
                                                         {"--out", choice.out},
                                                         {"--metrics", choice.metrics},
                                                         {"--profile", choice.profile}};
  for (const auto& [option, path] : results) {
    if (path.empty()) continue;
    if (option == "--checkpoint") {
      check_checkpoint_destination(path);
    } else {
      check_destination(path);
    }
    const std::string by = take(option, path);
    if (by == option) continue;
    throw IoError(ErrorParts{.what = fmt::format("{} and {} are one file: {}", by, option, path),
                             .remedy = "give each a name of its own"});
  }
}

void check_room(const TrainChoice& choice, const TrainingSession& session) {
  const auto bytes_of = [&](const std::vector<std::string>& names) {
    uint64_t bytes = 0;
    for (const std::string& name : names) bytes += session.state(name).nbytes();
    return bytes;
  };
  const uint64_t weights = bytes_of(session.parameter_names());
  if (!choice.checkpoint.empty()) {
    const uint64_t moments = bytes_of(session.optimizer_state_names());
    need_room("--checkpoint", choice.checkpoint, weights + moments, std::max(weights, moments));
  }
  if (choice.out.empty()) return;
  std::error_code error;
  const uint64_t file = std::filesystem::file_size(choice.model.path, error);
  const uint64_t out = error || choice.for_inference ? weights : std::max(file, weights);
  need_room("--out", choice.out, out, out);
}

}  // namespace steep::cli
