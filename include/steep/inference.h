// Running a model forward, without training it.
//
//   #include <steep/inference.h>
//
//   steep::InferenceSession session("model.onnx");
//   std::vector<steep::Tensor> results = session.run({{"x", x}});
//
// Everything that fails throws a steep::Error (steep/error.h).
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
  bool optimize = true;  ///< rewrite the graph (fusion and the like) before it is planned
  /// Of these, those that are left out, by name; one that does not exist is a ModelError.
  std::vector<std::string> disabled_passes{};
  int threads = 0;            ///< at most so many; 0: as many as OpenMP gives the caller
  uint64_t seed = 0;          ///< of random operators
  bool check_finite = false;  ///< DataError names the first node that makes NaN or infinity; slow
  Limits limits{};
  /// Where to run, in the order in which a node is offered; what none of these takes runs on the
  /// CPU. Empty: there alone.
  std::vector<ProviderChoice> providers{};
};

/// What a model says about itself.
struct ModelMetadata {
  std::string producer;
  std::string graph_name;
  std::string graph_description;
  std::string domain;
  std::string description;
  int64_t version = 0;
  std::map<std::string, std::string> custom{};
};

/// A model, compiled for each set of input shapes at its first run. Dropout is the identity.
/// run() may be called from several threads; runs take turns.
class InferenceSession {
 public:
  using Inputs = std::map<std::string, Tensor>;

  /// Throws ModelError (unreadable, unknown operators), IoError.
  explicit InferenceSession(const std::filesystem::path& model, InferenceOptions options = {});
  /// From a serialised model. External data is refused unless `folder` says where it lies.
  explicit InferenceSession(std::span<const std::byte> model, InferenceOptions options = {},
                            const std::filesystem::path& folder = {});
  ~InferenceSession();
  InferenceSession(InferenceSession&&) noexcept;
  InferenceSession& operator=(InferenceSession&&) noexcept;

  /// The outputs named, in that order; none named: all, in the order of output_info(). What no
  /// named output needs is not computed. Throws DataError (an input missing or unknown, an output
  /// unknown, bad values), ShapeError (dtype, rank or extent of an input), ProviderError (no kernel
  /// for a node).
  std::vector<Tensor> run(const Inputs& inputs, std::span<const std::string> outputs = {});

  /// As run(), for inputs and outputs of any kind: sequences, optionals.
  std::vector<Datum> run_data(const std::map<std::string, Datum>& inputs,
                              std::span<const std::string> outputs = {});

  std::vector<TensorInfo> input_info() const;  ///< what run() must be fed
  /// What run() may be fed, too: inputs with a default (initializers of the same name, in files of
  /// ir_version 4 and up). For each choice of them the model is read and compiled anew.
  std::vector<TensorInfo> default_info() const;
  /// The model's outputs, but those that need operators that Steep does not know: naming one of
  /// these, or none where there is one, throws ModelError.
  std::vector<TensorInfo> output_info() const;
  const ModelMetadata& metadata() const;

  /// The graph of all outputs, compiled for inputs like these, whose values are not looked at.
  /// Throws as run() does.
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
