// Any bytes read as a table are accepted or refused with a steep::Error.
#include <cstddef>
#include <cstdint>
#include <span>

#include "data/csv.h"
#include "steep/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace steep;
  const Limits limits{.max_bytes = uint64_t{16} << 20, .max_arrays = 1000};
  try {
    read_csv(MemorySource(std::as_bytes(std::span(data, size)), "input"), limits);
  } catch (const Error&) {  // NOLINT(bugprone-empty-catch): the expected refusal
  }
  return 0;
}
