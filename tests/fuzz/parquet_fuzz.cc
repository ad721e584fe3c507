// Any bytes read as Parquet are accepted or refused with a steep::Error.
#include <cstddef>
#include <cstdint>
#include <memory>

#include "steep/error.h"
#include "tables/parquet.h"

extern "C" steep::TableModule* steep_open_parquet(const char* path, const void* bytes,
                                                  uint64_t size, uint64_t max_bytes,
                                                  steep::TableFailure* failure);

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace steep;
  const Limits limits{.max_bytes = uint64_t{16} << 20, .max_arrays = 1000};
  TableFailure failure;
  const std::unique_ptr<TableModule> table(
      steep_open_parquet(nullptr, data, size, limits.max_bytes, &failure));
  if (table == nullptr) return 0;
  try {
    read_table(*table, "input", limits);
  } catch (const Error&) {  // NOLINT(bugprone-empty-catch): the expected refusal
  }
  return 0;
}
