// What kernels may use here: the processor's instruction sets, its vendor, our own oneDNN.
#pragma once

namespace steep::cpu {

/// Applies the environment variable STEEP_MAX_ISA ("avx512", "avx2", "sse4", "scalar"; on ARM
/// "neon"): Steep's own kernels then use no newer instruction set. For comparing results between
/// machines, and for tests. Reads the variable once; cheap afterwards. Throws ProviderError for
/// other values. Call before the first dispatch.
void limit_isa();

/// Throws ProviderError if calls of oneDNN do not reach the library that Steep brings: another one
/// may have been loaded with its symbols for the whole process.
void require_own_onednn();

/// Whether Intel made the processor. Library kernels tuned for one vendor may be slower on
/// processors of another vendor with the same instructions.
bool is_intel();

}  // namespace steep::cpu
