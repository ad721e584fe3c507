// The options of `steep train`.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "cli/data.h"
#include "cli/model_options.h"

namespace steep::cli {

struct TrainChoice {
  ModelChoice model;
  DataChoice data;
  std::vector<std::string> validation;
  double validation_split = 0;
  int64_t early_stopping = 0;
  std::vector<std::string> scores;  ///< --metric
  std::vector<std::string> rates;   ///< "PATTERN=X"
  int64_t accumulate = 1;
  bool json = false;
  int64_t threads = 0;
  int64_t epochs = 1;
  bool no_shuffle = false;
  bool drop_last = false;
  std::string checkpoint;
  int64_t checkpoint_every = 0;
  std::string resume;
  std::string out;
  bool for_inference = false;
  bool external_data = false;
  std::string metrics;
  std::string tensorboard;
  std::string profile;
  bool lr_given = false;
  std::vector<std::string> command_line;

  bool validates() const { return !validation.empty() || validation_split > 0; }
  bool keeps_weights() const { return !out.empty() || !checkpoint.empty(); }
  /// Where an interrupted run is saved.
  std::string interrupted_folder() const;
  /// Where one that an error ended is: beside, as what it reached may be what went wrong.
  std::string failed_folder() const;
  /// Of the best epoch, with --early-stopping: beside `checkpoint`.
  std::string best_folder(const std::string& checkpoint) const;
};

/// model.options with --rate. Throws DataError.
TrainingOptions options_of(const TrainChoice& choice);

void add_train_options(CLI::App& app, TrainChoice& choice);

/// After parsing: what the options say of each other. Throws CLI::Error.
void check_train_usage(const CLI::App& app, TrainChoice& choice);

/// What can be known before anything is read: whether the results can be written where they are to
/// go. Throws IoError; leaves nothing behind.
void check_destinations(const TrainChoice& choice);

/// Whether there is room for them, which the session tells. Throws IoError.
void check_room(const TrainChoice& choice, const TrainingSession& session);

}  // namespace steep::cli
