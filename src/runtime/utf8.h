// UTF-8. All text that leaves the engine is UTF-8, because Python's strings and JSON accept no
// other bytes.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace steep {

/// The number of bytes of the valid UTF-8 character at the start of `s`; 0 if there is none (RFC
/// 3629, section 4).
size_t utf8_length(std::string_view s);
bool is_utf8(std::string_view text);
/// The text, with each byte that is not valid UTF-8 replaced by "\\x..".
std::string as_utf8(std::string_view text);

}  // namespace steep
