// Writes results elsewhere if their destination fails.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

namespace steep::cli {

/// Throws IoError, which names `option`, if less than `bytes` are free on the disk of `path`, or if
/// the process may not write a file of `largest` bytes (ulimit -f).
void need_room(const std::string& option, const std::filesystem::path& path, uint64_t bytes,
               uint64_t largest);

/// Calls write(path) for `target`. If that throws an IoError, tries a new name in each of these
/// folders until one succeeds: the working folder, the user's home, those for temporary files.
/// Returns the path that succeeded. *trouble is the error of `target`, or "". If no path succeeds,
/// throws that error.
std::filesystem::path keep(const std::filesystem::path& target,
                           const std::function<void(const std::filesystem::path&)>& write,
                           std::string* trouble);

}  // namespace steep::cli
