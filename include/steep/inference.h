// Running a model forward, without training it.
//
//   #include <steep/inference.h>
//
//   steep::InferenceSession session("model.onnx");
//   std::vector<steep::Tensor> results = session.run({{"x", x}});
//
// A call that fails throws a steep::Error (steep/error.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "steep/datum.h"
#include "steep/dump.h"
#include "steep/error.h"
#include "steep/steep.h"
#include "steep/tensor.h"

namespace steep {

struct InferenceOptions {
  bool optimize = true;  ///< rewrite the graph (fusion, for example) before it is planned
  /// Rewrites to turn off, by name; a name that is not a pass is a ModelError.
  std::vector<std::string> disabled_passes{};
  int threads = 0;            ///< greatest number of threads; 0: the number of OpenMP
  uint64_t seed = 0;          ///< seed of random operators
  bool check_finite = false;  ///< DataError at the first node with NaN or infinity; slow
  /// Accept any number of rows where the file fixes one for all inputs and each row of the outputs
  /// depends on the same row of the inputs only. Otherwise the number stays fixed.
  bool open_batch = false;
  /// Normalise by running statistics, as TrainingSession::eval() does, also where the file has a
  /// BatchNormalization in training mode. Without this, that one normalises by the statistics of
  /// the inputs of each call, as ONNX says, so that a row's outputs depend on the other rows.
  bool running_statistics = false;
  Limits limits{};
  /// Where to run. A node runs on the first of these that has a kernel for it, else on the CPU.
  /// Empty: only the CPU.
  std::vector<ProviderChoice> providers{};
};

/// The metadata of a model.
struct ModelMetadata {
  std::string producer;
  std::string graph_name;
  std::string graph_description;
  std::string domain;
  std::string description;
  int64_t version = 0;
  std::map<std::string, std::string> custom{};
};

/// A model, compiled at the first run for each set of input shapes. Dropout is the identity. run()
/// may be called from several threads; runs are one after the other.
class InferenceSession {
 public:
  using Inputs = std::map<std::string, Tensor>;

  /// Throws ModelError (the model cannot be read, or has unknown operators), IoError.
  explicit InferenceSession(const std::filesystem::path& model, InferenceOptions options = {});
  /// From a serialised model. External data is refused unless `folder` says where it lies.
  explicit InferenceSession(std::span<const std::byte> model, InferenceOptions options = {},
                            const std::filesystem::path& folder = {});
  ~InferenceSession();
  InferenceSession(InferenceSession&&) noexcept;
  InferenceSession& operator=(InferenceSession&&) noexcept;

  /// Returns the named outputs, in that order; if none is named, all, in the order of
  /// output_info(). Nodes that no named output needs do not run. Inputs of another dtype are
  /// converted as docs/training.md says (What is fed). Throws DataError (an input is missing or
  /// unknown, an output is unknown, bad values), ShapeError (rank or extent of an input, or a dtype
  /// that is not converted), ProviderError (no kernel for a node).
  std::vector<Tensor> run(const Inputs& inputs, std::span<const std::string> outputs = {});

  /// As run(), for inputs and outputs of any kind: sequences, optionals.
  std::vector<Datum> run_data(const std::map<std::string, Datum>& inputs,
                              std::span<const std::string> outputs = {});

  std::vector<TensorInfo> input_info() const;  ///< the inputs that run() requires
  /// Optional inputs of run(): those with a default value (an initializer of the same name, in
  /// files of ir_version 4 and up). The model is read and compiled again for each different set of
  /// them that a call passes.
  std::vector<TensorInfo> default_info() const;
  /// The model's outputs, except those that depend on operators that Steep does not know. run()
  /// throws ModelError if it is asked for such an output, by name or because all outputs are asked
  /// for.
  std::vector<TensorInfo> output_info() const;
  const ModelMetadata& metadata() const;

  /// The memory and the kernels of a run of all outputs, for the dtypes and shapes of these inputs.
  /// All zero if shapes depend on data: such a graph is planned as it runs. Throws as run().
  StepPlan plan(const Inputs& inputs);
  /// The graph of all outputs, compiled for the dtypes and shapes of these inputs. Throws as run().
  std::string dump(const Inputs& inputs, DumpFormat format = DumpFormat::text);
  /// Records one event per kernel from now on, until write_profile().
  void start_profile();
  /// Writes a Chrome/Perfetto trace (ui.perfetto.dev) and stops recording. Throws IoError.
  void write_profile(const std::filesystem::path& path);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace steep
