// JSON text in one line whose numbers keep their digits. A tree of nlohmann::json would round
// integers of more than 64 bits, such as those in the states of NumPy's random generators.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace steep {

/// The same JSON without spaces; nothing if `text` is not valid JSON, or has a number beyond
/// float64. The text must not be nested deeply (json_nesting()).
std::optional<std::string> compact_json(std::string_view text);

/// The value of this member of a JSON object, in the same form; nothing if there is none.
std::optional<std::string> compact_member(std::string_view object, std::string_view member);

}  // namespace steep
