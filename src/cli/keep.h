// Writes results elsewhere if their destination fails.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>

#include "cli/progress.h"
#include "cli/team.h"

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

/// Keeps the results of a run. Errors of files do not end the run; they are collected.
class Keeper {
 public:
  /// Files are written by the process that leads.
  explicit Keeper(const Team& team) : team_(team) {}

  /// Writes to `target` or, if that fails, to another place; that is then reported, and later calls
  /// for this target use it, too. Returns the path. Throws IoError if no place can be written to.
  std::string write(const std::string& target, Progress& progress,
                    const std::function<void(const std::filesystem::path&)>& write);
  /// The same for what all processes write together: all call this, and write(path) with the paths
  /// that rank 0 chooses. An IoError of one process is one of all.
  std::string write_together(const std::string& target, Progress& progress,
                             const std::function<void(const std::filesystem::path&)>& write);
  /// Reports an error that does not end the run.
  void note(const std::string& text, Progress& progress);
  /// The errors so far; "" if there are none.
  const std::string& trouble() const { return trouble_; }

 private:
  void follow(const std::function<void(const std::filesystem::path&)>& write) const;

  const Team& team_;
  std::map<std::string, std::string> instead_;  ///< actual destination by wanted destination
  std::string trouble_;
};

}  // namespace steep::cli
