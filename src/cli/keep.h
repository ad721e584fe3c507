// Results that cannot be written where they were to go.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

namespace steep::cli {

/// Throws IoError, naming `option`, when less than `bytes` are free where `path` leads to, or the
/// process may write no file of `largest` bytes (ulimit -f).
void need_room(const std::string& option, const std::filesystem::path& path, uint64_t bytes,
               uint64_t largest);

/// Calls write(path) for `wanted` and, when that throws, for a new name in one folder after the
/// other until it does not: the working folder, the user's, those for temporary files. Returns the
/// path that worked. *trouble is the error of `wanted`, or "". If no path works, throws that error.
std::filesystem::path keep(const std::filesystem::path& wanted,
                           const std::function<void(const std::filesystem::path&)>& write,
                           std::string* trouble);

}  // namespace steep::cli
