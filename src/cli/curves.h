// What a run writes about each step: --metrics and --tensorboard.
#pragma once

#include <memory>
#include <string>

#include "cli/keep.h"
#include "cli/progress.h"
#include "curves/event_file.h"
#include "curves/step_table.h"
#include "steep/steep.h"

namespace steep::cli {

/// A file that cannot be written any more ends early, with a note.
class Curves {
 public:
  /// `metrics`, `tensorboard`: the file and the folder; "": none. `step`: those done before. Throws
  /// IoError.
  Curves(const std::string& metrics, const std::string& tensorboard, int64_t step, Keeper& keeper);

  void add_row(const StepResult& result, int64_t epoch, Progress& progress);
  /// Values for TensorBoard.
  void add_values(int64_t step, const Fields& values, Progress& progress);

 private:
  Keeper& keeper_;
  std::unique_ptr<StepTable> metrics_;
  std::unique_ptr<EventFile> events_;
};

}  // namespace steep::cli
