// Arithmetic of a program: float32 throughout, or bfloat16 where it is faster and safe.
#pragma once

#include <cstdint>
#include <string_view>

namespace steep {

enum class Precision : uint8_t {
  fp32,
  bf16,  ///< matrix products read bfloat16; weights, sums, norms, losses and updates stay float32
};

/// "fp32" or "bf16". Throws ModelError for any other name.
Precision precision_from(std::string_view name);

}  // namespace steep
