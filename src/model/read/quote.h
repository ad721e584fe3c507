// Makes text from a file safe for a message: escapes invalid UTF-8 and control characters, and
// limits the length.
#pragma once

#include <string>
#include <string_view>

#include "runtime/utf8.h"

namespace steep {

/// At most about 200 bytes, always valid UTF-8.
std::string quote(std::string_view text);

}  // namespace steep
