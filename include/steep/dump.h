// The formats in which a compiled graph is shown.
#pragma once

namespace steep {

enum class DumpFormat {
  text,    ///< the graph after all passes, then its plan: the kernels, and the place of every value
           ///< in memory
  passes,  ///< the graph before the first pass, and after each pass that changed it
  html,    ///< one page with the plan as a table and the arenas as pictures; works without a
           ///< network
};

}  // namespace steep
