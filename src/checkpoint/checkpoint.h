// Checkpoints: a folder with model.safetensors, optimizer.safetensors and manifest.json. Files
// contain data only: no pickle, no code.
//
// A save writes a folder beside the target, syncs its files and the folder, swaps it with the
// target in one rename, and syncs the parent. If the process ends at any point, `path` has the
// complete old checkpoint or the complete new one. On file systems that cannot swap two names, the
// old checkpoint is renamed first, and a load in between finds it under that name. Saves to one
// folder wait for each other, in other processes too. A load never waits; if a save replaces the
// checkpoint during the load, the load starts again.
#pragma once

#include <filesystem>
#include <map>
#include <string>

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
/// otherwise. Throws IoError instead of replacing a folder that holds other files.
void write_checkpoint(const std::filesystem::path& path, const Checkpoint& checkpoint);

/// Reads and verifies everything: manifest, sizes, checksums, tensors. Throws CheckpointError that
/// names the file and the reason.
Checkpoint read_checkpoint(const std::filesystem::path& path);

}  // namespace steep
