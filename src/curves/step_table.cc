#include "curves/step_table.h"

#include <fmt/format.h>

#include <cstdlib>

#include "runtime/disk.h"
#include "steep/error.h"

namespace steep {

StepTable::StepTable(const std::string& path, int64_t step) : path_(path) {
  if (path.empty()) return;
  std::string rows = "step,epoch,loss,lr,grad_norm\n";
  if (step > 0) {
    std::ifstream earlier(path);
    std::string line;
    std::getline(earlier, line);  // the heading
    while (std::getline(earlier, line)) {
      if (std::atoll(line.c_str()) <= step) rows += line + "\n";
    }
  }
  // write_file() replaces the file at once, so that earlier rows are never lost.
  write_file(path, [&](FileWriter& file) { file.write(rows); });
  file_.open(path, std::ios::app);
  if (!file_) throw IoError(ErrorParts{.what = "Cannot write " + path + "."});
}

void StepTable::add(int64_t step, int64_t epoch, double loss, double lr, double grad_norm) {
  if (path_.empty()) return;
  file_ << fmt::format("{},{},{},{},{}\n", step, epoch, loss, lr, grad_norm) << std::flush;
  if (!file_) throw IoError(ErrorParts{.what = "Cannot write " + path_ + "."});
}

}  // namespace steep
