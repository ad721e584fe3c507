// How the inside of a compiled graph is shown.
#pragma once

namespace steep {

enum class DumpFormat {
  text,    ///< the graph after all passes, then its plan: kernels, and where every value lies
  passes,  ///< the graph before the first pass, and after each that changed it
  html,    ///< one page: the plan as a table, and the arenas as pictures; it needs no network
};

}  // namespace steep
