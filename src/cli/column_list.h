// Several columns of a table as one word of the command line.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace steep::cli {

/// "a,b" of a and b. A name with a comma or a quote is quoted, as in a CSV: "a,\"b,c\"".
std::string column_list(std::span<const std::string> names);

/// The names in what column_list() returns, or in what a user writes like that. A comma at the end
/// is left out.
std::vector<std::string> columns_of(const std::string& list);

}  // namespace steep::cli
