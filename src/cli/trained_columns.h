// The columns of tables that a model was trained with.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "cli/data.h"
#include "steep/limits.h"

namespace steep::cli {

/// The metadata of a model that was trained with this feed, for ExportOptions: an entry
/// "steep.columns", a JSON object with lists of names by input, without the label. The entry is
/// empty, which removes it, if no input is made of columns.
std::map<std::string, std::string> columns_metadata(const Feed& feed,
                                                    const std::optional<LabelForm>& labels);

/// Has the data matched by these names, as far as --map says nothing else: a table with its columns
/// in another order gives the same rows. Does nothing for a model without the entry, or that cannot
/// be read.
void match_trained_columns(DataArguments* data, const std::string& model, const Limits& limits);

}  // namespace steep::cli
