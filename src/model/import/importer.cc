#include "model/import/importer.h"

#include <fmt/format.h>
#include <onnx/defs/schema.h>

#include <algorithm>
#include <charconv>

#include "model/raise/raise.h"
#include "model/read/attributes.h"
#include "model/read/quote.h"
#include "ops/build.h"
#include "ops/onnx_proto.h"
#include "ops/shape_arithmetic.h"
#include "runtime/budget.h"
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
  // Without a name of its own the extent could never be shown equal to itself.
  return Dim::symbol(fmt::format("{}.dim{}", name, axis));
}

Type type_from_onnx(const onnx::ValueInfoProto& value, bool ranked) {
  if (!value.type().has_tensor_type()) {
    Type type = type_from_proto(value.type());
    for (size_t i = 0; type.shape && i < type.shape->size(); ++i) {
      // A name means one number, but the tensors of a sequence may differ.
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

/// Errors that came from below without a place get the node's.
[[noreturn]] void rethrow_at(const onnx::NodeProto& node, const std::string& prefix,
                             const ModelError& e) {
  if (!e.parts().op.empty()) throw e;
  ErrorParts parts = e.parts();
  if (!parts.node.empty())
    parts.received += (parts.received.empty() ? "" : " ") + ("at " + parts.node);
  parts.node = quote(prefix + display_name(node));
  parts.op = quote(node.op_type());
  throw ModelError(std::move(parts));
}

}  // namespace

// --- the model -----------------------------------------------------------------------------------

Importer::Importer(const CheckedModel& model, Graph& graph, const ImportOptions& options)
    : model_(model),
      root_(&graph),
      graph_(&graph),
      limits_(options.limits),
      fed_(options.fed),
      states_(options.states),
      named_(options.named),
      body_path_(""),
      training_(options.training) {
  note_reads(model.proto.graph().node());
  for (const auto& node : model.proto.graph().node()) {
    for (const auto& attribute : node.attribute()) {
      if (attribute.has_g()) note_settings(attribute.g().node());
    }
  }
  for (const auto& output : model.proto.graph().output()) read_.insert(output.name());
  for (const auto& f : model.proto.functions()) {
    functions_.emplace(function_id(f), &f);
    note_reads(f.node());
    read_.insert(f.output().begin(), f.output().end());
  }
}

void Importer::note_reads(const google::protobuf::RepeatedPtrField<onnx::NodeProto>& nodes) {
  for (const auto& node : nodes) {
    read_.insert(node.input().begin(), node.input().end());
    for (const auto& attribute : node.attribute()) {
      auto note = [&](const onnx::GraphProto& body) {
        note_reads(body.node());
        for (const auto& output : body.output()) read_.insert(output.name());
      };
      if (attribute.has_g()) note(attribute.g());
      for (const auto& body : attribute.graphs()) note(body);
      read_.insert(attribute.s());  // Gradient names what it differentiates
      read_.insert(attribute.strings().begin(), attribute.strings().end());
    }
  }
}

void Importer::run() {
  const onnx::GraphProto& graph = model_.proto.graph();
  Scope scope;
  Frame frame;
  frame.opset = default_opset(model_.proto.opset_import());
  add_initializers(graph, scope, "");
  add_inputs(graph, scope);
  import_nodes(graph.node(), scope, frame);
  for (const auto& output : graph.output()) {
    const Binding* b = find(output.name(), scope);
    if (b == nullptr || !*b) {
      throw ModelError({.what = "An output of the model has a name that nothing defines.",
                        .node = quote(output.name()),
                        .remedy = "Export the model again."});
    }
    graph_->add_output(output.name(), materialise(*b));
  }
}

void Importer::add_initializers(const onnx::GraphProto& graph, Scope& scope,
                                const std::string& prefix) {
  const bool outermost = &graph == &model_.proto.graph();
  for (const auto& proto : graph.initializer()) {
    const std::string& name = proto.name();
    if (outermost && fed_.count(name) != 0) continue;
    if (!outermost && scope.names.count(name) != 0) continue;  // an input of the body
    Tensor tensor = model_.tensors->get(proto, name);
    if (!outermost) {
      if (const Value v = lift(name, tensor, false)) {
        scope.names[name] = here(v);
        continue;
      }
    }
    const Value v = graph_->add_constant(std::move(tensor), prefix + name);
    if (outermost) parameters_.insert(v.id());
    if (outermost && states_.count(name) != 0) graph_->make_state(v);
    scope.names[name] = v;
  }
}

void Importer::add_inputs(const onnx::GraphProto& graph, Scope& scope) {
  for (const auto& input : graph.input()) {
    if (scope.names.count(input.name()) != 0) continue;  // has an initializer: a constant
    const bool ranked = model_.unranked_inputs.count(input.name()) == 0;
    scope.names[input.name()] = graph_->add_input(input.name(), type_from_onnx(input, ranked));
  }
}

// --- nodes ---------------------------------------------------------------------------------------

const Binding* Importer::find(const std::string& name, const Scope& scope) {
  for (const Scope* s = &scope; s != nullptr; s = s->outer) {
    if (auto it = s->names.find(name); it != s->names.end()) return &it->second;
  }
  return nullptr;
}

const onnx::AttributeProto* Importer::resolve(const onnx::AttributeProto& attribute,
                                              const Frame& frame) {
  if (attribute.ref_attr_name().empty()) return &attribute;
  auto it = frame.arguments.find(attribute.ref_attr_name());
  return it == frame.arguments.end() ? nullptr : it->second;
}

void Importer::import_nodes(const google::protobuf::RepeatedPtrField<onnx::NodeProto>& nodes,
                            Scope& scope, const Frame& frame) {
  const Frame* before = frame_;
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
  if (inlined_ <= limits_.max_inlined) return;
  throw ModelError(
      {.what = "The model's functions, branches and loops are too many after inlining.",
       .expected = fmt::format("at most {} nodes, where each branch or loop body counts as {}",
                               limits_.max_inlined, kBodyNodes),
       .received = "more",
       .remedy = "If this is intended, raise Limits::max_inlined."});
}

void Importer::import_node(const onnx::NodeProto& node, Scope& scope, const Frame& frame) {
  if (++imported_ > limits_.max_nodes) {
    throw ModelError({.what = "The model has too many nodes after its functions are inlined.",
                      .expected = fmt::format("at most {}", limits_.max_nodes),
                      .received = "more",
                      .remedy = "If this is intended, raise Limits::max_nodes."});
  }
  if (frame.function != nullptr) count_inlined(1);
  poll();
  std::vector<Binding> inputs;
  for (const auto& name : node.input()) {
    const Binding* b = name.empty() ? nullptr : find(name, scope);
    if (b == nullptr && !name.empty()) {
      throw ModelError({.what = "A node reads a value that nothing before it defines.",
                        .received = quote(name),
                        .remedy = "Export the model again; its nodes must be in order."});
    }
    inputs.push_back(b != nullptr ? here(*b) : Binding());
  }
  while (!inputs.empty() && !inputs.back()) inputs.pop_back();

  size_t first_new = graph_->value_count();
  std::vector<Binding> results;
  if (auto f = functions_.find(function_id(node)); f != functions_.end() && !says_gradient(node)) {
    results = import_function(node, *f->second, inputs, frame);
  } else if (is_contrib(node)) {
    results = import_contrib(node, inputs, frame);
  } else if (node.domain() == kTrainingDomain && node.op_type() == "Gradient") {
    results = import_gradient(node, inputs, scope);
  } else if (node.domain().empty() && node.op_type() == "If") {
    results = import_if(node, inputs.empty() ? Binding() : inputs[0], scope, frame);
  } else if (node.domain().empty() && node.op_type() == "Loop") {
    results = import_loop(node, inputs, scope, frame);
  } else if (node.domain().empty() && node.op_type() == "Scan") {
    results = frame.opset < 9 ? import_batched_scan(node, inputs, scope, frame)
                              : import_scan(node, inputs, scope, frame);
  } else if (node.domain() == kPreviewDomain ||
             (node.domain().empty() && node.op_type() == "SequenceMap")) {
    results = import_with_bodies(node, inputs, scope, frame);
  } else {
    results = raise_node(node, std::move(inputs), frame);
  }
  if (node.domain().empty() && node.op_type() == "Constant" && node.output_size() == 1 &&
      frame.function == nullptr && results.size() == 1 && results[0]) {
    const Value v = results[0].value();
    const Tensor* made = v ? constant(v) : nullptr;
    if (made != nullptr && body_path_ && !body_path_->empty()) {
      if (const Value lifted = lift(node.output(0), *made, true)) results[0] = here(lifted);
      first_new = graph_->value_count();  // its name is chosen
    } else if (made != nullptr && body_path_ && named_.count(node.output(0)) != 0) {
      parameters_.insert(v.id());  // read in bodies, too
    }
  }
  bind(node, results, first_new, scope, frame);
}

void Importer::bind(const onnx::NodeProto& node, const std::vector<Binding>& results,
                    size_t first_new, Scope& scope, const Frame& frame) {
  for (int i = 0; i < node.output_size(); ++i) {
    const std::string& name = node.output(i);
    if (name.empty()) continue;
    const auto at = static_cast<size_t>(i);
    if (at >= results.size() || !results[at]) {
      if (read_.count(name) == 0) continue;
      throw ModelError({.what = "A node has more outputs than Steep supports.",
                        .expected = fmt::format("at most {} outputs", std::min(results.size(), at)),
                        .received = fmt::format("output {}, named {}, is read", i, quote(name)),
                        .remedy = "Export the model without this output."});
    }
    const Value v = results[at].value();
    if (v && v.id() >= first_new) graph_->rename(v, frame.prefix + name);
    if (!scope.names.emplace(name, results[at]).second) {
      throw ModelError(
          {.what = "A name is defined twice.",
           .received = quote(name),
           .remedy = "Export the model again; every value must have a name of its own."});
    }
  }
}

static const std::string* metadata(const onnx::NodeProto& node, std::string_view key) {
  const auto& entries = node.metadata_props();
  const auto it = std::find_if(entries.begin(), entries.end(),
                               [&](const auto& entry) { return entry.key() == key; });
  return it == entries.end() ? nullptr : &it->value();
}

static bool has_metadata(const onnx::NodeProto& node, const char* key) {
  return metadata(node, key) != nullptr;
}

/// An attribute's number with the digits that ONNX has no room for, where metadata keeps them. They
/// no longer count once the attribute says another number.
static Attr with_digits(Attr attr, const onnx::NodeProto& node, const std::string& name) {
  const auto* rounded = std::get_if<double>(&attr);
  const std::string* text =
      rounded == nullptr ? nullptr : metadata(node, std::string(kDigitsKey) + name);
  if (text == nullptr) return attr;
  double exact = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), exact);
  const bool whole = error == std::errc() && end == text->data() + text->size();
  return whole && static_cast<float>(exact) == *rounded ? Attr(exact) : attr;
}

std::vector<Binding> Importer::raise_node(const onnx::NodeProto& node, std::vector<Binding> inputs,
                                          const Frame& frame) {
  if (!node.domain().empty() && node.domain() != kTrainingDomain && !says_gradient(node) &&
      !is_steep(node)) {
    throw ModelError(
        {.what = "The operator is not known.", .received = "domain " + quote(node.domain())});
  }
  Call call{.writer = *this,
            .graph = *graph_,
            .op = canonical_name(node),
            .opset = frame.opset,
            .name = frame.prefix + display_name(node),
            .inputs = std::move(inputs),
            .attrs = {},
            .wanted = {},
            .training = training_,
            .from_pytorch = model_.proto.producer_name() == "pytorch",
            .stops_gradient = has_metadata(node, kStopGradientKey),
            .sample_variance = has_metadata(node, kSampleVarianceKey)};
  for (const auto& proto : node.attribute()) {
    const onnx::AttributeProto* attribute = resolve(proto, frame);
    if (attribute != nullptr && attribute->type() == onnx::AttributeProto::TYPE_PROTO) {
      call.type = type_from_proto(attribute->tp());
    } else if (attribute != nullptr)
      call.attrs.set(
          proto.name(),
          with_digits(attr_from_onnx(*attribute, call.name, *model_.tensors), node, proto.name()));
  }
  // An output that nothing reads costs its kernel work all the same: MaxPool's indices.
  const onnx::OpSchema* schema =
      onnx::OpSchemaRegistry::Schema(node.op_type(), static_cast<int>(frame.opset), node.domain());
  const bool by_outputs = node.op_type() == "BatchNormalization";  // once, these said it trains
  for (int i = 0; i < node.output_size(); ++i) {
    const bool optional =
        schema != nullptr && !by_outputs && static_cast<size_t>(i) < schema->outputs().size() &&
        schema->outputs()[static_cast<size_t>(i)].GetOption() == onnx::OpSchema::Optional;
    const std::string& name = node.output(i);
    call.wanted.push_back(!name.empty() && (!optional || read_.count(name) != 0));
  }
  while (!call.wanted.empty() && !call.wanted.back()) call.wanted.pop_back();
  if (call.wanted.empty()) return {};
  const Graph::Scope origin(*graph_, Phase::forward, call.name);
  return raise(call);
}

std::vector<Value> Importer::emit(const Call& call, const std::string& op, std::vector<Value> in,
                                  Attrs attrs, int outputs) {
  while (!in.empty() && !in.back()) in.pop_back();
  onnx::NodeProto as_call;
  onnx::FunctionProto body;
  if (function_body(call, op, in, attrs, outputs, &as_call, &body)) {
    const std::vector<Binding> results =
        import_call(as_call, body, {in.begin(), in.end()}, *frame_, call.name + "/");
    std::vector<Value> values;
    for (const Binding& b : results) values.push_back(b.value());
    values.resize(static_cast<size_t>(outputs));
    return values;
  }
  Node node = graph_->add_node(op, in, outputs, std::move(attrs), op == call.op ? call.name : "");
  infer_types(node);
  if (outputs == 1) {
    if (auto known = known_result(node))
      return {graph_->add_constant(std::move(*known), call.name)};
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
