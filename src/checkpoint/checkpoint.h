// Checkpoints: a folder with model.safetensors, optimizer.safetensors and manifest.json. Files
// contain data only: no pickle, no code.
//
// A sharded checkpoint is written by several processes: in the place of optimizer.safetensors it
// has a shard of each, optimizer-00001-of-00004.safetensors and so on. A tensor is whole, in one
// shard. The manifest has sizes and checksums of all files, so that shards of two saves never mix.
//
// A save writes a folder beside the target, syncs its files and the folder, swaps it with the
// target in one rename, and syncs the parent. If the process ends at any point, `path` has the
// complete old checkpoint or the complete new one. On file systems that cannot swap two names, the
// old checkpoint is renamed first, and a load in between finds it under that name. Saves to one
// folder wait for each other, in other processes too. A load never waits; if a save replaces the
// checkpoint during the load, the load starts again.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>

#include "runtime/disk.h"
#include "steep/tensor.h"

namespace steep {

struct Checkpoint {
  std::string fingerprint{};  ///< of the graph, parameters and optimizer: model_fingerprint() in
                              ///< train/step.h
  std::map<std::string, Tensor> weights{};
  std::map<std::string, Tensor> moments{};
  int64_t step = 0;
  uint64_t seed = 0;
  uint64_t run_count = 0;
  double lr = 0;            ///< base rate
  double loss_scale = 0;    ///< 0: no loss scale
  int64_t clean_steps = 0;  ///< steps since the loss scale last changed
  int threads = 0;          ///< of the session that saved it; 0: unknown
  std::string schedule{};   ///< the schedule, as text for people
  /// Options by name, which a later session is compared with; empty in older checkpoints.
  std::map<std::string, std::string> settings{};
  std::string hash{};       ///< of a checkpoint that was read: its files' checksums
  std::string user = "{}";  ///< JSON text, at most 1 MiB, nested at most 64 deep
};

/// Throws IoError if write_checkpoint() could not write to `path`. Changes no file.
void check_checkpoint_destination(const std::filesystem::path& path);

/// Throws IoError (the disk), and DataError if `user` is no JSON, or a count or rate is out of the
/// range that can be loaded. An older checkpoint at `path` then stays, unless the error says
/// otherwise. Throws IoError instead of replacing a folder that holds other files. Moments without
/// data are not written. If `path` is the folder of a PendingCheckpoint, writes into it.
void write_checkpoint(const std::filesystem::path& path, const Checkpoint& checkpoint);

/// Reads and verifies everything: manifest, sizes, checksums, tensors. Throws CheckpointError that
/// names the file and the reason. `wants`: moments for which it is false have a type only, no data;
/// of a shard in which it is false for all, only the header is read.
Checkpoint read_checkpoint(const std::filesystem::path& path,
                           const std::function<bool(const std::string& moment)>& wants = {});

struct FileRecord {
  uint64_t bytes = 0;
  uint32_t crc = 0;
};

/// Writes shard number `index` of `count`, above 0, to the folder of a PendingCheckpoint, and waits
/// until it is on disk. Throws IoError.
FileRecord write_shard(const std::filesystem::path& folder,
                       const std::map<std::string, Tensor>& moments, size_t index, size_t count);

/// A checkpoint to which several processes write: this one by write_checkpoint(), with the moments
/// that it keeps, which are shard 0, and the others by write_shard().
class PendingCheckpoint {
 public:
  /// Waits for other saves to `path`, and makes a folder beside it. Throws IoError.
  explicit PendingCheckpoint(const std::filesystem::path& path);
  /// Removes the folder if it was not put in place.
  ~PendingCheckpoint();
  PendingCheckpoint(const PendingCheckpoint&) = delete;
  PendingCheckpoint& operator=(const PendingCheckpoint&) = delete;

  const std::filesystem::path& folder() const { return folder_; }
  /// Lists the shards of the others, results of write_shard() in order, in the manifest; then
  /// replaces what is at `path`. Throws as write_checkpoint().
  void finish(std::span<const FileRecord> others);

 private:
  friend void write_checkpoint(const std::filesystem::path&, const Checkpoint&);
  void put_in_place(const Checkpoint& checkpoint, const std::map<std::string, FileRecord>& files);

  std::filesystem::path target_;
  DiskLock lock_;
  std::filesystem::path folder_;  ///< empty: in place
};

/// The folder of this name beside `path`, which another process has made for its PendingCheckpoint.
std::filesystem::path folder_beside(const std::filesystem::path& path, const std::string& name);

}  // namespace steep
