// The event files that TensorBoard reads: records of TensorFlow's TFRecord format, each an Event
// message with scalars.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>

namespace steep::cli {

class Events {
 public:
  /// A new file in `folder`, which is made; does nothing when that is empty. In a resumed run
  /// (`step` > 0) TensorBoard drops what other files of the folder have of later steps. Throws
  /// IoError.
  Events(const std::string& folder, int64_t step);
  /// The value of `tag` after a step; one that is not finite, too. Throws IoError.
  void add(std::string_view tag, int64_t step, double value);

 private:
  void write(const std::string& event);

  std::string path_;
  std::ofstream file_;
};

}  // namespace steep::cli
