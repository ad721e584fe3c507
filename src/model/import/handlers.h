// Who imports which operator: one table of rows {domain, operator, since which opset} → handler. An
// operator without a row goes into the graph as it is.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "model/import/importer.h"

namespace steep {

using Bindings = std::vector<Binding>;

/// Writes the node into Importer::graph(). Returns its outputs, in order; those that nothing reads
/// may be missing. Throws ModelError and ShapeError, which need not name the node.
using Handler = Bindings (*)(Importer& importer, FileNode& node);

struct HandlerRow {
  std::string_view domain, op;
  int since;  ///< the version of the domain from which on it holds, until the next row's
  Handler import;
};

/// All rows, by domain, operator and version. Those of com.microsoft are contrib/contrib.h's list.
std::span<const HandlerRow> handler_rows();
/// The row's of the domain's version; import_as_is where there is none.
Handler find_handler(std::string_view domain, std::string_view op, int64_t version);

// raised.cc: operators on tensors and sequences, in the form that they have today.
using RaiseRule = Bindings (*)(const Call& call);
Bindings import_raised(Importer& importer, FileNode& node, RaiseRule rule);
/// The handler that is a rule of model/raise/rules.h.
template <RaiseRule rule>
Bindings raised(Importer& importer, FileNode& node) {
  return import_raised(importer, node, rule);
}
/// Throws ModelError where the domain is not known.
Bindings import_as_is(Importer& importer, FileNode& node);

// branch.cc
Bindings import_if(Importer& importer, FileNode& node);

// loop.cc
Bindings import_loop(Importer& importer, FileNode& node);
Bindings import_scan(Importer& importer, FileNode& node);
Bindings import_batched_scan(Importer& importer, FileNode& node);

// inline.cc: SequenceMap and FlexAttention, whose functions ONNX writes around their bodies.
Bindings import_with_bodies(Importer& importer, FileNode& node);

// gradient.cc: ai.onnx.preview.training.Gradient
Bindings import_gradient(Importer& importer, FileNode& node);

// contrib.cc
Bindings import_contrib(Importer& importer, FileNode& node);

}  // namespace steep
