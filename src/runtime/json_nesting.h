// Finds how deeply JSON text is nested, before it is parsed, so that readers of files can limit it.
#pragma once

#include <string_view>

namespace steep {

/// The deepest nesting of objects and arrays; 0 for a number or a string. The text need not be
/// valid JSON.
int json_nesting(std::string_view text);

}  // namespace steep
