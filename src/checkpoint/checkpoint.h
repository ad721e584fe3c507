// Checkpoints: a folder with model.safetensors, optimizer.safetensors and manifest.json. No pickle,
// no code.
//
// A save writes a folder beside the target, syncs its files and itself, swaps it with the target in
// one rename, and syncs the parent. Whatever ends the process, `path` then holds the old checkpoint
// or the new one, whole. On file systems that cannot swap two names, the old one is renamed away
// first; for the moment in between, loading finds it there. Saves to one folder queue, in whatever
// processes they are; loading never waits, and reads again what a save replaced meanwhile.
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
  double loss_scale = 0;    ///< 0: the loss was not scaled
  int64_t clean_steps = 0;  ///< since the loss scale last changed
  int threads = 0;          ///< of the session that saved it; 0: unknown
  std::string schedule{};   ///< for people: what was in force
  std::string user = "{}";  ///< JSON text, at most 1 MiB, nested at most 64 deep
};

/// Throws IoError for what write_checkpoint() would refuse at `path`. Leaves nothing behind.
void check_checkpoint_destination(const std::filesystem::path& path);

/// Throws IoError (the disk), DataError (`user` is no JSON, or a count or rate could not be
/// loaded). A checkpoint that was at `path` then stays, unless the error says otherwise. Refuses,
/// with IoError, to replace a folder that holds anything but a checkpoint.
void write_checkpoint(const std::filesystem::path& path, const Checkpoint& checkpoint);

/// Reads and verifies all of it: manifest, sizes, checksums, tensors. Throws CheckpointError naming
/// file and reason.
Checkpoint read_checkpoint(const std::filesystem::path& path);

}  // namespace steep
