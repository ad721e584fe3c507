// What a stage of the compiler took and left.
#pragma once

#include <cstddef>
#include <string>

namespace steep {

/// One stage of one compilation, and how many nodes the graph had after it.
struct CompileStage {
  std::string name;  ///< "specialise", a pass's name, "plan"
  double milliseconds = 0;
  size_t nodes = 0;
};

}  // namespace steep
