// The options of `steep train`.
#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "cli/data.h"
#include "cli/model_options.h"
#include "steep/export.h"

namespace steep::cli {

struct TrainArguments {
  ModelChoice model;
  DataArguments data;
  std::vector<std::string> validation;
  double validation_split = 0;
  int64_t early_stopping = 0;
  std::vector<std::string> scores;  ///< --metric
  std::vector<std::string> rates;   ///< "PATTERN=X"
  int64_t accumulate = 1;
  bool json = false;
  std::string parallel;  ///< "", "gloo" or "mpi"
  int64_t zero = 0;  ///< 1: the optimizer's states are divided among the processes; 2: gradients
  bool full_checkpoints = false;           ///< with zero: written by rank 0 alone
  std::string wire_precision = "float32";  ///< or "bfloat16": of gradients between processes
  int64_t epochs = 1;
  bool no_shuffle = false;
  bool drop_last = false;
  std::string checkpoint;
  int64_t checkpoint_every = 0;
  std::string resume;
  std::string out;
  bool for_inference = false;
  bool external_data = false;
  bool lora_apart = false;
  std::string metrics;
  std::string tensorboard;
  std::string profile;
  bool lr_given = false;
  std::vector<std::string> command_line;

  bool validates() const { return !validation.empty() || validation_split > 0; }
  bool keeps_weights() const { return !out.empty() || !checkpoint.empty(); }
  /// How the trained model is written.
  ExportOptions exported(std::map<std::string, std::string> metadata) const {
    return {.for_inference = for_inference,
            .external_data = external_data,
            .merge_adapters = !lora_apart,
            .metadata = std::move(metadata)};
  }
  /// The command that continues this run, of so many processes, from a checkpoint.
  std::string resume_command(const std::string& folder, int processes) const;
  /// The folder for the checkpoint of an interrupted run.
  std::string interrupted_folder() const;
  /// The folder for the checkpoint of a run that ended with an error. It is another one, because
  /// its weights may be the cause of the error.
  std::string failed_folder() const;
  /// The folder for the best epoch, with --early-stopping: beside `checkpoint`.
  std::string best_folder(const std::string& checkpoint) const;
};

/// model.options with --rate. Throws DataError.
TrainingOptions options_of(const TrainArguments& choice);

void add_train_options(CLI::App& app, TrainArguments& choice);

/// To be called after parsing: checks options against each other. Throws CLI::Error.
void check_train_usage(const CLI::App& app, TrainArguments& choice);

/// Checks what is known before any file is read: whether results can be written to their
/// destinations. Throws IoError. Leaves no files.
void check_destinations(const TrainArguments& choice);

/// Checks that there is enough disk space for the results, whose size the session gives. Throws
/// IoError.
void check_room(const TrainArguments& choice, const TrainingSession& session);

}  // namespace steep::cli
