#include "plan/memory_limit.h"

#include "runtime/parse_bytes.h"
#include "steep/error.h"

namespace steep {

MemoryLimit memory_limit_from(const std::string& text) {
  if (text.empty()) return {};
  if (text == kLeast) return {.least = true};
  if (const size_t bytes = parse_bytes(text); bytes != 0) return {.bytes = bytes};
  throw ModelError(
      {.what = "The memory limit cannot be read.",
       .expected =
           "a number of bytes above 0, with a unit as in 2GiB or 512M or without, or \"least\"",
       .received = text});
}

}  // namespace steep
