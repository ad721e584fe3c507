// The table of import handlers: rows {domain, operator, first opset} → handler. An operator without
// a row is imported unchanged.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "model/import/importer.h"

namespace steep {

using Bindings = std::vector<Binding>;

/// Writes the node into Importer::graph(). Returns its outputs in order; outputs that nothing reads
/// may be missing. Throws ModelError and ShapeError, which need not name the node.
using Handler = Bindings (*)(Importer& importer, FileNode& node);

struct HandlerRow {
  std::string_view domain, op;
  int since;  ///< first version of the domain, valid up to the next row
  Handler import;
};

/// All rows, by domain, operator and version. The rows of com.microsoft come from
/// contrib/contrib.h, those of ai.onnx.ml from ml.h.
std::span<const HandlerRow> handler_rows();
/// The handler for the domain's version; import_as_is when there is no row.
Handler find_handler(std::string_view domain, std::string_view op, int64_t version);

// upgraded.cc: operators on tensors and sequences, in their newest form.
using UpgradeRule = Bindings (*)(const Call& call);
Bindings import_upgraded(Importer& importer, FileNode& node, UpgradeRule rule);
/// A handler that applies a rule of model/upgrade/rules.h.
template <UpgradeRule rule>
Bindings upgraded(Importer& importer, FileNode& node) {
  return import_upgraded(importer, node, rule);
}
/// Throws ModelError when the domain is unknown.
Bindings import_as_is(Importer& importer, FileNode& node);

// branch.cc
Bindings import_if(Importer& importer, FileNode& node);

// loop.cc
Bindings import_loop(Importer& importer, FileNode& node);
Bindings import_scan(Importer& importer, FileNode& node);
Bindings import_batched_scan(Importer& importer, FileNode& node);

// inline.cc: SequenceMap and FlexAttention, which ONNX defines as functions that contain their
// bodies.
Bindings import_with_bodies(Importer& importer, FileNode& node);

// gradient.cc: ai.onnx.preview.training.Gradient
Bindings import_gradient(Importer& importer, FileNode& node);

// contrib.cc
Bindings import_contrib(Importer& importer, FileNode& node);

}  // namespace steep
