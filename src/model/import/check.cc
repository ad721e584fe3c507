#include "model/import/check.h"

#include <fmt/format.h>
#include <onnx/checker.h>
#include <onnx/defs/schema.h>

#include <algorithm>
#include <unordered_set>

#include "contrib/contrib.h"
#include "model/custom/functions.h"
#include "model/import/ml.h"
#include "model/read/quote.h"
#include "steep/error.h"

namespace steep {
namespace {

constexpr int64_t kOldestOpset = 7;  // the first opset with NumPy broadcasting in all operators
constexpr const char* kExportAgain =
    "Export the model again; its file does not follow the ONNX standard.";

/// Calls `visit` on every node of the model: in graphs, in their bodies, and in functions. The
/// parser bounds the depth.
template <typename Visit>
void each_node(onnx::NodeProto* node, const Visit& visit) {
  visit(*node);
  const auto visit_all = [&](onnx::GraphProto& graph) {
    for (auto& inner : *graph.mutable_node()) each_node(&inner, visit);
  };
  for (auto& attribute : *node->mutable_attribute()) {
    if (attribute.has_g()) visit_all(*attribute.mutable_g());
    for (auto& graph : *attribute.mutable_graphs()) visit_all(graph);
  }
}

template <typename Visit>
void each_node(google::protobuf::RepeatedPtrField<onnx::NodeProto>* nodes, const Visit& visit) {
  for (auto& node : *nodes) each_node(&node, visit);
}

template <typename Visit>
void each_node(onnx::ModelProto* model, const Visit& visit) {
  each_node(model->mutable_graph()->mutable_node(), visit);
  for (auto& function : *model->mutable_functions()) each_node(function.mutable_node(), visit);
}

template <typename Visit>
void each_graph(onnx::ModelProto* model, const Visit& visit) {
  visit(*model->mutable_graph());
  each_node(model, [&](onnx::NodeProto& node) {
    for (auto& attribute : *node.mutable_attribute()) {
      if (attribute.has_g()) visit(*attribute.mutable_g());
      for (auto& graph : *attribute.mutable_graphs()) visit(graph);
    }
  });
}

// --- versions and operators ----------------------------------------------------------------------

/// Replaces "ai.onnx", another spelling of the default domain, by "".
template <typename Message>
void plain_domain(Message& m) {
  if (m.domain() == "ai.onnx") m.set_domain("");
}

void normalise_domains(onnx::ModelProto* model) {
  for (auto& import : *model->mutable_opset_import()) plain_domain(import);
  for (auto& function : *model->mutable_functions()) {
    plain_domain(function);
    for (auto& import : *function.mutable_opset_import()) plain_domain(import);
  }
  each_node(model, [](onnx::NodeProto& node) { plain_domain(node); });
}

void check_versions(const onnx::ModelProto& model) {
  if (model.ir_version() < 3 || model.ir_version() > onnx::Version::IR_VERSION) {
    throw ModelError(
        {.what = "The file has an ONNX format (ir_version) that Steep does not know.",
         .expected = fmt::format("ir_version 3 to {}", static_cast<int>(onnx::Version::IR_VERSION)),
         .received = fmt::format("{}", model.ir_version()),
         .remedy = "Export the model again, or install a newer Steep."});
  }
  const int64_t newest =
      onnx::OpSchemaRegistry::DomainToVersionRange::Instance().Map().at("").second;
  auto check = [&](const auto& imports, const std::string& where) {
    std::unordered_map<std::string, int64_t> versions;
    for (const auto& import : imports) {
      const auto [before, first] = versions.try_emplace(import.domain(), import.version());
      if (!first && before->second != import.version()) {
        throw ModelError(
            {.what = "The model imports two versions of a domain.",
             .node = quote(where),
             .received = fmt::format("domain \"{}\" at {} and {}", quote(import.domain()),
                                     before->second, import.version()),
             .remedy = kExportAgain});
      }
      if (import.domain().empty() &&
          (import.version() < kOldestOpset || import.version() > newest)) {
        throw ModelError(
            {.what = "The model uses an ONNX opset that Steep cannot read.",
             .node = quote(where),
             .expected = fmt::format("opset {} to {}", kOldestOpset, newest),
             .received = fmt::format("opset {}", import.version()),
             .remedy = import.version() > newest
                           ? "Export with an older opset, or install a newer Steep."
                           : "Upgrade it with onnx.version_converter, or export again."});
      }
    }
  };
  check(model.opset_import(), "");
  for (const auto& function : model.functions()) check(function.opset_import(), function.name());
}

/// Collects all nodes that Steep does not know, so that the user sees them all at once.
class UnknownOps {
 public:
  explicit UnknownOps(const onnx::ModelProto& model) {
    for (const auto& function : model.functions()) functions_.insert(function_id(function));
  }

  void look_at(const onnx::NodeProto& node, int64_t opset) {
    if (functions_.count(function_id(node)) != 0 || says_gradient(node) || is_steep(node) ||
        is_contrib(node) || is_ml(node))
      return;
    const std::string op = node.domain().empty()
                               ? quote(node.op_type())
                               : quote(node.domain()) + "." + quote(node.op_type());
    if ((node.domain() == kTrainingDomain || node.domain() == kPreviewDomain) &&
        onnx::OpSchemaRegistry::Schema(node.op_type(), 1, node.domain()) != nullptr) {
      return;
    }
    if (!node.domain().empty()) {
      foreign_domains_.insert(quote(node.domain()));
      add(op,
          std::string(node.domain() == kContribDomain ? why_contrib_is_refused(node.op_type())
                      : node.domain() == kMlDomain    ? why_ml_is_refused(node.op_type())
                                                      : ""),
          node);
      return;
    }
    if (opset == 0) {
      add(op, "the model imports no opset of the default domain", node);
    } else if (onnx::OpSchemaRegistry::Schema(node.op_type(), static_cast<int>(opset)) == nullptr) {
      const onnx::OpSchema* newest = onnx::OpSchemaRegistry::Schema(node.op_type());
      add(op,
          newest ? fmt::format("exists from opset {}, the model imports {}",
                               newest->since_version(), opset)
                 : "",
          node);
    }
  }

  size_t count() const { return count_; }

  ErrorParts error() const {
    std::string domains;
    for (const auto& d : foreign_domains_) domains += (domains.empty() ? "" : ", ") + d;
    return {
        .what = count_ == 1
                    ? "The model has an operator that Steep does not know."
                    : fmt::format("The model has {} operators that Steep does not know.", count_),
        .node = first_node_,
        .op = first_op_,
        .expected =
            "operators of the ONNX standard, or functions defined in the model or registered",
        .received =
            listing_ + (count_ > kListed ? fmt::format("; and {} more", count_ - kListed) : ""),
        .remedy = domains.empty()
                      ? "Check the operator's name and the model's opset, and export again."
                      : "Export without the extensions of domain " + domains +
                            " (for a file that another runtime optimised: train the original), or "
                            "register what they mean (docs/your_own.md)."};
  }

 private:
  static constexpr size_t kListed = 50;

  void add(const std::string& op, const std::string& why, const onnx::NodeProto& node) {
    const std::string name = quote(display_name(node));
    if (count_++ == 0) {
      first_op_ = op;
      first_node_ = name;
    }
    if (count_ > kListed) return;
    listing_ += fmt::format("{}{} (node {}{}{})", listing_.empty() ? "" : "; ", op, name,
                            why.empty() ? "" : "; ", why);
  }

  std::unordered_set<std::string> functions_;
  std::set<std::string> foreign_domains_;
  size_t count_ = 0;
  std::string first_op_, first_node_, listing_;
};

/// Calls keep(element) for each element, in order, and removes those for which it returns false.
template <typename T, typename Keep>
void keep_if(google::protobuf::RepeatedPtrField<T>* list, const Keep& keep) {
  google::protobuf::RepeatedPtrField<T> result;
  for (T& element : *list) {
    if (keep(element)) *result.Add() = std::move(element);
  }
  list->Swap(&result);
}

/// The functions that contain an operator that Steep does not know, directly or through calls.
std::set<std::string> unknown_functions(onnx::ModelProto* model, UnknownOps& unknown) {
  std::set<std::string> names;
  for (bool again = true; again;) {
    again = false;
    for (auto& function : *model->mutable_functions()) {
      if (names.count(function_id(function)) != 0) continue;
      bool bad = false;
      each_node(function.mutable_node(), [&](const onnx::NodeProto& node) {
        const size_t before = unknown.count();
        unknown.look_at(node, default_opset(function.opset_import()));
        bad = bad || unknown.count() != before || names.count(function_id(node)) != 0;
      });
      if (bad) again = names.insert(function_id(function)).second;
    }
  }
  return names;
}

/// What `strings` of read_model() is about: see prepare_ml().
using StringValues = std::map<std::string, std::string>;

/// Why an output is left out, in the words of `error`.
ErrorParts about_output(const std::string& name, bool strings, ErrorParts error) {
  error.what = strings
                   ? fmt::format("The output '{}' holds strings.", quote(name))
                   : fmt::format("The output '{}' depends on operators that Steep does not know.",
                                 quote(name));
  return error;
}

/// Removes nodes that Steep does not know, the nodes that read their results or `strings`, and the
/// nodes that only removed nodes read. Adds the removed outputs to `left_out`. Returns false and
/// changes nothing when no output would remain.
bool leave_out(onnx::ModelProto* model, const StringValues& strings,
               std::map<std::string, ErrorParts>* left_out, const ErrorParts& error) {
  onnx::GraphProto& graph = *model->mutable_graph();
  UnknownOps unknown(*model);
  const std::set<std::string> functions = unknown_functions(model, unknown);
  const int64_t opset = default_opset(model->opset_import());
  std::unordered_set<std::string> removals, reads_of_removals, other_reads;
  for (const auto& [name, maker] : strings) removals.insert(name);
  std::unordered_set<const onnx::NodeProto*> leaving;
  for (auto& node : *graph.mutable_node()) {
    bool leaves = false;
    std::vector<std::string> reads;
    each_node(&node, [&](const onnx::NodeProto& inner) {
      const size_t before = unknown.count();
      unknown.look_at(inner, opset);
      leaves = leaves || unknown.count() != before || functions.count(function_id(inner)) != 0;
      for (const auto& name : inner.input()) {
        leaves = leaves || removals.count(name) != 0;
        reads.push_back(name);
      }
    });
    (leaves ? reads_of_removals : other_reads).insert(reads.begin(), reads.end());
    if (!leaves) continue;
    leaving.insert(&node);
    for (const auto& name : node.output()) {
      if (!name.empty()) removals.insert(name);
    }
  }
  const auto& outputs = graph.output();
  if (std::all_of(outputs.begin(), outputs.end(),
                  [&](const auto& output) { return removals.count(output.name()) != 0; }))
    return false;
  for (const auto& output : outputs) {
    other_reads.insert(output.name());
    if (removals.count(output.name()) == 0) continue;
    left_out->emplace(output.name(), about_output(output.name(), unknown.count() == 0, error));
  }
  for (const auto& tensor : graph.initializer()) other_reads.insert(tensor.name());
  keep_if(graph.mutable_initializer(),
          [&](const auto& tensor) { return strings.count(tensor.name()) == 0; });
  keep_if(graph.mutable_node(), [&](const auto& node) { return leaving.count(&node) == 0; });
  keep_if(graph.mutable_output(),
          [&](const auto& output) { return removals.count(output.name()) == 0; });
  keep_if(graph.mutable_input(), [&](const auto& input) {
    return reads_of_removals.count(input.name()) == 0 || other_reads.count(input.name()) != 0;
  });
  keep_if(model->mutable_functions(),
          [&](const auto& function) { return functions.count(function_id(function)) == 0; });
  return true;
}

/// The fault of a model that computes with strings.
ErrorParts string_error(const StringValues& strings) {
  return {.what = "The model's labels are strings.",
          .node = quote(strings.begin()->second),
          .expected = "numbers",
          .received = quote(strings.begin()->first),
          .remedy =
              "Use the scores, which are another output; or export the model with numbers as "
              "classes."};
}

/// Removes unknown operators, and those of strings, if allowed and if outputs remain, see
/// leave_out(); otherwise throws.
void check_operators(onnx::ModelProto* model, const StringValues& strings, bool may_leave_out,
                     std::map<std::string, ErrorParts>* left_out) {
  UnknownOps unknown(*model);
  auto look = [&](auto* nodes, int64_t opset) {
    each_node(nodes, [&](onnx::NodeProto& node) { unknown.look_at(node, opset); });
  };
  look(model->mutable_graph()->mutable_node(), default_opset(model->opset_import()));
  for (auto& function : *model->mutable_functions()) {
    look(function.mutable_node(), default_opset(function.opset_import()));
  }
  if (unknown.count() == 0 && strings.empty()) return;
  ErrorParts error = unknown.count() == 0 ? string_error(strings) : unknown.error();
  if (!may_leave_out || !leave_out(model, strings, left_out, error)) {
    throw ModelError(std::move(error));
  }
}

// --- names and tensors ---------------------------------------------------------------------------

void check_text(const std::string& text) {
  if (is_utf8(text)) return;
  throw ModelError({.what = "A name in the model is not valid UTF-8.",
                    .node = quote(text),
                    .remedy = kExportAgain});
}

void check_names(onnx::ModelProto* model) {
  each_graph(model, [](onnx::GraphProto& graph) {
    for (const auto& v : graph.input()) check_text(v.name());
    for (const auto& v : graph.output()) check_text(v.name());
    for (const auto& t : graph.initializer()) check_text(t.name());
    for (const auto& v : graph.input()) {
      for (const auto& d : v.type().tensor_type().shape().dim()) check_text(d.dim_param());
    }
  });
  for (const auto& function : model->functions()) {
    check_text(function.name());
    for (const auto& name : function.input()) check_text(name);
    for (const auto& name : function.output()) check_text(name);
  }
  each_node(model, [](onnx::NodeProto& node) {
    check_text(node.name());
    check_text(node.op_type());
    for (const auto& name : node.input()) check_text(name);
    for (const auto& name : node.output()) check_text(name);
    for (const auto& a : node.attribute()) check_text(a.name());
  });
}

void take_tensors(onnx::AttributeProto& attribute, const onnx::NodeProto& node,
                  TensorTable& tensors) {
  const std::string name = display_name(node);
  if (attribute.name() == "sparse_value" && attribute.has_sparse_tensor())  // of a Constant
    return tensors.take_sparse(&attribute, name);
  if (attribute.has_sparse_tensor() || attribute.sparse_tensors_size() > 0) {
    throw ModelError({.what = "A node has a sparse tensor.",
                      .node = quote(name),
                      .op = quote(node.op_type()),
                      .remedy = "Store it as a dense tensor."});
  }
  if (attribute.has_t()) tensors.take(attribute.mutable_t(), name);
  for (auto& tensor : *attribute.mutable_tensors()) tensors.take(&tensor, name);
}

/// Reads every tensor of the model; nothing else does. Sparse tensors become dense; returns the
/// names of the sparse float initializers.
std::set<std::string> take_tensors(onnx::ModelProto* model, TensorTable& tensors) {
  std::set<std::string> sparse_ones;
  each_graph(model, [&](onnx::GraphProto& graph) {
    const bool outermost = &graph == model->mutable_graph();
    for (auto& tensor : *graph.mutable_initializer()) {
      outermost ? tensors.take_initializer(&tensor) : tensors.take(&tensor, tensor.name());
    }
    for (const auto& sparse : graph.sparse_initializer()) {
      const std::string& name = sparse.values().name();
      check_text(name);
      tensors.take_sparse(sparse, name, graph.add_initializer());
      if (is_float(static_cast<DType>(sparse.values().data_type()))) sparse_ones.insert(name);
    }
    graph.clear_sparse_initializer();
  });
  auto take_all = [&](auto* attributes, const onnx::NodeProto& node) {
    for (auto& attribute : *attributes) take_tensors(attribute, node, tensors);
  };
  each_node(model, [&](onnx::NodeProto& n) { take_all(n.mutable_attribute(), n); });
  for (auto& function : *model->mutable_functions()) {
    onnx::NodeProto node;
    node.set_name(function.name());
    take_all(function.mutable_attribute_proto(), node);
  }
  return sparse_ones;
}

// --- ONNX's checker ------------------------------------------------------------------------------

/// ONNX's checker requires a shape on every input and output, but exporters may leave it out. Adds
/// empty shapes; returns the names of the inputs without a shape.
std::set<std::string> add_missing_shapes(onnx::GraphProto* graph) {
  std::set<std::string> unranked;
  auto add = [](onnx::ValueInfoProto& value) {
    if (!value.type().has_tensor_type() || value.type().tensor_type().has_shape()) return false;
    value.mutable_type()->mutable_tensor_type()->mutable_shape();
    return true;
  };
  for (auto& value : *graph->mutable_input()) {
    if (add(value)) unranked.insert(value.name());
  }
  for (auto& value : *graph->mutable_output()) add(value);
  return unranked;
}

void run_checker(const onnx::ModelProto& model) {
  try {
    onnx::checker::check_model(model, /*full_check=*/false,
                               /*skip_opset_compatibility_check=*/true);
  } catch (const onnx::checker::ValidationError& e) {
    // "…\n\n==> Context: Bad node spec for node. Name: n OpType: Op"
    const std::string text = e.what();
    const std::string marker = "Bad node spec for node. Name: ";
    ErrorParts parts{
        .what = "ONNX's checker refuses the model.",
        .expected = "a model that follows the ONNX standard",
        .remedy = "Export the model again; onnx.checker.check_model shows the same fault."};
    const size_t context = text.find("\n\n==> Context: ");
    parts.received = text.substr(0, context);
    if (const size_t at = text.rfind(marker); at != std::string::npos) {
      const std::string rest = text.substr(at + marker.size());
      const size_t op = rest.rfind(" OpType: ");
      parts.node = quote(rest.substr(0, op));
      if (op != std::string::npos) parts.op = quote(rest.substr(op + 9));
    }
    if (!is_utf8(parts.received) || parts.received.size() > 2000)
      parts.received = quote(parts.received);
    throw ModelError(std::move(parts));
  }
}

}  // namespace

CheckedModel read_model(std::span<const std::byte> bytes, const ImportOptions& options,
                        const std::filesystem::path& folder,
                        const std::map<std::string, Tensor>& values) {
  CheckedModel model{.proto = parse_model(bytes, options.limits),
                     .tensors = std::make_unique<TensorTable>(folder, options.limits.max_bytes,
                                                              values, options.before.data),
                     .unranked_inputs = {}};
  model.body_names = BodyNames(bytes);
  model.proto
      .clear_training_info();  // ONNX's training extension: Steep derives training from the graph
  model.proto.mutable_graph()->clear_value_info();  // Steep infers types itself
  if (options.registered) model.gradients = add_custom_functions(&model.proto);
  normalise_domains(&model.proto);
  move_contrib(&model.proto);
  check_names(&model.proto);
  const StringValues strings = prepare_ml(&model.proto);
  check_versions(model.proto);
  check_operators(&model.proto, strings, options.leave_out, &model.left_out);
  model.sparse = take_tensors(&model.proto, *model.tensors);
  model.unranked_inputs = add_missing_shapes(model.proto.mutable_graph());
  const int64_t version = model.proto.ir_version();
  // Many files of version 3 do not list initializers as inputs, which version 4 allows.
  model.proto.set_ir_version(std::max<int64_t>(version, 4));
  run_checker(model.proto);
  model.proto.set_ir_version(version);
  return model;
}

}  // namespace steep
