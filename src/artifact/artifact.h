// Artifacts: files from which a training step runs without the model that it was made from. A full
// build writes them. They are the only models that the runtime (STEEP_RUNTIME) can read.
//
// The programs of an artifact are graphs that are ready for the planner: differentiated, rewritten,
// for fixed shapes, with a type for each value and the offsets of each view. So a reader needs
// neither ONNX's schemas nor the operators' inference rules. artifact/rules.h defines which graphs
// the reader accepts.
//
//   0   "STEEPART", version (u32), CRC-32C of the header (u32), bytes of the header (u64), bytes of
//       the data (u64), CRC-32C of the data (u32), zeros, CRC-32C of these 60 bytes (u32)
//   64  the header: JSON, filled up with spaces to a multiple of 64
//       the data: tensors, each at a multiple of 64. Little-endian throughout
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/files.h"
#include "ir/graph.h"
#include "steep/steep.h"

namespace steep {

/// How the session uses a state.
enum class StateRole : uint8_t { parameter, statistic, moment, count };

struct ArtifactState {
  std::string name;
  StateRole role = StateRole::parameter;
  Tensor tensor{};
};

enum class Purpose : uint8_t { step, prediction };

/// A graph with concrete types. A step has the inputs and outputs of step_graph() (train/step.h); a
/// prediction has those of eval_graph() without the loss.
struct ArtifactProgram {
  Purpose purpose = Purpose::step;
  Graph graph{};
  std::unordered_map<uint32_t, Ints> views{};  ///< as in KernelGraph (plan/kernel_graph.h)
};

struct Artifact {
  double lr = 0;  ///< base rate
  ScheduleOptions schedule{};
  int64_t steps = 0;
  uint64_t seed = 0;
  uint64_t run_count = 0;
  bool check_finite = false;  ///< the last forward output of a step is the gradients' norm
  /// For each group with an optimizer of its own, by its number: settings_of() that optimizer
  /// (train/optimizer.h).
  std::map<size_t, std::vector<double>> groups{};
  std::vector<ArtifactState> states{};
  std::vector<ArtifactProgram> programs{};
};

/// Writes an artifact. It replaces a file at `path` only when the new one is complete and on disk.
/// Throws ModelError for what read_artifact() would refuse, and IoError.
void write_artifact(const std::filesystem::path& path, const Artifact& artifact);
/// The same bytes, in memory.
std::string artifact_bytes(const Artifact& artifact);

/// A file with this header (JSON) and data, and with the checksums that read_artifact() requires.
std::string seal_artifact(std::string header, std::string_view data);

/// Reads and verifies the whole file. The source is not trusted: counts, types, offsets and
/// operators are checked before anything is built from them. Tensors share one block of memory.
/// Throws CheckpointError if the file is damaged or has another version, ModelError for a node that
/// artifacts may not hold, OutOfMemoryError beyond Limits::max_bytes, IoError.
Artifact read_artifact(const ByteSource& source);

}  // namespace steep
