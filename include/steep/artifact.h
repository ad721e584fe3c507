// A training session that reads an artifact: a file with the differentiated graph of a model, its
// weights and its optimizer. Training from it needs neither the ONNX model nor the code that
// imports and differentiates models.
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

/// Trains and predicts from an artifact. Arrays must have exactly the dtypes and shapes of one of
/// the batches that the artifact was written for: nothing is converted. Calls from several threads
/// run one after the other.
class ArtifactSession {
 public:
  /// Throws CheckpointError if the file is damaged, has another version or is not an artifact;
  /// ModelError if it has operators that artifacts may not hold; OutOfMemoryError beyond `limits`;
  /// IoError.
  explicit ArtifactSession(const std::filesystem::path& path, const Limits& limits = {});
  /// From bytes in memory, which are copied.
  explicit ArtifactSession(std::span<const std::byte> artifact, const Limits& limits = {});
  ~ArtifactSession();
  ArtifactSession(ArtifactSession&&) noexcept;
  ArtifactSession& operator=(ArtifactSession&&) noexcept;

  /// Runs one step, as TrainingSession::step(). Throws before any weight changes: ShapeError for
  /// arrays that match no batch of the artifact; DataError for wrong values (a label that is not a
  /// class) and for a loss or gradients that are not finite; ProviderError for nodes that have no
  /// kernel in this library.
  StepResult step(std::span<const Tensor> inputs);
  StepResult step(std::initializer_list<Tensor> inputs) {
    return step(std::span<const Tensor>(inputs.begin(), inputs.size()));
  }
  /// Returns the model's outputs, in the order of output_info(), as TrainingSession::eval() does
  /// without a label. Takes the inputs of prediction_info(). Throws as step().
  std::vector<Tensor> predict(std::span<const Tensor> inputs);
  std::vector<Tensor> predict(std::initializer_list<Tensor> inputs) {
    return predict(std::span<const Tensor>(inputs.begin(), inputs.size()));
  }

  /// The inputs of a step, in order. An extent that differs between the artifact's batches is -1.
  /// Empty if the artifact only predicts.
  const std::vector<TensorInfo>& input_info() const;
  /// The inputs of predict(), and its outputs, in the same form.
  const std::vector<TensorInfo>& prediction_info() const;
  const std::vector<TensorInfo>& output_info() const;

  std::vector<std::string> parameter_names() const;
  /// Copies of the trained parameters.
  std::map<std::string, Tensor> weights() const;
  /// Overwrites parameters and running statistics. Throws ModelError for an unknown name and
  /// ShapeError for another dtype or shape; then nothing has changed.
  void set_weights(const std::map<std::string, Tensor>& weights);

  int64_t step_count() const;
  /// The learning rate of the next step. set_lr() sets the base rate, before the schedule's factor,
  /// and throws DataError unless it is finite and at least 0.
  double lr() const;
  void set_lr(double lr);

  /// Writes an artifact of the current state, with moments and counters. It replaces a file at
  /// `path` only when the new one is complete and on disk. Training continues from it as if it had
  /// not been interrupted. Throws IoError, and DataError if a failed step has left an incomplete
  /// update.
  void save(const std::filesystem::path& path) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace steep
