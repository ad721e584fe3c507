// Where a run of `steep train` stands; travels in the checkpoint's user data.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace steep::cli {

/// What must not change between a run and its resumption.
struct Setting {
  int64_t rows = 0;
  int64_t batch = 0;
  uint64_t seed = 0;
  bool shuffle = true;
  bool drop_last = false;
  int64_t accumulate = 1;
  bool operator==(const Setting&) const = default;
};

struct Position {
  int64_t epoch = 0;
  int64_t batch = 0;  ///< of the next step
  double loss_sum = 0;
  int64_t loss_rows = 0;         ///< what loss_sum is a sum over: rows, or labels that count
  std::optional<double> best{};  ///< the least validation loss so far, with --early-stopping
  int64_t best_epoch = 0;        ///< of that, counted from 1
};

/// JSON.
std::string to_text(const Setting& setting, const Position& position);

/// From the user data of the checkpoint in `folder`. Throws CheckpointError: not written by `steep
/// train`, damaged, of another setting.
Position position_from(const std::string& user, const std::string& folder, const Setting& setting,
                       int64_t batches);

}  // namespace steep::cli
