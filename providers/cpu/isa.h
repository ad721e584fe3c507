// The processor: which instruction sets our kernels may use, and who made it.
#pragma once

namespace steep::cpu {

/// Obeys the environment variable STEEP_MAX_ISA ("avx512", "avx2", "sse4", "scalar"), which keeps
/// Steep's own kernels from using anything newer: for comparing results between machines, and for
/// tests. Reads it once; cheap afterwards. Throws ProviderError when it holds something else. Call
/// before the first dispatch.
void limit_isa();

/// Whether the processor is made by Intel. Library kernels tuned for one vendor may be slower on
/// another vendor's processor with the same instructions.
bool is_intel();

}  // namespace steep::cpu
