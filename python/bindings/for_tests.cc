// Access to single operators for tests and generated docs: the table of ops, the result of one
// node, the gradients of one node. Not in wheels.
#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "autodiff/gradient.h"
#include "bindings.h"
#include "contrib/contrib.h"
#include "device/device.h"
#include "model/import/import.h"
#include "ops/build.h"
#include "ops/wide.h"
#include "passes/pipeline.h"
#include "program/program.h"
#include "steep/error.h"

namespace steep::python {
namespace {

/// The body of a steep.Fused node, from [(op, [operand, …]), …]. Operands are indices: first the
/// node's inputs, then the results so far. The last `outputs` results are the body's outputs.
Body to_body(nb::list nodes, const std::vector<Value>& inputs, int outputs) {
  auto body = std::make_shared<Graph>();
  std::vector<Value> values;
  for (Value x : inputs) values.push_back(body->add_input(x.name(), x.type()));
  for (nb::handle item : nodes) {
    const auto node = nb::cast<nb::tuple>(item);
    std::vector<Value> operands;
    for (auto i : nb::cast<std::vector<size_t>>(node[1])) operands.push_back(values.at(i));
    values.push_back(steep::apply(nb::cast<std::string>(node[0]), operands));
  }
  for (int i = outputs; i > 0; --i)
    body->add_output("y", values.at(values.size() - static_cast<size_t>(i)));
  return body;
}

Attr to_attr(nb::handle value) {
  if (nb::isinstance<nb::int_>(value) || nb::isinstance<nb::bool_>(value))
    return nb::cast<int64_t>(value);
  if (nb::isinstance<nb::float_>(value)) return nb::cast<double>(value);
  if (nb::isinstance<nb::str>(value)) return nb::cast<std::string>(value);
  if (!nb::isinstance<nb::list>(value)) return to_tensor(value);
  const nb::list list = nb::cast<nb::list>(value);
  if (nb::len(list) > 0 && nb::isinstance<nb::float_>(list[0])) return nb::cast<Floats>(value);
  if (nb::len(list) > 0 && nb::isinstance<nb::str>(list[0])) return nb::cast<Strings>(value);
  return nb::cast<Ints>(value);
}

/// A graph with one node. Float inputs are inputs of the graph, all others are constants.
struct OneNode {
  Graph graph;
  std::vector<Value> inputs;
  std::vector<Tensor> tensors;
  Node node;

  OneNode(const std::string& op, nb::list arrays, nb::dict attrs, int outputs) {
    for (nb::handle array : arrays) {
      if (array.is_none()) {
        inputs.emplace_back();
        continue;
      }
      Tensor t = to_tensor(array);
      if (is_float(t.dtype())) {
        inputs.push_back(graph.add_input("x", {t.dtype(), to_shape(t.dims())}));
        tensors.push_back(std::move(t));
      } else {
        inputs.push_back(graph.add_constant(t.clone()));
      }
    }
    Attrs ours;
    for (auto [name, value] : attrs) {
      const auto key = nb::cast<std::string>(name);
      ours.set(key, key == "body" ? Attr(to_body(nb::cast<nb::list>(value), inputs, outputs))
                                  : to_attr(value));
    }
    node = graph.add_node(op, inputs, outputs, std::move(ours));
    infer_types(node);
  }
};

nb::object to_array(const Tensor& tensor) { return nb::cast(tensor).attr("numpy")(); }

nb::list op_table() {
  nb::list table;
  for (const OpDef* op : all_ops()) {
    nb::dict row;
    row["name"] = std::string(op->name);
    row["elementwise"] = op->elementwise;
    row["view"] = op->view;
    row["stops_gradient"] = op->stops_gradient;
    row["has_vjp"] = bool(op->vjp);
    row["has_decompose"] = op->decompose != nullptr;
    table.append(row);
  }
  return table;
}

std::vector<std::string> contrib_operators() {
  std::vector<std::string> names;
  for (const ContribOp* op : contrib_ops()) {
    names.push_back(fmt::format("{}.{}", kContribDomain, op->name));
  }
  return names;
}

nb::dict contrib_signature(const std::string& name) {
  const ContribOp* op = find_contrib(name);
  nb::dict signature;
  if (op == nullptr) return signature;
  signature["inputs"] = std::vector<std::string>(op->inputs.begin(), op->inputs.end());
  signature["outputs"] = op->outputs;
  nb::dict attributes;
  for (const Attribute& attribute : op->attributes) {
    const nb::str key(attribute.name.data(), attribute.name.size());
    std::visit(
        [&]<typename T>(const T& value) {
          if constexpr (std::is_same_v<T, std::string_view>) {
            attributes[key] = std::string(value);
          } else {
            attributes[key] = value;
          }
        },
        attribute.otherwise);
  }
  for (const std::string_view list : op->lists) {
    attributes[nb::str(list.data(), list.size())] = nb::none();
  }
  signature["attributes"] = attributes;
  return signature;
}

std::vector<std::string> kernels(const std::string& op) {
  std::vector<std::string> names;
  const auto host = host_device();
  const Candidates candidates = host->candidates(op);
  for (size_t i = 0; i < candidates.size(); ++i) names.emplace_back(candidates[i].name);
  return names;
}

nb::list evaluate_node(const std::string& op, nb::list inputs, nb::dict attrs, int outputs,
                       bool decomposed) {
  OneNode one(op, inputs, attrs, outputs);
  std::vector<Value> results;
  for (int i = 0; i < outputs; ++i) results.push_back(one.node.output(i));
  ProgramOptions options;
  if (decomposed) {
    const OpDef* def = find_op(op);
    if (def == nullptr || def->decompose == nullptr) {
      throw ModelError({.what = "The operator has no decomposition.", .op = op});
    }
    results = needs_float32(one.node) ? in_float32(one.node) : def->decompose(one.node);
    if (results.empty()) {
      throw ModelError({.what = "The operator is not decomposed for these operands.", .op = op});
    }
    for (const Pass& pass : passes())
      options.disabled_passes.emplace(pass.name);  // do not fuse again
  }
  for (Value y : results) one.graph.add_output("y", y);
  nb::list arrays;
  for (const Tensor& y : Program(std::move(one.graph), options).forward(one.tensors).outputs) {
    arrays.append(to_array(y));
  }
  return arrays;
}

nb::list node_gradients(const std::string& op, nb::list inputs, nb::dict attrs, int outputs,
                        nb::list output_grads, const std::vector<size_t>& wrt) {
  OneNode one(op, inputs, attrs, outputs);
  std::vector<Value> results, seeds, targets;
  for (size_t i = 0; i < nb::len(output_grads); ++i) {
    if (nb::handle(output_grads[i]).is_none()) continue;
    Tensor t = to_tensor(output_grads[i]);
    results.push_back(one.node.output(static_cast<int>(i)));
    seeds.push_back(one.graph.add_input("dy", {t.dtype(), to_shape(t.dims())}));
    one.tensors.push_back(std::move(t));
  }
  for (size_t i : wrt) targets.push_back(one.inputs.at(i));
  const std::vector<Value> gradients =
      add_gradients(one.graph, results, seeds, targets, Phase::forward);
  for (Value dx : gradients) {
    if (dx) one.graph.add_output("dx", dx);
  }
  const std::vector<Tensor> values = evaluate(one.graph, one.tensors);
  nb::list arrays;
  size_t next = 0;
  for (Value dx : gradients) {
    if (dx) {
      arrays.append(to_array(values[next++]));
    } else {
      arrays.append(nb::none());
    }
  }
  return arrays;
}

std::vector<Datum> to_data(const nb::list& values) {
  std::vector<Datum> data;
  for (nb::handle v : values) data.push_back(to_datum(v));
  return data;
}

Graph import_bytes(const nb::bytes& model) {
  ImportOptions options;
  options.training = false;
  const auto* data = reinterpret_cast<const std::byte*>(model.c_str());
  return import_model(std::span(data, model.size()), options).graph;
}

nb::list run_model(const nb::bytes& model, const nb::list& inputs, int times,
                   int64_t max_iterations) {
  ProgramOptions options;
  if (max_iterations > 0) options.limits.max_iterations = max_iterations;
  Program program(import_bytes(model), options);
  const std::vector<Datum> data = to_data(inputs);
  nb::list results;
  std::vector<Datum> outputs;
  for (int i = 0; i < times; ++i) outputs = program.forward_data(data).outputs;
  for (const Datum& d : outputs) results.append(to_object(d));
  return results;
}

nb::list model_gradients(const nb::bytes& model, const nb::list& inputs,
                         const nb::list& output_grads, const std::vector<std::string>& wrt) {
  Graph graph = import_bytes(model);
  std::vector<Value> results, targets;
  std::vector<Value> seeds;
  std::vector<Tensor> seed_values;
  for (size_t i = 0; i < nb::len(output_grads); ++i) {
    if (nb::handle(output_grads[i]).is_none()) continue;
    results.push_back(graph.outputs()[i].value);
    seeds.push_back(graph.add_gradient_input("dy", results.back()));
    seed_values.push_back(to_tensor(output_grads[i]));
  }
  for (const std::string& name : wrt) targets.push_back(graph.find(name));
  const std::vector<Value> gradients = add_gradients(graph, results, seeds, targets);
  for (Value dx : gradients) {
    if (dx) graph.add_output("dx", dx, Phase::backward);
  }
  Program program(std::move(graph));
  std::vector<Tensor> tensors;
  for (int i = 0; i < 2; ++i) {  // the second run uses the cache of the first
    DataResult forward = program.forward_data(to_data(inputs));
    tensors = program.backward(std::move(forward.pending), seed_values);
  }
  nb::list arrays;
  size_t next = 0;
  for (Value dx : gradients) {
    if (dx) {
      arrays.append(to_array(tensors[next++]));
    } else {
      arrays.append(nb::none());
    }
  }
  return arrays;
}

}  // namespace

void init_for_tests(nb::module_& m) {
  m.def("set_default_providers", &set_default_providers, nb::arg("choices"),
        "Sets the providers of sessions that name none.");
  m.def("op_table", &op_table, "One dict per operator: its name and what Steep knows of it.",
        nb::sig("def op_table() -> list[dict[str, str | bool]]"));
  m.def("contrib_operators", &contrib_operators,
        "The operators of com.microsoft that models may have.");
  m.def("contrib_signature", &contrib_signature, nb::arg("name"),
        "Inputs (with \"?\": may be left out), number of outputs, attributes with defaults of one.",
        nb::sig("def contrib_signature(name: str) -> dict[str, Any]"));
  m.def("kernels", &kernels, nb::arg("op"),
        "Names of the CPU's kernels for an operator, fastest first.");
  m.def("evaluate_node", &evaluate_node, nb::arg("op"), nb::arg("inputs"), nb::arg("attrs"),
        nb::arg("outputs"), nb::arg("decomposed") = false,
        "Outputs of one node, by its kernel or by its decomposition. An input may be None.");
  m.def("node_gradients", &node_gradients, nb::arg("op"), nb::arg("inputs"), nb::arg("attrs"),
        nb::arg("outputs"), nb::arg("output_grads"), nb::arg("wrt"),
        "Gradients of Σ <output_grads[i], outputs[i]> with respect to the inputs numbered in "
        "`wrt`; None where "
        "none flows.");
  m.def("run_model", &run_model, nb::arg("model"), nb::arg("inputs"), nb::arg("times") = 1,
        nb::arg("max_iterations") = 0,
        nb::sig("def run_model(model: bytes, inputs: list[object], times: int = 1, "
                "max_iterations: int = 0) -> list[object]"),
        "Outputs of a serialised model: arrays, lists of arrays for sequences, None for an empty "
        "optional; inputs likewise. Runs it `times` times.");
  m.def("model_gradients", &model_gradients, nb::arg("model"), nb::arg("inputs"),
        nb::arg("output_grads"), nb::arg("wrt"),
        nb::sig("def model_gradients(model: bytes, inputs: list[object], output_grads: "
                "list[object | None], wrt: list[str]) -> list[object | None]"),
        "Gradients of Σ <output_grads[i], outputs[i]> with respect to the inputs named in `wrt`, "
        "by a forward and a backward run; None where none flows.");
}

}  // namespace steep::python
