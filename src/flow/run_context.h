// The objects that all parts of a program share in a run.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ir/datum.h"
#include "passes/pipeline.h"
#include "plan/executable.h"
#include "steep/limits.h"

namespace steep {

struct RunContext {
  const Devices& devices;
  std::shared_ptr<MemoryPool> pool;
  PassOptions passes;
  size_t cache_size;
  Limits limits;
  RunOptions run{};
  std::map<std::string, Tensor> states{};
  /// Runs a body. `inputs` are in the order of the body's inputs. `iteration` is the number of the
  /// loop's iteration, so that each iteration draws other random numbers.
  std::function<std::vector<Datum>(const Body& body, std::span<const Datum> inputs,
                                   int64_t iteration)>
      run_body{};
};

}  // namespace steep
