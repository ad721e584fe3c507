// CRC-32C (Castagnoli, RFC 3720 appendix B.4): detects damage of files by disks and copies.
#pragma once

#include <cstddef>
#include <cstdint>

namespace steep {

/// Continues the checksum `crc` (0 for a new one) over `size` bytes. crc32c(crc32c(0, a), b) is the
/// checksum of a followed by b.
uint32_t crc32c(uint32_t crc, const void* data, size_t size);

}  // namespace steep
