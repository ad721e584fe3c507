// Reads a number of bytes that a user wrote.
#pragma once

#include <cstddef>
#include <string_view>

namespace steep {

/// Parses a number of bytes: "2GiB", "512M", "1048576". Units are powers of 1024: K, M, G, T, or
/// KiB, MiB, GiB, TiB. Returns 0 if the text is not valid, or if the number does not fit.
size_t parse_bytes(std::string_view text);

}  // namespace steep
