// The arithmetic of a program: float32 only, or 16-bit floats where they are faster and safe.
#pragma once

#include <cstdint>
#include <string_view>

#include "ir/graph.h"

namespace steep {

enum class Precision : uint8_t {
  fp32,
  bf16,  ///< matrix products read bfloat16; weights, sums, norms, losses and updates stay float32
  fp16,  ///< the same with float16; because of its small range the loss needs a scale
};

/// "fp32", "bf16" or "fp16". Throws ModelError for any other name.
Precision precision_from(std::string_view name);

}  // namespace steep
