// Loop and Scan, as steep.Loop.

#include <fmt/format.h>

#include <utility>

#include "model/import/body.h"
#include "model/import/handlers.h"
#include "model/read/node_names.h"
#include "ops/build.h"
#include "ops/onnx_proto.h"
#include "ops/steep_types.h"
#include "runtime/counted.h"
#include "steep/error.h"

namespace steep {
namespace {

/// The attribute `name` with one entry for each of `count` values; zeros by default.
Ints per_value(const onnx::NodeProto& node, const char* name, size_t count) {
  for (const auto& attribute : node.attribute()) {
    if (attribute.name() != name) continue;
    if (static_cast<size_t>(attribute.ints_size()) != count) {
      throw ModelError({.what = "An attribute of a loop has the wrong length.",
                        .expected = fmt::format("{} in {}", counted(count, "number"), name),
                        .received = fmt::format("{}", attribute.ints_size()),
                        .remedy = "Export the model again."});
    }
    return {attribute.ints().begin(), attribute.ints().end()};
  }
  return Ints(count, 0);
}

size_t integer_of(const onnx::NodeProto& node, const char* name) {
  for (const auto& attribute : node.attribute()) {
    if (attribute.name() == name && attribute.i() >= 0) return static_cast<size_t>(attribute.i());
  }
  return 0;
}

/// Throws ModelError when a loop and its body do not match.
void require_fit(bool fits, const std::string& expected) {
  if (fits) return;
  throw ModelError({.what = "A loop and its body do not match.",
                    .expected = expected,
                    .remedy = "Export the model again; its file does not follow the ONNX "
                              "standard."});
}

/// The type of one slice of `x` along `axis`.
Type slice_type(const Type& x, int64_t axis) {
  Type type = x;
  if (!x.shape) return type;
  const auto rank = static_cast<int64_t>(x.shape->size());
  if (axis < -rank || axis >= rank) {
    throw ModelError({.what = "An axis of a Scan is out of range.",
                      .expected = fmt::format("{} to {}", -rank, rank - 1),
                      .received = fmt::format("{}", axis),
                      .remedy = "Export the model again."});
  }
  type.shape->erase(type.shape->begin() + (axis < 0 ? axis + rank : axis));
  return type;
}

bool is_true(Value v) {
  const auto ints = known_ints(v);
  return ints && ints->size() == 1 && (*ints)[0] != 0;
}

Bindings first_results(Node n, size_t count) {
  Bindings results;
  for (size_t i = 0; i < count; ++i) results.emplace_back(n.output(static_cast<int>(i)));
  return results;
}

/// A Loop or Scan node of the file.
struct LoopParts {
  const onnx::GraphProto& body;
  Value trips{};      ///< null: given by the slices or the condition
  Value condition{};  ///< null: true
  std::vector<Value> carried{};
  std::vector<Value> scanned{};  ///< sliced along in_axes
  Ints in_axes{}, in_directions{}, out_axes{}, out_directions{};
  bool is_scan = false;  ///< the body has no counter and no condition

  size_t inputs_in_front() const { return is_scan ? 0 : 2; }
  size_t outputs_in_front() const { return is_scan ? 0 : 1; }
  /// REQUIRES: the body has an output for each carried value.
  size_t stacked() const {
    return static_cast<size_t>(body.output_size()) - outputs_in_front() - carried.size();
  }
  const onnx::ValueInfoProto& input(size_t i) const {
    return body.input(static_cast<int>(inputs_in_front() + i));
  }
};

/// Throws ModelError when the values do not fit the body.
void require_fit(const LoopParts& p) {
  for (Value v : p.scanned) {
    require_fit(v.type().kind == Kind::tensor, "tensors as what a Scan cuts into slices");
  }
  const size_t count = p.inputs_in_front() + p.carried.size() + p.scanned.size();
  require_fit(static_cast<size_t>(p.body.input_size()) == count,
              "one input of the body for each value that the loop carries or cuts up");
  require_fit(static_cast<size_t>(p.body.output_size()) >= p.outputs_in_front() + p.carried.size(),
              "one output of the body for each value that the loop carries");
}

/// Writes a loop in three steps: the initial types of carried values, a body whose iterations keep
/// these types, and the node.
class LoopWriter {
 public:
  LoopWriter(Importer& importer, const LoopParts& parts, const FileNode& node)
      : importer_(importer), p_(parts), node_(node) {}

  /// Returns the final carried values and the stacked outputs. Throws ModelError.
  Bindings write() {
    require_fit(p_);
    types_ = first_types();
    return write_node(settled_body());
  }

 private:
  /// The body with the values that it captures.
  struct Body {
    std::shared_ptr<Graph> graph;
    std::vector<Value> captured;
  };

  /// The types of the initial carried values.
  std::vector<Type> first_types() {
    std::vector<Type> types;
    for (size_t i = 0; i < p_.carried.size(); ++i) {
      Type type = p_.carried[i].type();
      const auto& proto = p_.input(i).type();
      if (proto.has_optional_type() && type.kind == Kind::sequence)
        type.kind = Kind::optional_sequence;
      if (proto.has_optional_type() && type.kind == Kind::tensor) type.kind = Kind::optional;
      // An empty sequence may hold items of any shape: use the shape that the body declares, in
      // case it adds such items.
      const Node producer = p_.carried[i].producer();
      if (producer && producer.op() == "SequenceEmpty" && proto.has_sequence_type())
        type.shape = without_symbols(type_from_proto(proto)).shape;
      types.push_back(named(type, p_.input(i).name()));
    }
    return types;
  }

  /// If an iteration returns a carried value with another shape than it got, the type is widened to
  /// cover both, and the body is built again.
  Body settled_body() {
    for (;;) {
      Body body = import_body();
      if (!widen(*body.graph)) return body;
    }
  }

  Body import_body() {
    const Weights::InBody in_body(importer_.weights(), node_.proto, "body");
    OpenBody body(importer_);
    Graph& graph = *body.graph();
    NameScope inner{.outer = &node_.scope};
    const Value iteration = graph.add_input("iteration", {DType::i64, Shape{}});
    if (!p_.is_scan) {
      inner.names[p_.body.input(0).name()] = iteration;
      // The body runs only while the condition is true.
      const std::string& condition = p_.body.input(1).name();
      inner.names[condition] = graph.add_constant(Tensor::scalar(true), condition);
    }
    for (size_t i = 0; i < p_.carried.size(); ++i) {
      const std::string& input = p_.input(i).name();
      inner.names[input] = graph.add_input(input, types_[i]);
    }
    for (size_t i = 0; i < p_.scanned.size(); ++i) {
      const std::string& input = p_.input(p_.carried.size() + i).name();
      const Type slice = slice_type(p_.scanned[i].type(), p_.in_axes[i]);
      inner.names[input] = graph.add_input(input, named(slice, input));
    }
    importer_.add_initializers(p_.body, inner, "");  // after its inputs: some are captured
    importer_.import_nodes(p_.body.node(), inner, node_.frame);
    body.add_outputs(p_.body, inner);
    return {body.graph(), body.captured(1 + p_.carried.size() + p_.scanned.size())};
  }

  /// Widens the types that do not cover what an iteration returns. Returns true if any changed.
  bool widen(const Graph& body) {
    bool widened = false;
    for (size_t i = 0; i < p_.carried.size(); ++i) {
      const Type& after = body.outputs()[p_.outputs_in_front() + i].value.type();
      require_same_element(types_[i], after, "A value changes its element type in a loop.");
      if (covers(types_[i], after)) continue;
      widened = true;
      types_[i] = named(either(types_[i], after), fmt::format("{}.carried{}", node_.name(), i));
    }
    return widened;
  }

  bool covers(const Type& wide, const Type& type) const {
    if (wide.kind != type.kind && wide.kind != either(wide, type).kind) return false;
    if (!wide.shape) return true;
    if (!type.shape || type.shape->size() != wide.shape->size()) return false;
    for (size_t i = 0; i < wide.shape->size(); ++i) {
      const Dim& d = (*wide.shape)[i];
      if (!provably_equal(d, (*type.shape)[i]) && any_.count(d.symbol()) == 0) return false;
    }
    return true;
  }

  Bindings write_node(const Body& body) {
    // A condition that is always true is dropped.
    const std::vector<Output>& outputs = body.graph->outputs();
    const bool conditional = !p_.is_scan && !is_true(outputs[0].value);
    if (!p_.is_scan && !conditional) body.graph->set_outputs({outputs.begin() + 1, outputs.end()});
    std::vector<Value> inputs{p_.trips, p_.condition};
    for (const auto* list : {&p_.carried, &p_.scanned, &body.captured})
      inputs.insert(inputs.end(), list->begin(), list->end());
    const size_t carried = p_.carried.size(), stacked = p_.stacked();
    auto by_output = [&](const Ints& values) { return values.empty() ? Ints(stacked, 0) : values; };
    const Attrs attrs{{"body", steep::Body(body.graph)},
                      {"condition", int64_t{conditional}},
                      {"keeps_shapes", int64_t{p_.is_scan}},
                      {"carried", static_cast<int64_t>(carried)},
                      {"in_axes", p_.in_axes},
                      {"in_directions", p_.in_directions},
                      {"out_axes", by_output(p_.out_axes)},
                      {"out_directions", by_output(p_.out_directions)}};
    const Node n = importer_.graph().add_node(
        "steep.Loop", inputs, static_cast<int>(2 * carried + stacked + 1), attrs, node_.name());
    infer_types(n);
    return first_results(n, carried + stacked);
  }

  Type named(Type type, const std::string& stem) {
    return importer_.named_extents(std::move(type), stem, &any_);
  }

  Importer& importer_;
  const LoopParts& p_;
  const FileNode& node_;
  std::vector<Type> types_{};              // of carried values
  std::unordered_set<std::string> any_{};  // symbols made here: they may be bound to any extent
};

std::vector<Value> materialised(Importer& importer, const Bindings& inputs, size_t from) {
  std::vector<Value> values;
  for (size_t i = from; i < inputs.size(); ++i) values.push_back(importer.materialise(inputs[i]));
  return values;
}

}  // namespace

Bindings import_loop(Importer& importer, FileNode& node) {
  LoopParts parts{.body = node.body("body")};
  if (!node.inputs.empty()) parts.trips = node.inputs[0].value();
  if (node.inputs.size() > 1) parts.condition = node.inputs[1].value();
  require_fit(!parts.trips || is_integer(parts.trips.dtype()), "an integer as trip count");
  require_fit(!parts.condition || parts.condition.dtype() == DType::boolean, "a bool as condition");
  parts.carried = materialised(importer, node.inputs, 2);
  if (is_true(parts.condition)) parts.condition = Value();
  return LoopWriter(importer, parts, node).write();
}

Bindings import_scan(Importer& importer, FileNode& node) {
  LoopParts parts{.body = node.body("body"), .is_scan = true};
  const size_t scanned = integer_of(node.proto, "num_scan_inputs");
  require_fit(scanned > 0 && scanned <= node.inputs.size(), "num_scan_inputs of the inputs");
  parts.carried = materialised(importer, node.inputs, 0);
  const auto first_scanned = parts.carried.end() - static_cast<int64_t>(scanned);
  parts.scanned.assign(first_scanned, parts.carried.end());
  parts.carried.erase(first_scanned, parts.carried.end());
  require_fit(static_cast<size_t>(parts.body.output_size()) >= parts.carried.size(),
              "one output of the body for each value that the loop carries");
  parts.in_axes = per_value(node.proto, "scan_input_axes", scanned);
  parts.in_directions = per_value(node.proto, "scan_input_directions", scanned);
  parts.out_axes = per_value(node.proto, "scan_output_axes", parts.stacked());
  parts.out_directions = per_value(node.proto, "scan_output_directions", parts.stacked());
  return LoopWriter(importer, parts, node).write();
}

// Opset 8: all values have a leading batch axis. Written as a loop over the batch around today's
// Scan.
Bindings import_batched_scan(Importer& importer, FileNode& node) {
  if (!node.inputs.empty() && node.inputs[0]) {
    throw ModelError({.what = "A Scan of opset 8 has sequences of different lengths.",
                      .expected = "no input sequence_lens",
                      .remedy = "Export with opset 9 or newer."});
  }
  LoopParts parts{.body = node.body("body"), .is_scan = true};
  const size_t scanned = integer_of(node.proto, "num_scan_inputs");
  require_fit(scanned > 0 && scanned < node.inputs.size(), "num_scan_inputs of the inputs");
  const size_t carried = node.inputs.size() - 1 - scanned;
  require_fit(static_cast<size_t>(parts.body.output_size()) >= carried,
              "one output of the body for each value that the loop carries");
  parts.in_axes = Ints(scanned, 0);
  parts.in_directions = per_value(node.proto, "directions", scanned);

  const std::vector<Value> outer = materialised(importer, node.inputs, 1);
  std::shared_ptr<Graph> batch;
  std::vector<Value> captured;
  {
    OpenBody body(importer);
    batch = body.graph();
    batch->add_input("iteration", {DType::i64, Shape{}});
    for (size_t i = 0; i < outer.size(); ++i) {
      const std::string& name = outer[i].name();
      const Type row = importer.named_extents(slice_type(outer[i].type(), 0), name);
      (i < carried ? parts.carried : parts.scanned).push_back(batch->add_input(name, row));
    }
    for (const Binding& b : LoopWriter(importer, parts, node).write())
      batch->add_output(b.value().name(), b.value());
    captured = body.captured(1 + outer.size());
  }
  std::vector<Value> inputs{Value(), Value()};
  inputs.insert(inputs.end(), outer.begin(), outer.end());
  inputs.insert(inputs.end(), captured.begin(), captured.end());
  const size_t results = carried + parts.stacked();
  const Node n = importer.graph().add_node("steep.Loop", inputs, static_cast<int>(results) + 1,
                                           {{"body", Body(batch)},
                                            {"condition", int64_t{0}},
                                            {"carried", int64_t{0}},
                                            {"in_axes", Ints(outer.size(), 0)},
                                            {"in_directions", Ints(outer.size(), 0)},
                                            {"out_axes", Ints(results, 0)},
                                            {"out_directions", Ints(results, 0)}},
                                           node.name());
  infer_types(n);
  return first_results(n, results);
}

}  // namespace steep
