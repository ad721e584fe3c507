// Files that hold the data of a model beside it, as DetachedModel::write() names them.
#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <vector>

namespace steep {

/// MODEL.data, or MODEL.data-2, …: the first name that nobody has.
std::filesystem::path unused_data_file(const std::filesystem::path& model);

/// Regular files of such names that are there.
std::vector<std::filesystem::path> data_files_of(const std::filesystem::path& model);

/// What the tensors of a model file say of where their data lies. Empty for what is no model.
std::set<std::string> locations_in(const std::filesystem::path& model);

}  // namespace steep
