// The position of a run of `steep train`, which checkpoints store in their user data.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cli/data.h"

namespace steep::cli {

/// The settings that must not change when a run is resumed.
struct ResumeSettings {
  int64_t rows = 0;
  int64_t batch = 0;
  uint64_t seed = 0;
  bool shuffle = true;
  bool drop_last = false;
  int64_t accumulate = 1;
  std::vector<uint32_t> data{};  ///< checksums_of_rows(), of which half may change
};

/// Checksums of at most 64 rows, evenly spaced, each in the dtype of its input. They tell apart
/// other data, and files in another order; if a row was corrected, the others stay. Throws as
/// FeedBatches::get() does.
std::vector<uint32_t> checksums_of_rows(const Feed& feed, std::span<const TensorInfo> inputs);

struct Position {
  int64_t epoch = 0;
  int64_t batch = 0;  ///< index of the next batch
  double loss_sum = 0;
  int64_t loss_rows = 0;         ///< number of rows, or of labels that count, in loss_sum
  std::optional<double> best{};  ///< the least validation loss so far, with --early-stopping
  int64_t best_epoch = 0;        ///< its epoch, counted from 1; or how many came before the search
  /// Begins to look for the best epoch.
  void seek_best() {
    best.reset();
    best_epoch = epoch;
  }
};

/// JSON.
std::string to_text(const ResumeSettings& setting, const Position& position);

/// Parses the user data of the checkpoint in `folder`. *warning says how many rows of data are
/// others than the run had, if some are. Throws CheckpointError if `steep train` did not write it,
/// if it is damaged, or if it belongs to another setting.
Position position_from(const std::string& user, const std::string& folder,
                       const ResumeSettings& setting, int64_t batches, std::string* warning);

}  // namespace steep::cli
