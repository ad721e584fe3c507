// Imports an ONNX model as a Graph. Every opset is converted to one internal form: ONNX's operators
// at the newest opset that the linked ONNX library has, plus "steep." ops. Model-local functions
// are inlined.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ir/graph.h"
#include "model/read/external_data.h"
#include "steep/error.h"
#include "steep/inference.h"

namespace steep {

/// The files of a model, as they were when they were read.
struct ModelFiles {
  std::optional<FileMark> model{};  ///< none if the model came as bytes
  FileMarks data{};                 ///< external data
};

struct ImportOptions {
  Limits limits{};
  bool training = true;  ///< keep Dropout; false: every Dropout becomes an identity
  /// Leave out the outputs that need operators that Steep does not know; an error if no output
  /// remains.
  bool leave_out = false;
  /// Inputs with a default value that become inputs. Other inputs with a default become constants.
  std::set<std::string> fed{};
  /// Initializers that change while the model runs: they are states from the start, so that nothing
  /// is constant-folded from them.
  std::set<std::string> states{};
  /// Names to train or to differentiate with respect to. Constant nodes in bodies with these names
  /// become values of the outer graph, as float initializers in bodies always do.
  std::set<std::string> named{};
  bool registered = true;  ///< registered operators (steep/ops.h) are known
  /// If the file fixes the number of rows of all inputs, make it symbolic when possible
  /// (open_batch.h).
  bool open_batch = false;
  /// Files that were read before: another one, or one that was written to since, is a DataError.
  ModelFiles before{};
};

struct ImportedModel {
  Graph graph;        ///< initializers are constants with their names
  int64_t opset = 0;  ///< of the default domain in the file
  /// Names of initializers in file order, then those of float initializers in bodies, which are
  /// constants of this graph and named as in model/read/body_names.h.
  std::vector<std::string> initializers;
  std::vector<std::string> constants;  ///< names of the outputs of Constant nodes of the main graph
  /// Float constants with more than one element that cannot be trained, because they are in a body,
  /// sparse or attributes; with the reason.
  std::vector<std::pair<std::string, std::string>> inside{};
  ModelMetadata metadata;
  /// The declared type of each output; dtype and shape are set only where the file declares them.
  std::vector<Type> declared_outputs;
  /// With ImportOptions::leave_out: outputs that are not in the graph, with the reason.
  std::map<std::string, ErrorParts> left_out{};
  /// Inputs with a default value that the caller may replace: initializers that are listed as
  /// inputs, from ir_version 4 on. With their declared types.
  std::vector<std::pair<std::string, Type>> with_default{};
  /// With ImportOptions::open_batch: the number of rows that the file fixes, or 0; and the reason
  /// why it stays fixed, or "".
  int64_t fixed_rows = 0;
  std::string rows_stay{};
  ModelFiles files{};

  /// Throws ModelError when the output was left out.
  void require(const std::string& output) const;
};

/// Reads a model file. External data is read only from the model's own folder. Inlines functions
/// and branches on constants, resolves sequences, and evaluates shape arithmetic on constants.
/// Throws ModelError (unreadable, not ONNX, unknown op/domain/opset, limit exceeded, unsafe
/// external data) or ShapeError (values that do not fit their operator), both with node and op;
/// IoError when the file cannot be opened; DataError for ImportOptions::before. Frees all memory
/// when it throws.
ImportedModel import_model(const std::filesystem::path& path, const ImportOptions& options = {});
/// The same for serialised bytes. External data is refused unless `folder` is given. Initializers
/// named in `values` take their data from there, shared and not copied; it must have the type that
/// the bytes declare.
ImportedModel import_model(std::span<const std::byte> bytes, const ImportOptions& options = {},
                           const std::filesystem::path& folder = {},
                           const std::map<std::string, Tensor>& values = {});

}  // namespace steep
