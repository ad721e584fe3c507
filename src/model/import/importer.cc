#include "model/import/importer.h"

#include <fmt/format.h>

#include <algorithm>

#include "model/import/body.h"
#include "model/import/handlers.h"
#include "model/import/inline.h"
#include "model/read/quote.h"
#include "ops/build.h"
#include "ops/onnx_proto.h"
#include "ops/shape_arithmetic.h"
#include "ops/wide.h"
#include "runtime/budget.h"
#include "runtime/counted.h"
#include "steep/error.h"

namespace steep {
namespace {

Dim dim_from_onnx(const onnx::TensorShapeProto::Dimension& dim, const std::string& name,
                  size_t axis) {
  if (dim.has_dim_value()) {
    if (dim.dim_value() >= 0) return dim.dim_value();
    throw ModelError({.what = "An input has a negative extent.",
                      .node = quote(name),
                      .expected = "a number that is not negative, or a named dimension",
                      .received = fmt::format("{} on axis {}", dim.dim_value(), axis),
                      .remedy = "Name the dimension (dim_param) instead."});
  }
  if (!dim.dim_param().empty()) return Dim::symbol(dim.dim_param());
  // Give the extent a symbol: an unknown extent could never be shown equal to itself.
  return Dim::symbol(fmt::format("{}.dim{}", name, axis));
}

Type type_from_onnx(const onnx::ValueInfoProto& value, bool ranked) {
  if (!value.type().has_tensor_type()) {
    Type type = type_from_proto(value.type());
    for (size_t i = 0; type.shape && i < type.shape->size(); ++i) {
      // A symbol means one number, but the tensors of a sequence may differ in extent.
      if (!(*type.shape)[i].known()) (*type.shape)[i] = Dim();
    }
    if (size_of(type.dtype) != 0) return type;
    throw ModelError({.what = "The type of an input is not supported.",
                      .node = quote(value.name()),
                      .expected = "dense tensors, sequences or optionals of them",
                      .remedy = "Export the model with one input for each tensor."});
  }
  const auto& tensor = value.type().tensor_type();
  Type type{dtype_from_onnx(tensor.elem_type(), value.name()), std::nullopt};
  if (!ranked) return type;
  type.shape.emplace();
  for (const auto& dim : tensor.shape().dim()) {
    type.shape->push_back(dim_from_onnx(dim, value.name(), type.shape->size()));
  }
  return type;
}

/// Rethrows an error of a callee; an error without a node gets this node's name.
[[noreturn]] void rethrow_at(const onnx::NodeProto& node, const std::string& prefix,
                             const ModelError& e) {
  if (!e.parts().op.empty()) throw e;
  ErrorParts parts = e.parts();
  if (!parts.node.empty())
    parts.received += fmt::format("{}at {}", parts.received.empty() ? "" : " ", parts.node);
  parts.node = quote(prefix + display_name(node));
  parts.op = quote(node.op_type());
  throw ModelError(std::move(parts));
}

}  // namespace

// --- names ---------------------------------------------------------------------------------------

const Binding* NameScope::find(const std::string& name) const {
  for (const NameScope* s = this; s != nullptr; s = s->outer) {
    if (auto it = s->names.find(name); it != s->names.end()) return &it->second;
  }
  return nullptr;
}

const onnx::AttributeProto* CallFrame::resolve(const onnx::AttributeProto& attribute) const {
  if (attribute.ref_attr_name().empty()) return &attribute;
  auto it = arguments.find(attribute.ref_attr_name());
  return it == arguments.end() ? nullptr : it->second;
}

std::string FileNode::name() const { return frame.prefix + display_name(proto); }

const onnx::GraphProto& FileNode::body(const char* attribute) const {
  for (const auto& entry : proto.attribute()) {
    if (entry.name() != attribute) continue;
    const onnx::AttributeProto* value = frame.resolve(entry);
    if (value != nullptr && value->has_g()) return value->g();
  }
  throw ModelError({.what = "A node of control flow lacks a graph.",
                    .expected = attribute,
                    .remedy = "Export the model again."});
}

NamesRead::NamesRead(const onnx::ModelProto& model) {
  note(model.graph().node());
  for (const auto& output : model.graph().output()) insert(output.name());
  for (const auto& f : model.functions()) {
    note(f.node());
    names_.insert(f.output().begin(), f.output().end());
  }
}

void NamesRead::note(const NodeProtos& nodes) {
  for (const auto& node : nodes) {
    names_.insert(node.input().begin(), node.input().end());
    for (const auto& attribute : node.attribute()) {
      auto note_body = [&](const onnx::GraphProto& body) {
        note(body.node());
        for (const auto& output : body.output()) insert(output.name());
      };
      if (attribute.has_g()) note_body(attribute.g());
      for (const auto& body : attribute.graphs()) note_body(body);
      insert(attribute.s());  // Gradient names the values to differentiate
      names_.insert(attribute.strings().begin(), attribute.strings().end());
    }
  }
}

// --- the model -----------------------------------------------------------------------------------

Importer::Importer(const CheckedModel& model, Graph& graph, const ImportOptions& options)
    : model_(model),
      options_(options),
      graph_(&graph),
      read_(model.proto),
      weights_(model, graph, options.named) {
  for (const auto& f : model.proto.functions()) functions_.emplace(function_id(f), &f);
}

const onnx::FunctionProto* Importer::find_function(const std::string& id) const {
  const auto found = functions_.find(id);
  return found == functions_.end() ? nullptr : found->second;
}

void Importer::run() {
  const onnx::GraphProto& graph = model_.proto.graph();
  NameScope scope;
  CallFrame frame;
  frame.opset = default_opset(model_.proto.opset_import());
  add_initializers(graph, scope, "");
  add_inputs(graph, scope);
  import_nodes(graph.node(), scope, frame);
  for (const auto& output : graph.output()) {
    const Binding* b = scope.find(output.name());
    if (b == nullptr || !*b) {
      throw ModelError({.what = "An output of the model has a name that nothing defines.",
                        .node = quote(output.name()),
                        .remedy = "Export the model again."});
    }
    graph_->add_output(output.name(), materialise(*b));
  }
}

void Importer::add_initializers(const onnx::GraphProto& graph, NameScope& scope,
                                const std::string& prefix) {
  const bool outermost = &graph == &model_.proto.graph();
  for (const auto& proto : graph.initializer()) {
    const std::string& name = proto.name();
    if (outermost && options_.fed.count(name) != 0) continue;
    if (!outermost && scope.names.count(name) != 0) continue;  // an input of the body
    Tensor tensor = model_.tensors->get(proto, name);
    if (!outermost) {
      if (const Value v = weights_.lift(name, tensor, false)) {
        scope.names[name] = here(v);
        continue;
      }
    }
    const Value v = graph_->add_constant(std::move(tensor), prefix + name);
    if (outermost) weights_.add(v);
    if (outermost && options_.states.count(name) != 0) graph_->make_state(v);
    scope.names[name] = v;
  }
}

void Importer::add_inputs(const onnx::GraphProto& graph, NameScope& scope) {
  for (const auto& input : graph.input()) {
    if (scope.names.count(input.name()) != 0) continue;  // has an initializer: a constant
    const bool ranked = model_.unranked_inputs.count(input.name()) == 0;
    scope.names[input.name()] = graph_->add_input(input.name(), type_from_onnx(input, ranked));
  }
}

// --- nodes ---------------------------------------------------------------------------------------

void Importer::import_nodes(const NodeProtos& nodes, NameScope& scope, const CallFrame& frame) {
  const CallFrame* before = frame_;
  frame_ = &frame;
  for (const auto& node : nodes) {
    try {
      import_node(node, scope, frame);
    } catch (const ModelError& e) {
      frame_ = before;
      rethrow_at(node, frame.prefix, e);
    }
  }
  frame_ = before;
}

void Importer::count_inlined(size_t nodes) {
  inlined_ += nodes;
  if (inlined_ <= limits().max_inlined) return;
  throw ModelError(
      {.what = "The model's functions, branches and loops are too many after inlining.",
       .expected = fmt::format("at most {} nodes, where each branch or loop body counts as {}",
                               limits().max_inlined, kBodyNodes),
       .received = "more",
       .remedy = "If this is intended, raise Limits::max_inlined."});
}

void Importer::import_node(const onnx::NodeProto& proto, NameScope& scope, const CallFrame& frame) {
  if (++imported_ > limits().max_nodes) {
    throw ModelError({.what = "The model has too many nodes after its functions are inlined.",
                      .expected = fmt::format("at most {}", limits().max_nodes),
                      .received = "more",
                      .remedy = "If this is intended, raise Limits::max_nodes."});
  }
  if (frame.function != nullptr) count_inlined(1);
  poll();
  FileNode node{.proto = proto, .inputs = {}, .scope = scope, .frame = frame};
  for (const auto& name : proto.input()) {
    const Binding* b = name.empty() ? nullptr : scope.find(name);
    if (b == nullptr && !name.empty()) {
      throw ModelError({.what = "A node reads a value that nothing before it defines.",
                        .received = quote(name),
                        .remedy = "Export the model again; its nodes must be in order."});
    }
    node.inputs.push_back(b != nullptr ? here(*b) : Binding());
  }
  while (!node.inputs.empty() && !node.inputs.back()) node.inputs.pop_back();

  size_t first_new = graph_->value_count();
  std::vector<Binding> results = dispatch(node);
  if (frame.function == nullptr && proto.domain().empty() && proto.op_type() == "Constant" &&
      proto.output_size() == 1 && results.size() == 1) {
    if (lift_constant(proto.output(0), &results[0])) first_new = graph_->value_count();
  }
  bind(node, results, first_new);
}

std::vector<Binding> Importer::dispatch(FileNode& node) {
  const onnx::NodeProto& proto = node.proto;
  const onnx::FunctionProto* function = find_function(function_id(proto));
  if (function != nullptr && !says_gradient(proto)) return call_function(*this, node, *function);
  // Domains other than the default one have a single version.
  const int64_t version = proto.domain().empty() ? node.frame.opset : 1;
  return find_handler(proto.domain(), proto.op_type(), version)(*this, node);
}

bool Importer::lift_constant(const std::string& name, Binding* result) {
  const Value v = result->value();
  const Tensor* tensor = v ? constant(v) : nullptr;
  if (tensor == nullptr) return false;
  if (!weights_.within_body()) {
    weights_.note_constant(name, v);
    return false;
  }
  if (const Value lifted = weights_.lift(name, *tensor, true)) *result = here(lifted);
  return true;  // also when it stays in the body: its name is decided
}

void Importer::bind(const FileNode& node, const std::vector<Binding>& results, size_t first_new) {
  for (int i = 0; i < node.proto.output_size(); ++i) {
    const std::string& name = node.proto.output(i);
    if (name.empty()) continue;
    const auto at = static_cast<size_t>(i);
    if (at >= results.size() || !results[at]) {
      if (!read_.contains(name)) continue;
      throw ModelError(
          {.what = "A node has more outputs than Steep supports.",
           .expected = fmt::format("at most {}", counted(std::min(results.size(), at), "output")),
           .received = fmt::format("output {}, named {}, is read", i, quote(name)),
           .remedy = "Export the model without this output."});
    }
    const Value v = results[at].value();
    if (v && v.id() >= first_new) graph_->rename(v, node.frame.prefix + name);
    if (!node.scope.names.emplace(name, results[at]).second) {
      throw ModelError(
          {.what = "A name is defined twice.",
           .received = quote(name),
           .remedy = "Export the model again; every value must have a name of its own."});
    }
  }
}

// --- construction by handlers --------------------------------------------------------------------

Value Importer::here(Value v) const { return !v || &v.graph() == graph_ ? v : body_->capture(v); }

Binding Importer::here(const Binding& binding) const {
  if (binding.items() == nullptr) return {here(binding.value())};
  if (body_ == nullptr) return binding;
  std::vector<Value> items;
  for (Value v : *binding.items()) items.push_back(here(v));
  return {std::move(items), binding.dtype()};
}

Type Importer::named_extents(Type type, const std::string& stem,
                             std::unordered_set<std::string>* symbols) {
  for (size_t i = 0; type.shape && i < type.shape->size(); ++i) {
    Dim& d = (*type.shape)[i];
    if (d.known() || !d.symbol().empty()) continue;
    d = Dim::symbol(fmt::format("{}.dim{}.{}", stem, i, symbols_++));
    if (symbols != nullptr) symbols->insert(d.symbol());
  }
  return type;
}

Value Importer::materialise(const Binding& binding) {
  const Binding b = here(binding);
  if (!b) {
    throw ModelError({.what = "A value that a branch or loop reads is missing.",
                      .remedy = "Export the model again; its file does not follow the ONNX "
                                "standard."});
  }
  if (b.items() == nullptr) return b.value();
  const std::string op = b.items()->empty() ? "SequenceEmpty" : "SequenceConstruct";
  Attrs attrs;
  if (b.items()->empty()) {
    const DType dtype = b.dtype() == DType::undefined ? DType::f32 : b.dtype();
    attrs.set("dtype", static_cast<int64_t>(dtype));
  }
  const Node n = graph_->add_node(op, *b.items(), 1, std::move(attrs));
  infer_types(n);
  return n.output(0);
}

std::vector<Value> Importer::emit_in_float32(const Call& call, const std::string& op,
                                             std::vector<Value> in, Attrs attrs, int outputs) {
  const DType dtype = in[0].dtype();
  for (Value& v : in) {
    if (v && is_half(v.dtype())) v = cast(v, DType::f32);
  }
  std::vector<Value> results = emit(call, op, std::move(in), std::move(attrs), outputs);
  for (Value& y : results) {
    if (y && y.dtype() == DType::f32) y = cast(y, dtype);
  }
  return results;
}

std::vector<Value> Importer::emit(const Call& call, const std::string& op, std::vector<Value> in,
                                  Attrs attrs, int outputs) {
  while (!in.empty() && !in.back()) in.pop_back();
  if (op == "Attention" && !in.empty() && in[0] && is_half(in[0].dtype()))
    return emit_in_float32(call, op, std::move(in), std::move(attrs), outputs);
  if (const auto composite = composite_of(call, op, in, attrs, outputs)) {
    const std::vector<Binding> results = inline_function(*this, {.node = composite->call,
                                                                 .function = composite->function,
                                                                 .inputs = {in.begin(), in.end()},
                                                                 .frame = *frame_,
                                                                 .prefix = call.name + "/"});
    std::vector<Value> values;
    for (const Binding& b : results) values.push_back(b.value());
    values.resize(static_cast<size_t>(outputs));
    return values;
  }
  Node node = graph_->add_node(op, in, outputs, std::move(attrs), op == call.op ? call.name : "");
  infer_types(node);
  if (outputs == 1) {
    if (auto result = known_result(node))
      return {graph_->add_constant(std::move(*result), call.name)};
  }
  std::vector<Value> values;
  for (int i = 0; i < outputs; ++i) {
    values.push_back(node.output(i));
    if (size_of(values.back().dtype()) == 0) {
      call.fail("The type of a node's output is not supported.",
                "tensors of float, integer or bool", fmt::format("output {} of another type", i),
                "Export the model without this operator.");
    }
  }
  return values;
}

}  // namespace steep
