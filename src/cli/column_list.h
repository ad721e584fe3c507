// Several columns of a table as one word of the command line.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace steep::cli {

/// "a,b" of a and b. A name with a comma or a quote is quoted, as in a CSV: "a,\"b,c\"".
std::string column_list(std::span<const std::string> names);

/// The names in what column_list() returns, or in what a user writes like that. A comma at the end
/// is left out.
std::vector<std::string> columns_of(const std::string& list);

/// Most names that a message has of a table's columns.
constexpr size_t kMostShown = 20;

/// What messages call the array `name` that consists of these columns: of many, the first of them.
std::string shown_columns(const std::string& name, std::span<const std::string> columns);

/// Common names of labels. (That a single array is left over is not enough: it may be weights of
/// samples.)
bool names_labels(std::string name);

}  // namespace steep::cli
