// Control flow: the graphs of branches and loops, with what they read of the graphs around them
// made their inputs.

#include <fmt/format.h>

#include <algorithm>

#include "ir/seed.h"
#include "model/import/importer.h"
#include "model/read/quote.h"
#include "ops/build.h"
#include "ops/onnx_proto.h"
#include "ops/steep_types.h"
#include "steep/error.h"

namespace steep {
namespace {

void require_same_element(const Type& a, const Type& b, const std::string& what) {
  if (a.dtype == b.dtype) return;
  throw ModelError({.what = what,
                    .expected = to_string(a),
                    .received = to_string(b),
                    .remedy = "Export the model again; its file does not follow the ONNX "
                              "standard."});
}

/// `axes` with one entry for each of `count`, zeros by default.
Ints per_value(const onnx::NodeProto& node, const char* name, size_t count) {
  for (const auto& attribute : node.attribute()) {
    if (attribute.name() != name) continue;
    if (static_cast<size_t>(attribute.ints_size()) != count) {
      throw ModelError({.what = "An attribute of a loop has the wrong length.",
                        .expected = fmt::format("{} numbers in {}", count, name),
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

void require_inputs(bool enough, const std::string& expected) {
  if (enough) return;
  throw ModelError({.what = "A loop and its body do not match.",
                    .expected = expected,
                    .remedy = "Export the model again; its file does not follow the ONNX "
                              "standard."});
}

}  // namespace

// --- bodies and what they capture ----------------------------------------------------------------

Importer::OpenBody::OpenBody(Importer& i) : importer(i), outer(i.graph_), outside(i.body_) {
  i.count_inlined(kBodyNodes);
  graph->node_limit = i.limits_.max_nodes;
  i.graph_ = graph.get();
  i.body_ = this;
}

Importer::OpenBody::~OpenBody() {
  importer.graph_ = outer;
  importer.body_ = outside;
}

std::vector<Value> Importer::OpenBody::captured(size_t own) const {
  std::vector<Value> values;
  for (size_t i = own; i < graph->inputs().size(); ++i) {
    const Value input = graph->inputs()[i];
    // The engine's own input, added by random operators.
    const auto it = outer_of.find(input.id());
    values.push_back(it != outer_of.end() ? it->second : seed_of(*outer));
  }
  return values;
}

Type Importer::named_extents(Value v) {
  Type type = v.type();
  for (size_t i = 0; type.shape && i < type.shape->size(); ++i) {
    Dim& d = (*type.shape)[i];
    if (!d.known() && d.symbol().empty())
      d = Dim::symbol(fmt::format("{}.dim{}.{}", v.name(), i, symbols_++));
  }
  return type;
}

Value Importer::capture(OpenBody& body, Value v) {
  if (&v.graph() == body.graph.get()) return v;
  const Value outer = &v.graph() == body.outer ? v : capture(*body.outside, v);
  if (const auto it = body.inner_of.find(outer.id()); it != body.inner_of.end()) return it->second;
  Importer& l = body.importer;
  const bool parameter =
      body.outside == nullptr && is_float(outer.dtype()) && l.parameters_.count(outer.id()) != 0;
  Value inner;
  if (outer.role() == Role::constant && !parameter) {
    inner = body.graph->add_constant(*outer.tensor(), outer.name());
  } else {
    inner = body.graph->add_input(outer.name(), l.named_extents(outer));
    if (const Shape* contents = outer.graph().contents(outer))
      body.graph->set_contents(inner, *contents);
    body.outer_of[inner.id()] = outer;
  }
  body.inner_of[outer.id()] = inner;
  return inner;
}

Value Importer::here(Value v) { return !v || &v.graph() == graph_ ? v : capture(*body_, v); }

Binding Importer::here(const Binding& binding) {
  if (binding.items() == nullptr) return {here(binding.value())};
  if (body_ == nullptr) return binding;
  std::vector<Value> items;
  for (Value v : *binding.items()) items.push_back(here(v));
  return {std::move(items), binding.dtype()};
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

const onnx::GraphProto& Importer::body_of(const onnx::NodeProto& node, const char* name,
                                          const Frame& frame) const {
  for (const auto& attribute : node.attribute()) {
    if (attribute.name() != name) continue;
    const onnx::AttributeProto* resolved = resolve(attribute, frame);
    if (resolved != nullptr && resolved->has_g()) return resolved->g();
  }
  throw ModelError({.what = "A node of control flow lacks a graph.",
                    .expected = name,
                    .remedy = "Export the model again."});
}

void Importer::body_results(const onnx::GraphProto& body, const Scope& scope) {
  for (const auto& output : body.output()) {
    const Binding* b = find(output.name(), scope);
    if (b == nullptr || !*b) {
      throw ModelError({.what = "An output of a body has a name that nothing defines.",
                        .received = quote(output.name()),
                        .remedy = "Export the model again."});
    }
    graph_->add_output(output.name(), materialise(*b));
  }
}

// --- If ------------------------------------------------------------------------------------------

std::vector<Binding> Importer::take_branch(const onnx::GraphProto& branch, const Scope& scope,
                                           const Frame& frame) {
  Scope inner;
  inner.outer = &scope;
  add_initializers(branch, inner, frame.prefix);
  import_nodes(branch.node(), inner, frame);
  std::vector<Binding> results;
  for (const auto& output : branch.output()) {
    const Binding* b = find(output.name(), inner);
    results.push_back(b != nullptr ? here(*b) : Binding());
  }
  return results;
}

Importer::ImportedBody Importer::import_branch(const onnx::GraphProto& branch, const Scope& scope,
                                               const Frame& frame) {
  OpenBody body(*this);
  Scope inner;
  inner.outer = &scope;
  add_initializers(branch, inner, "");
  import_nodes(branch.node(), inner, frame);
  body_results(branch, inner);
  graph_->prune();
  return {body.graph, body.captured(0)};
}

std::vector<Binding> Importer::import_if(const onnx::NodeProto& node, const Binding& condition,
                                         const Scope& scope, const Frame& frame) {
  const Value chosen = condition.value();
  if (!chosen || chosen.dtype() != DType::boolean || chosen.type().kind != Kind::tensor) {
    throw ModelError({.what = "An If has no condition.",
                      .expected = "a bool tensor of one element",
                      .received = chosen ? to_string(chosen.type()) : "nothing",
                      .remedy = "Export the model again."});
  }
  const onnx::GraphProto& then_branch = body_of(node, "then_branch", frame);
  const onnx::GraphProto& else_branch = body_of(node, "else_branch", frame);
  const auto known = known_ints(chosen);
  if (known && known->size() == 1) {
    const bool first = (*known)[0] != 0;
    const InBody in_body(*this, node, first ? "then_branch" : "else_branch");
    return take_branch(first ? then_branch : else_branch, scope, frame);
  }

  const std::string name = frame.prefix + display_name(node);
  auto imported = [&](const char* attribute, const onnx::GraphProto& branch) {
    const InBody in_body(*this, node, attribute);
    return import_branch(branch, scope, frame);
  };
  const ImportedBody a = imported("then_branch", then_branch);
  const ImportedBody b = imported("else_branch", else_branch);
  const size_t count = a.graph->outputs().size();
  require_inputs(count == b.graph->outputs().size(), "as many outputs of either branch");
  std::vector<Value> inputs{chosen};
  inputs.insert(inputs.end(), a.captured.begin(), a.captured.end());
  inputs.insert(inputs.end(), b.captured.begin(), b.captured.end());
  const Node n =
      graph_->add_node("If", inputs, static_cast<int>(count),
                       {{"then_branch", Body(a.graph)}, {"else_branch", Body(b.graph)}}, name);
  std::vector<Binding> results;
  for (size_t i = 0; i < count; ++i) {
    const Type& x = a.graph->outputs()[i].value.type();
    const Type& y = b.graph->outputs()[i].value.type();
    require_same_element(x, y, "The branches of an If differ in an output's element type.");
    graph_->set_type(n.output(static_cast<int>(i)), either(x, y));
    results.emplace_back(n.output(static_cast<int>(i)));
  }
  return results;
}

// --- Loop and Scan -------------------------------------------------------------------------------

namespace {

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

}  // namespace

std::vector<Value> Importer::add_loop(const LoopParts& p, const Scope& scope, const Frame& frame) {
  const InBody in_body(*this, p.node, "body");
  const std::string name = frame.prefix + display_name(p.node);
  const size_t carried = p.carried.size();
  for (Value v : p.scanned) {
    require_inputs(v.type().kind == Kind::tensor, "tensors as what a Scan cuts into slices");
  }
  const size_t heading = p.is_scan ? 0 : 2;
  require_inputs(static_cast<size_t>(p.body.input_size()) == heading + carried + p.scanned.size(),
                 "one input of the body for each value that the loop carries or cuts up");
  require_inputs(static_cast<size_t>(p.body.output_size()) >= carried + (p.is_scan ? 0 : 1),
                 "one output of the body for each value that the loop carries");
  const size_t stacked = static_cast<size_t>(p.body.output_size()) - carried - (p.is_scan ? 0 : 1);

  std::unordered_set<std::string> any;  // symbols made here: they stand for whatever there is
  auto named = [&](Type type, const std::string& input) {
    for (size_t i = 0; type.shape && i < type.shape->size(); ++i) {
      Dim& d = (*type.shape)[i];
      if (d.known() || !d.symbol().empty()) continue;
      d = Dim::symbol(fmt::format("{}.dim{}.{}", input, i, symbols_++));
      any.insert(d.symbol());
    }
    return type;
  };
  auto covers = [&](const Type& wide, const Type& type) {
    if (wide.kind != type.kind && wide.kind != either(wide, type).kind) return false;
    if (!wide.shape) return true;
    if (!type.shape || type.shape->size() != wide.shape->size()) return false;
    for (size_t i = 0; i < wide.shape->size(); ++i) {
      const Dim& d = (*wide.shape)[i];
      if (!provably_equal(d, (*type.shape)[i]) && any.count(d.symbol()) == 0) return false;
    }
    return true;
  };
  std::vector<Type> types;
  for (size_t i = 0; i < carried; ++i) {
    Type type = p.carried[i].type();
    const auto& declared = p.body.input(static_cast<int>(heading + i)).type();
    if (declared.has_optional_type() && type.kind == Kind::sequence)
      type.kind = Kind::optional_sequence;
    if (declared.has_optional_type() && type.kind == Kind::tensor) type.kind = Kind::optional;
    // An empty sequence has items of any shape: those that the body expects, if it then adds such.
    const Node made = p.carried[i].producer();
    if (made && made.op() == "SequenceEmpty" && declared.has_sequence_type())
      type.shape = without_symbols(type_from_proto(declared)).shape;
    types.push_back(named(type, p.body.input(static_cast<int>(heading + i)).name()));
  }
  // What a turn makes of a carried value may have another shape than what it was given: then the
  // body is built again for any of the two.
  for (;;) {
    std::unique_ptr<OpenBody> body = std::make_unique<OpenBody>(*this);
    Scope inner;
    inner.outer = &scope;
    const Value turn = graph_->add_input("iteration", {DType::i64, Shape{}});
    if (!p.is_scan) {
      inner.names[p.body.input(0).name()] = turn;
      // It runs only where it holds.
      inner.names[p.body.input(1).name()] =
          graph_->add_constant(Tensor::scalar(true), p.body.input(1).name());
    }
    for (size_t i = 0; i < carried; ++i) {
      const std::string& input = p.body.input(static_cast<int>(heading + i)).name();
      inner.names[input] = graph_->add_input(input, types[i]);
    }
    for (size_t i = 0; i < p.scanned.size(); ++i) {
      const std::string& input = p.body.input(static_cast<int>(heading + carried + i)).name();
      inner.names[input] =
          graph_->add_input(input, named(slice_type(p.scanned[i].type(), p.in_axes[i]), input));
    }
    add_initializers(p.body, inner, "");  // behind its own inputs: some are captured
    import_nodes(p.body.node(), inner, frame);
    body_results(p.body, inner);
    graph_->prune();
    const std::vector<Value> captured = body->captured(1 + carried + p.scanned.size());
    std::shared_ptr<Graph> graph = body->graph;
    body.reset();

    const size_t first = p.is_scan ? 0 : 1;
    bool stable = true;
    for (size_t i = 0; i < carried; ++i) {
      const Type& after = graph->outputs()[first + i].value.type();
      require_same_element(types[i], after, "A value changes its element type in a loop.");
      if (covers(types[i], after)) continue;
      stable = false;
      types[i] = named(either(types[i], after), fmt::format("{}.carried{}", name, i));
    }
    if (!stable) continue;

    // A condition that holds as long as the loop runs is none.
    bool conditional = !p.is_scan;
    if (conditional) {
      const Value condition = graph->outputs()[0].value;
      const auto holds = known_ints(condition);
      conditional = !(holds && holds->size() == 1 && (*holds)[0] != 0);
      if (!conditional) graph->set_outputs({graph->outputs().begin() + 1, graph->outputs().end()});
    }
    std::vector<Value> inputs{p.trips, p.condition};
    for (const auto* list : {&p.carried, &p.scanned, &captured})
      inputs.insert(inputs.end(), list->begin(), list->end());
    const Attrs attrs{
        {"body", Body(graph)},
        {"condition", int64_t{conditional}},
        {"keeps_shapes", int64_t{p.is_scan}},
        {"carried", static_cast<int64_t>(carried)},
        {"in_axes", p.in_axes},
        {"in_directions", p.in_directions},
        {"out_axes", p.out_axes.empty() ? Ints(stacked, 0) : p.out_axes},
        {"out_directions", p.out_directions.empty() ? Ints(stacked, 0) : p.out_directions}};
    const Node n = graph_->add_node("steep.Loop", inputs,
                                    static_cast<int>(2 * carried + stacked + 1), attrs, name);
    infer_types(n);
    std::vector<Value> results;
    for (size_t i = 0; i < carried + stacked; ++i) results.push_back(n.output(static_cast<int>(i)));
    return results;
  }
}

std::vector<Binding> Importer::import_loop(const onnx::NodeProto& node,
                                           const std::vector<Binding>& inputs, const Scope& scope,
                                           const Frame& frame) {
  LoopParts parts{.node = node, .body = body_of(node, "body", frame)};
  if (!inputs.empty()) parts.trips = inputs[0].value();
  if (inputs.size() > 1) parts.condition = inputs[1].value();
  for (size_t i = 2; i < inputs.size(); ++i) parts.carried.push_back(materialise(inputs[i]));
  const auto holds = known_ints(parts.condition);
  if (holds && holds->size() == 1 && (*holds)[0] != 0) parts.condition = Value();
  const std::vector<Value> results = add_loop(parts, scope, frame);
  return {results.begin(), results.end()};
}

std::vector<Binding> Importer::import_scan(const onnx::NodeProto& node,
                                           const std::vector<Binding>& inputs, const Scope& scope,
                                           const Frame& frame) {
  LoopParts parts{.node = node, .body = body_of(node, "body", frame)};
  parts.is_scan = true;
  const size_t scanned = integer_of(node, "num_scan_inputs");
  require_inputs(scanned > 0 && scanned <= inputs.size(), "num_scan_inputs of the inputs");
  for (size_t i = 0; i < inputs.size(); ++i) {
    (i + scanned < inputs.size() ? parts.carried : parts.scanned).push_back(materialise(inputs[i]));
  }
  require_inputs(static_cast<size_t>(parts.body.output_size()) >= parts.carried.size(),
                 "one output of the body for each value that the loop carries");
  const size_t stacked = static_cast<size_t>(parts.body.output_size()) - parts.carried.size();
  parts.in_axes = per_value(node, "scan_input_axes", scanned);
  parts.in_directions = per_value(node, "scan_input_directions", scanned);
  parts.out_axes = per_value(node, "scan_output_axes", stacked);
  parts.out_directions = per_value(node, "scan_output_directions", stacked);
  const std::vector<Value> results = add_loop(parts, scope, frame);
  return {results.begin(), results.end()};
}

// Opset 8: everything has a batch axis in front. A loop over the batch with today's Scan in it.
std::vector<Binding> Importer::import_batched_scan(const onnx::NodeProto& node,
                                                   const std::vector<Binding>& inputs,
                                                   const Scope& scope, const Frame& frame) {
  if (!inputs.empty() && inputs[0]) {
    throw ModelError({.what = "A Scan of opset 8 has sequences of different lengths.",
                      .expected = "no input sequence_lens",
                      .remedy = "Export with opset 9 or newer."});
  }
  LoopParts parts{.node = node, .body = body_of(node, "body", frame)};
  parts.is_scan = true;
  const size_t scanned = integer_of(node, "num_scan_inputs");
  require_inputs(scanned > 0 && scanned < inputs.size(), "num_scan_inputs of the inputs");
  const size_t carried = inputs.size() - 1 - scanned;
  require_inputs(static_cast<size_t>(parts.body.output_size()) >= carried,
                 "one output of the body for each value that the loop carries");
  const size_t stacked = static_cast<size_t>(parts.body.output_size()) - carried;
  parts.in_axes = Ints(scanned, 0);
  parts.in_directions = per_value(node, "directions", scanned);

  std::vector<Value> outer;
  for (size_t i = 1; i < inputs.size(); ++i) outer.push_back(materialise(inputs[i]));
  std::shared_ptr<Graph> batch;
  std::vector<Value> captured;
  {
    OpenBody body(*this);
    graph_->add_input("iteration", {DType::i64, Shape{}});
    for (size_t i = 0; i < outer.size(); ++i) {
      Type type = slice_type(outer[i].type(), 0);
      for (size_t k = 0; type.shape && k < type.shape->size(); ++k) {
        Dim& d = (*type.shape)[k];
        if (!d.known() && d.symbol().empty())
          d = Dim::symbol(fmt::format("{}.dim{}.{}", outer[i].name(), k, symbols_++));
      }
      (i < carried ? parts.carried : parts.scanned)
          .push_back(graph_->add_input(outer[i].name(), std::move(type)));
    }
    for (Value v : add_loop(parts, scope, frame)) graph_->add_output(v.name(), v);
    batch = body.graph;
    captured = body.captured(1 + outer.size());
  }
  std::vector<Value> all{Value(), Value()};
  all.insert(all.end(), outer.begin(), outer.end());
  all.insert(all.end(), captured.begin(), captured.end());
  const size_t results = carried + stacked;
  const Node n = graph_->add_node("steep.Loop", all, static_cast<int>(results) + 1,
                                  {{"body", Body(batch)},
                                   {"condition", int64_t{0}},
                                   {"carried", int64_t{0}},
                                   {"in_axes", Ints(outer.size(), 0)},
                                   {"in_directions", Ints(outer.size(), 0)},
                                   {"out_axes", Ints(results, 0)},
                                   {"out_directions", Ints(results, 0)}},
                                  frame.prefix + display_name(node));
  infer_types(n);
  std::vector<Binding> values;
  for (size_t i = 0; i < results; ++i) values.emplace_back(n.output(static_cast<int>(i)));
  return values;
}

}  // namespace steep
