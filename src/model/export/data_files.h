// Files with a model's external data, named as DetachedModel::write() names them.
#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <vector>

namespace steep {

/// MODEL.data, or MODEL.data-2, …: the first name that does not exist.
std::filesystem::path unused_data_file(const std::filesystem::path& model);

/// The existing regular files with such names.
std::vector<std::filesystem::path> data_files_of(const std::filesystem::path& model);

/// The external data locations in a model file. Empty when the file is no model.
std::set<std::string> locations_in(const std::filesystem::path& model);

}  // namespace steep
