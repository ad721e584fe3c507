#include "train/custom_optimizer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "ir/splice.h"
#include "model/import/import.h"
#include "ops/build.h"
#include "ops/onnx_proto.h"
#include "runtime/float32.h"
#include "steep/error.h"

namespace steep {
namespace {

constexpr const char* kWeightDecay = "weight_decay";

/// The type of each attribute, by name; UNDEFINED if only the node that calls the function says it.
std::map<std::string, int> attribute_types(const onnx::FunctionProto& f) {
  std::map<std::string, int> types;
  for (const auto& name : f.attribute()) types[name] = onnx::AttributeProto::UNDEFINED;
  for (const auto& attribute : f.attribute_proto()) types[attribute.name()] = attribute.type();
  return types;
}

[[noreturn]] void refuse(const CustomOptimizer& optimizer, std::string what, std::string expected,
                         std::string received, std::string remedy) {
  throw ModelError({.what = std::move(what),
                    .node = optimizer.body.name(),
                    .expected = std::move(expected),
                    .received = std::move(received),
                    .remedy = std::move(remedy)});
}

/// The attributes of the node that calls the function.
std::map<std::string, double> given_numbers(const CustomOptimizer& optimizer,
                                            const OptimizerOptions& options) {
  std::map<std::string, double> numbers = options.attributes;
  if (attribute_types(optimizer.body).count(kWeightDecay) != 0)
    numbers[kWeightDecay] = options.weight_decay;
  return numbers;
}

/// A model of one node that calls the optimizer's function on operands of these types. The node has
/// the optimizer's name.
std::string model_of(const CustomOptimizer& optimizer, std::span<const Value> operands, int results,
                     const OptimizerOptions& options) {
  onnx::ModelProto model = optimizer.library;
  onnx::OperatorSetIdProto* import = model.add_opset_import();
  import->set_domain(std::string(kOptimizerDomain));
  import->set_version(1);
  onnx::GraphProto& graph = *model.mutable_graph();
  onnx::NodeProto& node = *graph.add_node();
  node.set_name(optimizer.body.name());
  node.set_op_type(optimizer.body.name());
  node.set_domain(std::string(kOptimizerDomain));
  for (size_t i = 0; i < operands.size(); ++i) {
    onnx::ValueInfoProto& input = *graph.add_input();
    input.set_name(fmt::format("in{}", i));
    *input.mutable_type() = to_proto(operands[i].type());
    node.add_input(input.name());
  }
  for (int i = 0; i < results; ++i) {
    node.add_output(fmt::format("out{}", i));
    onnx::ValueInfoProto& output = *graph.add_output();
    output.set_name(node.output(i));
    *output.mutable_type() = to_proto(Type{operands[0].dtype(), std::nullopt});
  }
  const std::map<std::string, int> types = attribute_types(optimizer.body);
  for (const auto& [name, number] : given_numbers(optimizer, options)) {
    onnx::AttributeProto& attribute = *node.add_attribute();
    attribute.set_name(name);
    if (types.at(name) == onnx::AttributeProto::INT) {
      attribute.set_type(onnx::AttributeProto::INT);
      attribute.set_i(static_cast<int64_t>(number));
    } else {
      attribute.set_type(onnx::AttributeProto::FLOAT);
      attribute.set_f(static_cast<float>(number));
    }
  }
  return model.SerializeAsString();
}

}  // namespace

std::shared_ptr<const CustomOptimizer> custom_optimizer(const OptimizerOptions& options) {
  if (options.own && options.own->body.name() == options.kind) return options.own;
  const std::shared_ptr<const CustomFunctions> now = custom_functions();
  const auto found = now->optimizers.find(options.kind);
  return found == now->optimizers.end() ? nullptr : found->second;
}

void hold_own_optimizers(TrainingOptions* options) {
  options->optimizer.own = custom_optimizer(options->optimizer);
  for (ParameterGroup& group : options->groups) {
    if (group.optimizer) group.optimizer->own = custom_optimizer(*group.optimizer);
  }
}

void check_attributes(const CustomOptimizer& optimizer, const OptimizerOptions& options) {
  const std::map<std::string, int> types = attribute_types(optimizer.body);
  std::vector<std::string> names;
  for (const auto& [name, type] : types) {
    if (name != kWeightDecay) names.push_back(name);
  }
  const std::string list = names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "));
  for (const auto& [name, number] : options.attributes) {
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      refuse(optimizer, fmt::format("The optimizer has no attribute {}.", name), list, name,
             name == kWeightDecay ? "The session's weight_decay sets it."
                                  : "Declare it in the function that is registered.");
    }
    const int type = types.at(name);
    const bool whole = type == onnx::AttributeProto::INT;
    const bool fits =
        whole ? std::abs(number) < 0x1p53 && number == std::floor(number) : fits_float32(number);
    if (fits &&
        (whole || type == onnx::AttributeProto::FLOAT || type == onnx::AttributeProto::UNDEFINED)) {
      continue;
    }
    refuse(optimizer, fmt::format("The value of the optimizer's attribute {} is not valid.", name),
           whole ? "a whole number"
                 : "a number that is finite in float32, of an attribute that is a number",
           fmt::format("{}", number), "");
  }
  for (const auto& name : optimizer.body.attribute()) {
    if (name == kWeightDecay || options.attributes.count(name) != 0) continue;
    refuse(optimizer, "The optimizer lacks an attribute that has no default.", name,
           "no attribute of that name", "Set it in `attributes`, or give it a default.");
  }
  if (options.weight_decay != 0 && types.count(kWeightDecay) == 0) {
    refuse(optimizer, "The optimizer has no weight decay.",
           "0, or a function with the attribute weight_decay: float = 0.0",
           fmt::format("weight_decay {}", options.weight_decay), "");
  }
}

void add_own_update(const CustomOptimizer& optimizer, const Weight& weight,
                    std::span<const Value> states, const UpdateInputs& in,
                    const OptimizerOptions& options) {
  const Value parameter = weight.state();
  Graph& g = parameter.graph();
  const DType dtype = update_dtype(parameter.type());
  Value gradient = cast(in.gradient, dtype);
  if (in.grad_scale) gradient = gradient * cast(in.grad_scale, dtype);
  if (options.maximize) gradient = -gradient;
  // For a custom optimizer settings_of() has one element, the rate.
  const Value lr = in.lr.rank() == 0 ? in.lr : squeeze(in.lr, {0});
  std::vector<Value> operands{weight.now(), gradient};
  // The extents of a sum of broadcast gradients may still be unknown; they are those of the
  // parameter.
  if (!gradient.type().concrete()) operands[1] = reshape_like(gradient, parameter);
  operands.insert(operands.end(), states.begin(), states.end());
  operands.push_back(cast(lr, dtype));
  operands.push_back(cast(in.step, DType::i64));

  const auto results = static_cast<int>(states.size()) + 1;
  const std::string bytes = model_of(optimizer, operands, results, options);
  const ImportedModel model =
      import_model(std::as_bytes(std::span(bytes)), {.training = false, .registered = false});
  if (model.graph.inputs().size() != operands.size()) {
    refuse(optimizer, "An optimizer draws random numbers.",
           "an update that follows from its inputs", "a random operator in its body",
           "Leave it out.");
  }
  const std::vector<Value> values = splice(model.graph, g, operands);
  std::vector<Value> targets{parameter};
  targets.insert(targets.end(), states.begin(), states.end());
  for (size_t i = 0; i < targets.size(); ++i) {
    const Type expected{dtype, targets[i].type().shape};
    const Type& type = values[i].type();
    if (type.kind != Kind::tensor || type.dtype != dtype || !type.shape ||
        !provably_equal(*type.shape, *expected.shape)) {
      refuse(optimizer,
             "A result of an optimizer has another type than the value that it replaces.",
             fmt::format("{} as {}, the new {}", to_string(expected),
                         optimizer.body.output(static_cast<int>(i)), targets[i].name()),
             to_string(type), "Correct the function that is registered.");
    }
  }
  // Each state is written by a node of its own, because the function may return a value that has
  // other readers: a gradient, another state, or a value that its body also uses.
  weight.write(values[0]);
  for (size_t i = 1; i < targets.size(); ++i)
    g.add_update(targets[i], apply("steep.Assign", {targets[i], values[i]}));
}

}  // namespace steep
