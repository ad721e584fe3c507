#include "cli/trained_columns.h"

#include <nlohmann/json.hpp>
#include <vector>

#include "cli/column_list.h"
#include "model/read/model_metadata.h"
#include "steep/error.h"

namespace steep::cli {
namespace {

using Json = nlohmann::json;

constexpr const char* kKey = "steep.columns";

}  // namespace

std::map<std::string, std::string> columns_metadata(const Feed& feed,
                                                    const std::optional<LabelForm>& labels) {
  Json entry = Json::object();
  for (const auto& [input, list] : feed.columns) {
    if (labels && input == labels->input.name) continue;
    entry[input] = columns_of(list);
  }
  const bool none = entry.empty();
  return {{kKey, none ? "" : entry.dump(-1, ' ', false, Json::error_handler_t::replace)}};
}

void match_trained_columns(DataArguments* data, const std::string& model, const Limits& limits) {
  Json entry;
  try {
    const std::map<std::string, std::string> metadata = custom_metadata(model, limits.max_bytes);
    const auto found = metadata.find(kKey);
    if (found != metadata.end()) entry = Json::parse(found->second, nullptr, false);
  } catch (const Error&) {
    return;  // the session says what is wrong with the file
  }
  if (!entry.is_object()) return;
  data->columns_of = "the model was trained with";
  for (const auto& [input, list] : entry.items()) {
    std::vector<std::string> names;
    for (const Json& name : list) {
      if (name.is_string()) names.push_back(name.get<std::string>());
    }
    if (!names.empty()) data->columns[input] = column_list(names);
  }
}

}  // namespace steep::cli
