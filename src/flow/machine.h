// What the parts of a program share while they run.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "passes/pipeline.h"
#include "runtime/datum.h"
#include "runtime/executable.h"

namespace steep {

/// Bounds on what a model may ask for at run time. Exceeding one is a DataError.
struct FlowLimits {
  int64_t iterations = 10'000'000;  ///< of one loop
  size_t bytes = size_t{64} << 30;  ///< held by one loop's results, or by one sequence
  int depth = 100;                  ///< of bodies within bodies
};

struct Machine {
  const Provider& provider;
  std::shared_ptr<MemoryPool> pool;
  PassOptions passes;
  size_t cache_size;
  FlowLimits limits;
  RunOptions run{};
  std::map<std::string, Tensor> states{};
  /// Runs a body. `inputs` in the order of the body's own; `turn` numbers the runs of one loop, so
  /// that each draws other random numbers.
  std::function<std::vector<Datum>(const Body& body, std::span<const Datum> inputs, int64_t turn)>
      run_body{};
};

}  // namespace steep
