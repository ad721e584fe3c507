// UTF-8, which all text that leaves the engine is: Python's strings and JSON take no other bytes.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace steep {

/// Bytes of the well-formed UTF-8 character at the front of `s`; 0 when there is none. (RFC 3629,
/// section 4.)
size_t utf8_length(std::string_view s);
bool is_utf8(std::string_view text);
/// The text, each byte that is none of UTF-8 as "\\x..".
std::string as_utf8(std::string_view text);

}  // namespace steep
