// The CSV file of a run: step, epoch, loss, learning rate, gradient norm.
#pragma once

#include <fstream>
#include <string>

namespace steep {

class StepTable {
 public:
  /// Does nothing if `path` is empty. A resumed run (`step` > 0) keeps the rows of an earlier file
  /// up to `step`. Throws IoError.
  StepTable(const std::string& path, int64_t step);
  void add(int64_t step, int64_t epoch, double loss, double lr, double grad_norm);

 private:
  std::string path_;
  std::ofstream file_;
};

}  // namespace steep
