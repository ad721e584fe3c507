// The processor's instruction sets that kernels may use, and its vendor.
#pragma once

namespace steep::cpu {

/// Applies the environment variable STEEP_MAX_ISA ("avx512", "avx2", "sse4", "scalar"; on ARM
/// "neon"): Steep's own kernels then use no newer instruction set. For comparing results between
/// machines, and for tests. Reads the variable once; cheap afterwards. Throws ProviderError for
/// other values. Call before the first dispatch.
void limit_isa();

/// Whether Intel made the processor. Library kernels tuned for one vendor may be slower on
/// processors of another vendor with the same instructions.
bool is_intel();

}  // namespace steep::cpu
