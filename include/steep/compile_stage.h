// One stage of the compiler: its time, and the size of the graph after it.
#pragma once

#include <cstddef>
#include <string>

namespace steep {

/// One stage of one compilation. `nodes` counts the nodes of the graph after it.
struct CompileStage {
  std::string name;  ///< "specialise", a pass's name, "plan"
  double milliseconds = 0;
  size_t nodes = 0;
};

}  // namespace steep
