// CRC-32C (Castagnoli, RFC 3720 appendix B.4): detects what a disk or a copy did to a file.
#pragma once

#include <cstddef>
#include <cstdint>

namespace steep {

/// Continues `crc` (0 for a new sum) over `size` bytes. crc32c(crc32c(0, a), b) is the sum of a
/// then b.
uint32_t crc32c(uint32_t crc, const void* data, size_t size);

}  // namespace steep
