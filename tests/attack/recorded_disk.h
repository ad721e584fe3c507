// The possible contents of a disk after a power loss. Records the calls of saves, and writes images
// in which calls without fsync may be missing.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "runtime/disk.h"

namespace steep::testing {

/// Records calls below one folder. Model: fsync of a file makes its bytes durable, but not its
/// name; fsync of a folder makes the names in it durable. Without fsync, any changes of names may
/// be on the disk, in their order and each one complete; of a write there may be nothing, zeros, a
/// beginning, or all.
class RecordedDisk {
 public:
  /// The present content of `root` is durable.
  explicit RecordedDisk(const std::filesystem::path& root);

  /// To be called for each call that will succeed.
  void record(const DiskCall& call);
  size_t calls() const { return log_.size(); }
  /// Ignores all fsyncs, to check that images then show the loss.
  void forget_syncs();

  /// Writes to the folder `where` a possible state after a power loss that follows the first
  /// `count` calls.
  void write_image(size_t count, std::mt19937_64& random, const std::filesystem::path& where) const;

 private:
  struct Node {
    bool folder = false;
    std::map<std::string, int> names{};  ///< of a folder
    std::string bytes{};                 ///< of a file
  };
  struct Change {
    enum Kind { write, sync, add, remove, rename, exchange } kind;
    int node = 0;         ///< node that is written or synced; else the folder
    std::string name{};   ///< in the folder
    std::string to{};     ///< of rename and exchange: in the same folder
    int child = 0;        ///< node with that name at the time
    std::string bytes{};  ///< of write
  };

  int import(const std::filesystem::path& path);
  /// The node at `path`; -1 when there is none or the path is outside.
  int find(std::string_view path) const;
  static void apply(std::vector<Node>& nodes, const Change& change);
  void write_node(const std::vector<Node>& nodes, int node,
                  const std::filesystem::path& where) const;

  std::filesystem::path root_;
  std::vector<Node> durable_;  ///< durable state at the start
  std::vector<Node> now_;      ///< state that processes see
  std::vector<Change> log_;
};

}  // namespace steep::testing
