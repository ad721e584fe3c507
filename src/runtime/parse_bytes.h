#pragma once

#include <cstddef>
#include <string_view>

namespace steep {

/// Bytes as people write them: "2GiB", "512M", "1048576". Units are powers of 1024: K, M, G, T, or
/// KiB, MiB, GiB, TiB. 0 when the text is none of these, or the number does not fit.
size_t parse_bytes(std::string_view text);

}  // namespace steep
