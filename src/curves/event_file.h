// The event files that TensorBoard reads: records of TensorFlow's TFRecord format, each an Event
// message with scalars.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>

namespace steep {

class EventFile {
 public:
  /// Makes a new file in `folder`, and the folder if needed. Does nothing if `folder` is empty. In
  /// a resumed run (`step` > 0) TensorBoard drops the later steps that other files in the folder
  /// have. Throws IoError.
  EventFile(const std::string& folder, int64_t step);
  /// Writes the value of `tag` after a step; it need not be finite. Throws IoError.
  void add(std::string_view tag, int64_t step, double value);

 private:
  void write(const std::string& event);

  std::string path_;
  std::ofstream file_;
};

}  // namespace steep
