#include "providers/cpu/isa.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <string_view>

#include "hwy/targets.h"
#include "steep/error.h"

namespace steep::cpu {
namespace {

struct InstructionSet {
  std::string_view name;
  int64_t target;  // of Highway; better ones have lower bits
};

#if HWY_ARCH_X86
constexpr InstructionSet kSets[] = {
    {"avx512", HWY_AVX3_DL}, {"avx2", HWY_AVX2}, {"sse4", HWY_SSE4}, {"scalar", HWY_SCALAR}};
constexpr const char* kNames = "avx512, avx2, sse4 or scalar";
#elif HWY_ARCH_ARM_A64  // every processor has it, and kernels exist for no other
constexpr InstructionSet kSets[] = {{"neon", HWY_NEON}};
constexpr const char* kNames = "neon";
#elif HWY_ARCH_WASM     // the code has no other
constexpr InstructionSet kSets[] = {{"simd128", HWY_WASM}};
constexpr const char* kNames = "simd128";
#else
constexpr InstructionSet kSets[] = {{"scalar", HWY_SCALAR}};
constexpr const char* kNames = "scalar";
#endif

}  // namespace

void limit_isa() {
  static const bool done = [] {
    const char* name = std::getenv("STEEP_MAX_ISA");
    if (name == nullptr || *name == '\0') return true;
    const auto* const set = std::ranges::find(kSets, std::string_view(name), &InstructionSet::name);
    if (set == std::end(kSets)) {
      throw ProviderError(
          {.what = "The environment variable STEEP_MAX_ISA does not name an instruction set.",
           .node = "STEEP_MAX_ISA",
           .expected = kNames,
           .received = name,
           .remedy = "Correct the variable, or unset it to use all that the processor has."});
    }
#if !HWY_ARCH_WASM  // nothing to choose, and no library of Highway that would know the choice
    hwy::DisableTargets(set->target - 1);
#endif
    return true;
  }();
  static_cast<void>(done);
}

bool is_intel() {
#if defined(__x86_64__)
  return __builtin_cpu_is("intel") != 0;
#else
  return false;
#endif
}

}  // namespace steep::cpu
