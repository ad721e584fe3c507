#include "providers/cpu/isa.h"

#include <cstdlib>
#include <string>

#include "hwy/targets.h"
#include "steep/error.h"

namespace steep::cpu {

void limit_isa() {
  static const bool done = [] {
    const char* wanted = std::getenv("STEEP_MAX_ISA");
    if (wanted == nullptr || *wanted == '\0') return true;
    const std::string name = wanted;
    int64_t best = 0;
    if (name == "avx512") best = HWY_AVX3_DL;
    if (name == "avx2") best = HWY_AVX2;
    if (name == "sse4") best = HWY_SSE4;
    if (name == "scalar") best = HWY_SCALAR;
    if (best == 0) {
      throw ProviderError(
          {.what = "The environment variable STEEP_MAX_ISA does not name an instruction set.",
           .expected = "avx512, avx2, sse4 or scalar",
           .received = name});
    }
    hwy::DisableTargets(best - 1);  // better targets have lower bits
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
