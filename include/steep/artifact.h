// A training step from an artifact: a file that carries the differentiated graph of a model, with
// its weights and optimizer, so that it trains without the ONNX model and without a compiler for
// it.
//
//   steep::TrainingSession session("model.onnx", {.loss = "softmax_cross_entropy"});
//   session.save_artifact("model.steep", {{x, labels}});       // with the whole library
//
//   steep::ArtifactSession device("model.steep");               // with the runtime alone
//   device.step({x, labels});
//   device.save("model.steep");
//
// docs/runtime.md is the guide.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "steep/error.h"
#include "steep/limits.h"
#include "steep/steep.h"
#include "steep/tensor.h"

namespace steep {

/// Trains and predicts. Arrays have the dtypes and shapes of a batch that the artifact was written
/// for: nothing is converted. Calls from several threads take turns.
class ArtifactSession {
 public:
  /// Throws CheckpointError for a file that is damaged, of another version or no artifact,
  /// ModelError for one with operators that artifacts may not hold, OutOfMemoryError past
  /// `limits`, IoError.
  explicit ArtifactSession(const std::filesystem::path& path, const Limits& limits = {});
  /// Of bytes in memory, which are copied.
  explicit ArtifactSession(std::span<const std::byte> artifact, const Limits& limits = {});
  ~ArtifactSession();
  ArtifactSession(ArtifactSession&&) noexcept;
  ArtifactSession& operator=(ArtifactSession&&) noexcept;

  /// One step, as TrainingSession::step(). Throws ShapeError for arrays that match no batch of the
  /// artifact, and DataError for wrong values (a label that is not a class) and for a loss or
  /// gradients that are not finite. No weight has changed then. ProviderError names nodes that this
  /// library has no kernel for.
  StepResult step(std::span<const Tensor> inputs);
  StepResult step(std::initializer_list<Tensor> inputs) {
    return step(std::span<const Tensor>(inputs.begin(), inputs.size()));
  }
  /// The model's outputs, in the order of output_info(), as TrainingSession::eval() has them
  /// without a label. Takes the inputs of prediction_info(). Throws as step().
  std::vector<Tensor> predict(std::span<const Tensor> inputs);
  std::vector<Tensor> predict(std::initializer_list<Tensor> inputs) {
    return predict(std::span<const Tensor>(inputs.begin(), inputs.size()));
  }

  /// Inputs of a step, in order; extents in which its batches differ are -1. Empty where the
  /// artifact only predicts.
  const std::vector<TensorInfo>& input_info() const;
  /// Likewise of a prediction, and its outputs.
  const std::vector<TensorInfo>& prediction_info() const;
  const std::vector<TensorInfo>& output_info() const;

  std::vector<std::string> parameter_names() const;
  /// Copies of the trained parameters.
  std::map<std::string, Tensor> weights() const;
  /// Overwrites parameters and running statistics. Throws ModelError for a name that is not there
  /// and ShapeError for another type; nothing is changed then.
  void set_weights(const std::map<std::string, Tensor>& weights);

  int64_t step_count() const;
  /// Of the next step; set_lr() sets the base rate, which the schedule multiplies. Throws DataError
  /// unless it is finite and at least 0.
  double lr() const;
  void set_lr(double lr);

  /// Writes an artifact of the present state, with moments and counts. It replaces a file at `path`
  /// only when it is complete and on disk. Training continues from it as if it had not been
  /// interrupted. Throws IoError, and DataError where an update was cut off.
  void save(const std::filesystem::path& path) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace steep
