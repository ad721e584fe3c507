// Artifacts: files that a training step runs from without the model it was made of. A full build
// writes them; the runtime (STEEP_RUNTIME) knows nothing else.
//
// The programs in it are graphs as the planner takes them: differentiated, rewritten, for fixed
// shapes, with a type on each value and the offsets of each view, so that a reader needs neither
// ONNX's schemas nor rules of operators. What the reader accepts is in artifact/rules.h.
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

/// What a state is to the session.
enum class StateRole : uint8_t { parameter, statistic, moment, count };

struct ArtifactState {
  std::string name;
  StateRole role = StateRole::parameter;
  Tensor tensor{};
};

enum class Purpose : uint8_t { step, prediction };

/// A graph of concrete types. A step has the inputs and outputs of step_graph() (train/step.h), a
/// prediction those of eval_graph() without the loss.
struct ArtifactProgram {
  Purpose purpose = Purpose::step;
  Graph graph{};
  std::unordered_map<uint32_t, Ints> views{};  ///< as LoweredGraph has them (plan/lowered.h)
};

struct Artifact {
  double lr = 0;  ///< base rate
  ScheduleOptions schedule{};
  int64_t steps = 0;
  uint64_t seed = 0;
  uint64_t run_count = 0;
  bool check_finite = false;  ///< the last forward output of a step is the gradients' norm
  /// By number of a group with an optimizer of its own: settings_of() it (train/optimizer.h).
  std::map<size_t, std::vector<double>> groups{};
  std::vector<ArtifactState> states{};
  std::vector<ArtifactProgram> programs{};
};

/// Replaces what is at `path` when it is complete and on disk. Throws ModelError for what
/// read_artifact() would refuse, and IoError.
void write_artifact(const std::filesystem::path& path, const Artifact& artifact);
/// The same, as bytes.
std::string artifact_bytes(const Artifact& artifact);

/// A file of such a header, JSON, and such data, with the checksums that read_artifact() wants.
std::string seal_artifact(std::string header, std::string_view data);

/// Reads and verifies all of it. The source is not trusted: its counts, types, offsets and
/// operators are looked at before anything is made of them. Tensors share one block of memory.
/// Throws CheckpointError for what is damaged or of another version, ModelError for a node that
/// artifacts may not hold, OutOfMemoryError past Limits::max_bytes, IoError.
Artifact read_artifact(const ByteSource& source);

}  // namespace steep
