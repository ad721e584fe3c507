#include "cli/train_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <system_error>
#include <utility>

#include "checkpoint/checkpoint.h"
#include "cli/command_line.h"
#include "cli/keep.h"
#include "cli/option_flags.h"
#include "cli/scores.h"
#include "cli/team.h"
#include "data/block_float.h"
#include "runtime/disk.h"
#include "runtime/shell_word.h"
#include "steep/error.h"

namespace steep::cli {
namespace {

void add_step_options(CLI::App& app, ModelChoice& choice) {
  TrainingOptions& o = choice.options;
  add_optimizer_option(app, choice, "How weights are updated");
  visit_optimizer_options(
      [&](const OptionRow& row, auto member) { add_flag_of(app, row, o.optimizer.*member); });
  visit_schedule_options(
      [&](const OptionRow& row, auto member) { add_flag_of(app, row, o.schedule.*member); });
  visit_loss_scale_options(
      [&](const OptionRow& row, auto member) { add_flag_of(app, row, o.loss_scale.*member); });
  visit_step_options([&](const OptionRow& row, auto member) {
    if (row.key != kDisabledPasses) add_flag_of(app, row, o.*member);
  });
}

void add_validation_options(CLI::App& app, TrainArguments& choice) {
  CLI::Option* file =
      app.add_option("--validation", choice.validation,
                     "Data for a validation loss after each epoch; tested before the first step");
  app.add_option("--validation-split", choice.validation_split,
                 "Part of the rows of --data, as in 0.1, to validate on instead of training on "
                 "them:\ndrawn by --seed; the last ones with --no-shuffle")
      ->excludes(file)
      ->transform(real(0, 1));
  app.add_option("--early-stopping", choice.early_stopping,
                 "Stop after so many epochs without a smaller validation loss; --out gets the\n"
                 "weights of the best epoch, and CHECKPOINT.best is that epoch's checkpoint")
      ->transform(whole(1));
  add_metric_option(app, choice.scores, "on the validation data");
}

}  // namespace

std::string TrainArguments::resume_command(const std::string& folder, int processes) const {
  std::string text = parallel == "gloo"  ? fmt::format("steep launch -n {} ", processes)
                     : parallel == "mpi" ? fmt::format("mpirun -n {} steep ", processes)
                                         : shell_word(command_line[0]) + " ";
  for (size_t i = 1; i < command_line.size(); ++i) {
    const std::string& word = command_line[i];
    if (word.rfind("--resume=", 0) == 0) continue;
    if (word == "--resume") {
      ++i;
    } else {
      text += shell_word(word) + " ";
    }
  }
  return text + "--resume " + shell_word(folder);
}

std::string TrainArguments::interrupted_folder() const {
  if (!checkpoint.empty()) return checkpoint;
  return std::filesystem::path(model.path).stem().string() + ".checkpoint";
}

namespace {

std::string beside(std::filesystem::path folder, const char* ending) {
  if (!folder.has_filename()) folder = folder.parent_path();
  return folder.string() + ending;
}

}  // namespace

std::string TrainArguments::failed_folder() const {
  return beside(interrupted_folder(), ".failed");
}

std::string TrainArguments::best_folder(const std::string& of) const { return beside(of, ".best"); }

TrainingOptions options_of(const TrainArguments& choice) {
  TrainingOptions options = training_options(choice.model);
  for (const std::string& text : choice.rates) {
    const size_t at = text.rfind('=');
    double rate = 0;
    const char* end = text.data() + text.size();
    const char* number = at == std::string::npos ? end : text.data() + at + 1;
    const auto [stop, error] = std::from_chars(number, end, rate);
    if (at == 0 || error != std::errc{} || stop != end || !(rate >= 0) || std::isinf(rate)) {
      throw DataError(ErrorParts{.what = "--rate cannot be read.",
                                 .expected = "PATTERN=X, a pattern of names and a learning rate, "
                                             "as in 'encoder.*=1e-5'",
                                 .received = text});
    }
    if (options.optimizer.lr == 0) {
      throw DataError(ErrorParts{
          .what = "--rate needs an --lr that is not 0.",
          .expected = "a learning rate other than 0: each --rate is stored as a multiple of --lr",
          .received = "--lr 0"});
    }
    options.groups.push_back(
        {.names = {text.substr(0, at)}, .lr_multiplier = rate / options.optimizer.lr});
  }
  return options;
}

void add_train_options(CLI::App& app, TrainArguments& choice) {
  add_model_options(app, choice.model);
  add_provider_option(app, choice.model.providers);
  add_pass_option(app, choice.model.options.disabled_passes);
  add_data_options(app, choice.data);
  choice.data.limits = &choice.model.options.limits;
  choice.data.loss = &choice.model.options.loss;
  add_step_options(app, choice.model);
  app.add_option("--rate", choice.rates,
                 "PATTERN=X: the learning rate of the weights that a pattern matches, as in\n"
                 "'encoder.*=1e-5'; --schedule holds for it, too")
      ->allow_extra_args(false)
      ->take_all();
  app.add_option("--accumulate", choice.accumulate,
                 "Batches a step: weights change by the mean of their gradients")
      ->capture_default_str()
      ->transform(whole(1));
  app.add_option("--epochs", choice.epochs, "Passes over the data")
      ->capture_default_str()
      ->transform(whole(1));
  app.add_flag("--no-shuffle", choice.no_shuffle, "Keep the order of the rows");
  app.add_flag(
      "--drop-last", choice.drop_last,
      "Leave out a last batch that is not full; also of --validation, if the model fixes the rows");
  add_validation_options(app, choice);
  CLI::Option* checkpoint = app.add_option(
      "--checkpoint", choice.checkpoint,
      "Folder to save to: after each epoch, on Ctrl-C, SIGTERM and SIGHUP, and when\n"
      "standard output is closed. Without it, the last four save to MODEL.checkpoint");
  app.add_option("--checkpoint-every", choice.checkpoint_every,
                 "Also save after this number of steps")
      ->needs(checkpoint)
      ->transform(whole(1));
  app.add_option("--resume", choice.resume,
                 "Continue from this checkpoint: with the same number of threads, bit for bit");
  CLI::Option* out = app.add_option(
      "--out", choice.out,
      "Write a copy of the model with the trained weights. Without --out and --checkpoint\n"
      "the weights are lost; a warning says so before and after training");
  app.add_flag("--for-inference", choice.for_inference,
               "Write it for inference: batch normalisations folded into weights, no dropout")
      ->needs(out);
  app.add_flag("--external-data", choice.external_data,
               "Write the tensors to OUT.data beside it, as is always done for a model of more\n"
               "than 2 GiB. Copy both files")
      ->needs(out);
  app.add_flag(
         "--lora-apart", choice.lora_apart,
         "With --lora: leave the weights as they are, and write the adapters as initializers\n"
         "beside them, instead of merging them. Weights in int8 or int4 always stay")
      ->needs(out);
  app.add_flag("--json", choice.json,
               "Print each report as a line of JSON: {\"report\": \"epoch\", \"loss\": …}");
  add_parallel_options(app, choice.parallel, choice.zero, choice.full_checkpoints,
                       choice.wire_precision);
  app.add_option("--metrics", choice.metrics, "Write a CSV file with one row for each step");
  app.add_option("--tensorboard", choice.tensorboard,
                 "Write losses, rates and metrics for TensorBoard into this folder");
  app.add_option("--profile", choice.profile, "Write a Chrome/Perfetto trace");
  app.footer(
      "The loss of an epoch is the mean over rows, or with --ignore-index over the labels that "
      "count; a\n"
      "batch without such labels is left out. Before the first step, files, arrays, labels, "
      "batches and\n"
      "disk space are checked. If a file cannot be written to its place, it is written elsewhere "
      "and the\n"
      "program prints where. If an error ends the run, CHECKPOINT.failed has the weights trained "
      "so far.\n"
      "Examples:\n"
      "  steep train model.onnx --data train.npz --loss mse --optimizer sgd --lr 0.1 --out "
      "trained.onnx\n"
      "  steep train mlp.onnx --data digits.npz --loss softmax_cross_entropy --label-array y \\\n"
      "      --optimizer adam --epochs 20 --batch 64 --schedule cosine --checkpoint run --out "
      "mlp2.onnx\n"
      "  steep train model.onnx --data tokens.npz --loss softmax_cross_entropy --precision bf16\n"
      "  steep train mlp.onnx --data digits.npz … --resume run\n"
      "  steep train mlp.onnx --data digits.npz … --metrics metrics.csv --tensorboard runs/mlp\n"
      "  steep train mlp.onnx --data digits.npz --loss softmax_cross_entropy --label-smoothing 0.1 "
      "\\\n"
      "      --validation-split 0.1 --early-stopping 3 --metric accuracy,top2 --out mlp2.onnx\n"
      "  steep train network.onnx --data train.npz --loss mse --lora 2 --targets 'encoder.*' \\\n"
      "      --out adapted.onnx\n"
      "  steep train photos.onnx --data photos --loss softmax_cross_entropy --image-mean 0.5 \\\n"
      "      --image-std 0.25 --validation-split 0.2 --metric accuracy --out photos2.onnx\n"
      "  steep train network.onnx --data train.npz --loss huber --freeze 'encoder.*' \\\n"
      "      --rate 'head.*=0.01' --accumulate 4 --clip-value 1 --ema 0.999 --out trained.onnx");
}

void check_train_usage(const CLI::App& app, TrainArguments& choice) {
  const TrainingOptions& o = choice.model.options;
  check_usage(app, choice.model);
  load_ops(choice.model.ops, o.limits);
  check_optimizer_usage(app, o.optimizer);
  only_with(app, o.schedule.kind != "constant", "--schedule linear or cosine",
            {"--total-steps", "--min-lr-ratio"});
  only_with(app, o.precision == "fp16", "--precision fp16",
            {"--loss-scale", "--loss-scale-window"});
  only_with(app, choice.validates(), "--validation or --validation-split",
            {"--early-stopping", "--metric"});
  only_with(app, o.lora_rank > 0, "--lora", {"--lora-apart"});
  choice.lr_given = app.count("--lr") > 0;
}

void check_destinations(const TrainArguments& choice) {
  namespace fs = std::filesystem;
  std::map<fs::path, std::string> destinations;  // destination → the option that uses it
  auto take = [&](const std::string& name, const fs::path& path) {
    std::error_code error;
    const fs::path real = fs::weakly_canonical(path, error);
    return destinations.emplace(error ? path : real, name).first->second;
  };
  for (const std::string& path : choice.data.paths) take("--data", path);
  for (const std::string& path : choice.validation) take("--validation", path);
  if (choice.out != choice.model.path) take("the model", choice.model.path);
  const std::pair<std::string, std::string> results[] = {{"--checkpoint", choice.checkpoint},
                                                         {"--out", choice.out},
                                                         {"--metrics", choice.metrics},
                                                         {"--tensorboard", choice.tensorboard},
                                                         {"--profile", choice.profile}};
  for (const auto& [option, path] : results) {
    if (path.empty()) continue;
    if (option == "--checkpoint") {
      check_checkpoint_destination(path);
    } else if (option != "--tensorboard") {  // skipped: a folder, in which Events makes a new file
      check_destination(path);
    }
    const std::string by = take(option, path);
    if (by == option) continue;
    throw IoError(
        ErrorParts{.what = fmt::format("{} and {} are the same file: {}.", by, option, path),
                   .remedy = "Give each a name of its own."});
  }
}

void check_room(const TrainArguments& choice, const TrainingSession& session) {
  uint64_t weights = 0, moments = 0;
  for (const std::string& name : session.parameter_names()) {
    weights += session.state(name).nbytes();
    for (const TensorInfo& info : session.states_of(name)) {
      uint64_t bytes = size_of(info.dtype);
      for (const int64_t extent : info.dims) bytes *= static_cast<uint64_t>(extent);
      moments += bytes;
    }
  }
  if (!choice.checkpoint.empty()) {
    need_room("--checkpoint", choice.checkpoint, weights + moments, std::max(weights, moments));
  }
  if (choice.out.empty()) return;
  std::error_code error;
  const uint64_t file = std::filesystem::file_size(choice.model.path, error);
  const uint64_t out = error || choice.for_inference ? weights : std::max(file, weights);
  need_room("--out", choice.out, out, out);
}

}  // namespace steep::cli
