// One exchange of a step with other processes, as traces show it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

namespace steep {

/// From the moment at which this process begins it to its end: the wait for slower processes is
/// part of it.
struct Exchange {
  std::string name;     ///< "bucket 2: w5, b5"; "copy of weights"
  size_t bytes = 0;     ///< of the tensors; 0: some numbers only
  int64_t bucket = -1;  ///< of gradients, from 0; -1: another exchange
  std::chrono::steady_clock::time_point start{}, end{};
};

}  // namespace steep
