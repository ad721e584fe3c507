// ONNX model → Graph. Every opset is raised to one internal form: ONNX's operators as they are at
// the newest opset that the linked ONNX library knows, plus "steep." ops. Model-local functions are
// inlined.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ir/graph.h"
#include "steep/error.h"
#include "steep/inference.h"

namespace steep {

struct ImportOptions {
  Limits limits{};
  bool training = true;  ///< keep Dropout as dropout; false: every Dropout is an identity
  /// Leave out the outputs that need operators that Steep does not know, unless all do.
  bool leave_out = false;
  /// Inputs that have a default, to be inputs. Others of the kind are constants.
  std::set<std::string> fed{};
  /// Initializers that change while the model runs: states from the start, so that nothing is
  /// computed ahead from what they hold.
  std::set<std::string> states{};
  /// Names to train, or to differentiate with respect to. Constant nodes in bodies that have these
  /// names become values of the outer graph, as float initializers in bodies always do.
  std::set<std::string> named{};
  bool registered = true;  ///< operators that are registered (steep/ops.h) are known
  /// A number of rows that the file fixes for all inputs becomes open where it can (open_batch.h).
  bool open_batch = false;
};

struct ImportedModel {
  Graph graph;        ///< initializers are constants under their own names
  int64_t opset = 0;  ///< of the default domain in the file
  /// Their names, in the order of the file; then those of float initializers within bodies, called
  /// as in model/read/body_names.h, which are constants of this graph.
  std::vector<std::string> initializers;
  std::vector<std::string> constants;  ///< names of what Constant nodes of the main graph make
  /// Float constants of more than one element that cannot be trained where they stand: in bodies,
  /// or sparse. And why.
  std::vector<std::pair<std::string, std::string>> inside{};
  ModelMetadata metadata;
  /// What the file says of each output; a dtype and shape only where it says one.
  std::vector<Type> declared_outputs;
  /// ImportOptions::leave_out: outputs that are not in the graph, and what is wrong with them.
  std::map<std::string, ErrorParts> left_out{};
  /// Inputs whose default may be replaced by feeding them: from ir_version 4 on, initializers that
  /// are listed as inputs. What the file says of them.
  std::vector<std::pair<std::string, Type>> with_default{};
  /// ImportOptions::open_batch: the number of rows that the file fixes, or 0; and why it stays so,
  /// or "".
  int64_t fixed_rows = 0;
  std::string rows_stay{};

  /// Throws ModelError when the output was left out.
  void require(const std::string& output) const;
};

/// Reads a model file; external data is read from the model's own folder only. Functions and
/// branches on constants are inlined, sequences resolved, shape arithmetic on constants carried
/// out. Throws ModelError (unreadable, not ONNX, unknown op/domain/opset, limit exceeded, unsafe
/// external data) or ShapeError (values that do not fit their operator), naming node and op;
/// IoError when the file cannot be opened. Never leaves memory behind.
ImportedModel import_model(const std::filesystem::path& path, const ImportOptions& options = {});
/// The same from serialised bytes. External data is refused unless `folder` is given. Initializers
/// named in `given` have their data there, shared and not copied, whatever the bytes hold; of the
/// type that the bytes say.
ImportedModel import_model(std::span<const std::byte> bytes, const ImportOptions& options = {},
                           const std::filesystem::path& folder = {},
                           const std::map<std::string, Tensor>& given = {});

}  // namespace steep
