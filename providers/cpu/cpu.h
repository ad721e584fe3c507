// The CPU provider: oneDNN, Steep's own kernels with run-time dispatch, and reference loops for
// everything else. plugin.cc implements steep/provider.h.
#pragma once

#include "providers/cpu/kernel.h"

namespace steep::cpu {

/// Whether the processor has matrix products for this 16-bit type. If not, operands are converted
/// to float32 and results are rounded: the values are the same, but it is not faster.
bool has_products(DType narrow);

/// The operators that candidates() knows, sorted.
std::vector<std::string_view> known_ops();

/// Each kernel file defines one of these functions; cpu.cc lists them. Adds its candidates, fastest
/// first.
using Register = void (*)(std::vector<Candidate>& list);

/// Computes a node whose output shapes depend on data (data_shaped.h). `node` gives the dtypes of
/// the outputs (undefined: not wanted). `inputs` are in the order of the operands, undefined where
/// absent. Returns one tensor per output, undefined where not wanted. Throws ShapeError and
/// DataError for inputs that do not fit.
using DataShapedKernel = std::vector<Tensor> (*)(const NodeSpec& node,
                                                 std::span<const Tensor> inputs);
/// nullptr when the operator has no such kernel.
DataShapedKernel data_shaped(std::string_view op);

}  // namespace steep::cpu
