#include "model/import/import.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <new>
#include <utility>

#include "model/import/check.h"
#include "model/import/importer.h"
#include "model/import/ml.h"
#include "model/import/open_batch.h"
#include "model/read/library_errors.h"
#include "model/read/quote.h"
#include "runtime/budget.h"
#include "runtime/memory.h"
#include "steep/error.h"

namespace steep {
namespace {

using Extent = onnx::TensorShapeProto::Dimension;

constexpr const char* kRefused = "ONNX's library refuses the model.";
constexpr const char* kExportAgain =
    "Export the model again; onnx.checker.check_model may say more.";

/// `text` in a form that Python can decode. For informational text only.
std::string readable(const std::string& text) { return is_utf8(text) ? text : quote(text); }

ModelMetadata metadata_of(const onnx::ModelProto& proto) {
  ModelMetadata data{.producer = readable(proto.producer_name()),
                     .graph_name = readable(proto.graph().name()),
                     .graph_description = readable(proto.graph().doc_string()),
                     .domain = readable(proto.domain()),
                     .description = readable(proto.doc_string()),
                     .version = proto.model_version()};
  for (const auto& entry : proto.metadata_props()) {
    data.custom[readable(entry.key())] = readable(entry.value());
  }
  return data;
}

/// The type that the file declares, for information: nothing is computed from it.
Type declared_type(const onnx::ValueInfoProto& value) {
  const auto& tensor = value.type().tensor_type();
  Type type{static_cast<DType>(tensor.elem_type()), std::nullopt};
  if (!tensor.has_shape() || tensor.shape().dim_size() == 0) return type;  // see add_missing_shapes
  type.shape.emplace();
  for (const auto& dim : tensor.shape().dim()) {
    if (dim.has_dim_value() && dim.dim_value() >= 0) {
      type.shape->emplace_back(dim.dim_value());
    } else {
      type.shape->push_back(dim.dim_param().empty() ? Dim()
                                                    : Dim::symbol(readable(dim.dim_param())));
    }
  }
  return type;
}

ImportedModel to_fixed_graph(const CheckedModel& source, const ImportOptions& options) {
  ImportedModel model;
  model.opset = default_opset(source.proto.opset_import());
  model.metadata = metadata_of(source.proto);
  model.graph.node_limit = options.limits.max_nodes;
  Importer importer(source, model.graph, options);
  importer.run();
  for (const auto& tensor : source.proto.graph().initializer()) {
    if (source.sparse.count(tensor.name()) == 0) model.initializers.push_back(tensor.name());
  }
  model.initializers.insert(model.initializers.end(), importer.weights().lifted().begin(),
                            importer.weights().lifted().end());
  const std::map<std::string, std::string>& inside = importer.weights().inside();
  model.inside.assign(inside.begin(), inside.end());
  for (auto& setting : ml_settings(source.proto.graph()))
    model.inside.push_back(std::move(setting));
  for (const std::string& name : source.sparse)
    model.inside.emplace_back(name, "is a sparse tensor");
  for (const auto& node : source.proto.graph().node()) {
    if (node.op_type() == "Constant" && node.domain().empty() && node.output_size() == 1) {
      model.constants.push_back(node.output(0));
    }
  }
  model.left_out = source.left_out;
  model.files.data = source.tensors->data_files();
  std::map<std::string, Type> inputs;
  for (const auto& input : source.proto.graph().input()) {
    inputs.emplace(input.name(), declared_type(input));
  }
  for (const std::string& name : model.initializers) {
    const auto input = inputs.find(name);
    if (source.proto.ir_version() < 4 || input == inputs.end()) continue;
    model.with_default.emplace_back(name, input->second);
  }
  for (const auto& output : source.proto.graph().output()) {
    model.declared_outputs.push_back(declared_type(output));
  }
  model.graph.prune();
  return model;
}

/// Calls `set` on the first extent of every input that is fed.
void set_rows(onnx::GraphProto* graph, const std::function<void(Extent*)>& set) {
  std::set<std::string> initializers;
  for (const auto& tensor : graph->initializer()) initializers.insert(tensor.name());
  for (auto& input : *graph->mutable_input()) {
    if (initializers.count(input.name()) != 0) continue;
    set(input.mutable_type()->mutable_tensor_type()->mutable_shape()->mutable_dim(0));
  }
}

/// Of a file whose inputs leave the number of rows open: if a Reshape inside fixes it, makes it
/// open there, too; or fixes the inputs, and names the Reshape.
ImportedModel to_open_graph(CheckedModel& source, const ImportOptions& options) {
  ImportedModel model = to_fixed_graph(source, options);
  onnx::GraphProto* graph = source.proto.mutable_graph();
  const std::string symbol = options.open_batch ? open_rows(*graph) : "";
  if (symbol.empty()) return model;
  const RowsInside inside = rows_inside(model.graph, symbol);
  if (inside.rows == 0) return model;
  model.fixed_rows = inside.rows;
  const std::string why = open_batch(model.graph, symbol, inside.rows);
  if (why.empty()) return model;
  set_rows(graph, [&](Extent* extent) { extent->set_dim_value(inside.rows); });
  model = to_fixed_graph(source, options);
  model.fixed_rows = inside.rows;
  model.rows_stay = fmt::format("Reshape '{}' holds it, and {}", inside.node, why);
  return model;
}

ImportedModel to_graph(CheckedModel& source, const ImportOptions& options) {
  onnx::GraphProto* graph = source.proto.mutable_graph();
  const int64_t rows = options.open_batch ? fixed_batch(*graph) : 0;
  if (rows == 0) return to_open_graph(source, options);
  std::string why;
  const std::string symbol = batch_symbol(*graph);
  set_rows(graph, [&](Extent* extent) { extent->set_dim_param(symbol); });
  try {
    ImportedModel model = to_fixed_graph(source, options);
    model.fixed_rows = rows;
    why = open_batch(model.graph, symbol, rows);
    if (why.empty()) return model;
  } catch (const ModelError& error) {
    why = error.parts().what;
  } catch (const ShapeError& error) {
    why = error.parts().what;
  }
  set_rows(graph, [&](Extent* extent) { extent->set_dim_value(rows); });
  ImportedModel model = to_fixed_graph(source, options);
  model.fixed_rows = rows;
  model.rows_stay = std::move(why);
  return model;
}

[[noreturn]] void refuse_changed(const std::filesystem::path& path) {
  throw DataError({.what = "The model file was written to, or replaced, since it was read.",
                   .node = quote(path.string()),
                   .expected = "the file that was read",
                   .received = "another file, or a later state",
                   .remedy = "Make a new session, from the model as it is now."});
}

}  // namespace

void ImportedModel::require(const std::string& output) const {
  const auto found = left_out.find(output);
  if (found != left_out.end()) throw ModelError(found->second);
}

ImportedModel import_model(std::span<const std::byte> bytes, const ImportOptions& options,
                           const std::filesystem::path& folder,
                           const std::map<std::string, Tensor>& values) {
  const Budget budget(options.limits);
  return with_our_errors(kRefused, kExportAgain, [&] {
    CheckedModel source = read_model(bytes, options, folder, values);
    return to_graph(source, options);
  });
}

ImportedModel import_model(const std::filesystem::path& path, const ImportOptions& options) {
  const Budget budget(options.limits);
  return with_our_errors(kRefused, kExportAgain, [&] {
    std::filesystem::path folder = path.parent_path();
    if (folder.empty()) folder = ".";
    FileMark mark;
    CheckedModel source = [&] {
      const std::string bytes =
          read_file(path, options.limits.max_bytes, &mark);  // released before the import starts
      if (options.before.model && *options.before.model != mark) refuse_changed(path);
      return read_model(std::as_bytes(std::span(bytes)), options, folder);
    }();
    ImportedModel model = to_graph(source, options);
    model.files.model = mark;
    return model;
  });
}

}  // namespace steep
