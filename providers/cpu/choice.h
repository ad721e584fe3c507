// Which product computes bfloat16 operands here: a choice by measurement. Processors with bfloat16
// instructions multiply bfloat16 at twice the speed of float32, or at half of it.
#pragma once

#include <string>

#include "providers/cpu/matmul.h"

namespace steep::cpu {

/// Products that are measured. Each stands for those of the same kind.
enum class ProductKind : uint8_t { plain, turned_b, turned_a, wide, convolution };

/// With fewer multiplications, the choice would save less than a tenth of a millisecond.
constexpr int64_t kFewMultiplications = int64_t{1} << 20;

/// The kind of a product of matrices.
ProductKind kind_of(const MatMulProblem& p);

/// Whether bfloat16 operands of such a product are better widened and multiplied in float32, than
/// multiplied by the processor's bfloat16 instructions. The variable STEEP_PRODUCTS decides
/// ("native", "widened"), else a measurement: the one in the folder of the cache, or a new one,
/// which is stored there and takes about a second. It is the same for any number of threads.
/// Thread-safe. Throws ProviderError for another value of the variable.
bool widens_bf16(ProductKind kind);

/// The measurement as a table for people; a new one, which replaces the stored one, if `again`.
std::string product_table(bool again);

}  // namespace steep::cpu
