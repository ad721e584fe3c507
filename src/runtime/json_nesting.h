// How deeply JSON text is nested, found before anything is built of it: readers of files bound it.
#pragma once

#include <string_view>

namespace steep {

/// Deepest nesting of objects and arrays; 0 for a number or a string. The text need not be valid
/// JSON.
int json_nesting(std::string_view text);

}  // namespace steep
