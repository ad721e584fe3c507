// What a disk may hold after a power loss: the calls of saves are recorded, and images are made in
// which those that no fsync had made durable are there or not.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "runtime/disk.h"

namespace steep::testing {

/// Follows the calls below one folder. Model: fsync of a file makes its bytes durable, not its
/// name; fsync of a folder the names in it. Until then, any of the changes of names may be on the
/// disk, in their order, each as a whole; of a write nothing, zeros, a beginning, or all of it.
class RecordedDisk {
 public:
  /// Takes what is in `root` now for durable.
  explicit RecordedDisk(const std::filesystem::path& root);

  /// To be called for each call that is going to succeed.
  void record(const DiskCall& call);
  size_t calls() const { return log_.size(); }
  /// Take every fsync as if it did nothing, to see that images then show the loss.
  void forget_syncs();

  /// Puts into the folder `where` what may be left when the power fails after the first `count`
  /// calls.
  void write_image(size_t count, std::mt19937_64& random, const std::filesystem::path& where) const;

 private:
  struct Node {
    bool folder = false;
    std::map<std::string, int> names{};  ///< of a folder
    std::string bytes{};                 ///< of a file
  };
  struct Change {
    enum Kind { write, sync, add, remove, rename, exchange } kind;
    int node = 0;         ///< written or synced; else the folder
    std::string name{};   ///< in the folder
    std::string to{};     ///< of rename and exchange: in the same folder
    int child = 0;        ///< that the name means then
    std::string bytes{};  ///< of write
  };

  int import(const std::filesystem::path& path);
  /// The node at `path`, -1 when there is none or it lies elsewhere.
  int find(std::string_view path) const;
  static void apply(std::vector<Node>& nodes, const Change& change);
  void write_node(const std::vector<Node>& nodes, int node,
                  const std::filesystem::path& where) const;

  std::filesystem::path root_;
  std::vector<Node> durable_;  ///< at the beginning
  std::vector<Node> now_;      ///< as processes see it
  std::vector<Change> log_;
};

}  // namespace steep::testing
