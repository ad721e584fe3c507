#include "train/own_loss.h"

#include <fmt/format.h>
#include <onnx/onnx_pb.h>

#include <filesystem>
#include <map>
#include <set>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "model/export/detached.h"
#include "model/import/import.h"
#include "model/read/model_file.h"
#include "ops/onnx_proto.h"
#include "steep/error.h"
#include "train/loss.h"

namespace steep {
namespace {

constexpr std::string_view kEnding = ".onnx";

bool is_path(const std::string& loss) { return std::string_view(loss).ends_with(kEnding); }

[[noreturn]] void refuse(const TrainingOptions& options, std::string expected,
                         std::string received) {
  throw ModelError(ErrorParts{.what = "The model of a loss does not have the form of a loss.",
                              .node = options.loss,
                              .expected = std::move(expected),
                              .received = std::move(received),
                              .remedy = "Write it as (scores, labels) => (loss)."});
}

/// The inputs that are fed: those without an initializer.
std::vector<onnx::ValueInfoProto*> fed_inputs(onnx::GraphProto* graph) {
  std::set<std::string> given;
  for (const auto& tensor : graph->initializer()) given.insert(tensor.name());
  std::vector<onnx::ValueInfoProto*> inputs;
  for (auto& input : *graph->mutable_input()) {
    if (given.count(input.name()) == 0) inputs.push_back(&input);
  }
  return inputs;
}

/// Gives the declared extents of the scores, and the labels' extents of the same names, those of
/// `scores`. Ranks and numbers that differ are errors.
void bind(onnx::ValueInfoProto* declared, onnx::ValueInfoProto* labels, const Value& scores,
          const TrainingOptions& options) {
  const auto& before = declared->type().tensor_type();
  const onnx::TypeProto type = to_proto(scores.type());
  const auto& shape = type.tensor_type().shape();
  bool fits = before.elem_type() == type.tensor_type().elem_type();
  std::map<std::string, onnx::TensorShapeProto::Dimension> extents;
  if (before.has_shape() && type.tensor_type().has_shape()) {
    fits = fits && before.shape().dim_size() == shape.dim_size();
    for (int i = 0; fits && i < shape.dim_size(); ++i) {
      const auto& own = before.shape().dim(i);
      if (!own.dim_param().empty()) extents[own.dim_param()] = shape.dim(i);
      if (own.has_dim_value() && shape.dim(i).has_dim_value())
        fits = own.dim_value() == shape.dim(i).dim_value();
    }
  }
  if (!fits) {
    throw ShapeError(ErrorParts{.what = "The model of a loss does not take such scores.",
                                .node = options.loss,
                                .expected = declared->name() + " of the type that it declares",
                                .received = to_string(scores.type()) + " of " + scores.name(),
                                .remedy = "Declare its first input so, or leave its shape out; "
                                          "output= (--output) chooses another value to read."});
  }
  *declared->mutable_type() = type;
  auto* own = labels->mutable_type()->mutable_tensor_type();
  for (int i = 0; own->has_shape() && i < own->shape().dim_size(); ++i) {
    const auto found = extents.find(own->shape().dim(i).dim_param());
    if (found != extents.end()) *own->mutable_shape()->mutable_dim(i) = found->second;
  }
}

}  // namespace

bool is_own_loss(const TrainingOptions& options) {
  return !options.loss_model.empty() || is_path(options.loss);
}

void hold_own_loss(TrainingOptions* options) {
  if (!options->loss_model.empty() || !is_path(options->loss)) return;
  const std::string file = read_file(options->loss, options->limits.max_bytes);
  const std::filesystem::path folder = std::filesystem::absolute(options->loss).parent_path();
  options->loss_model =
      DetachedModel(std::as_bytes(std::span(file)), {}, folder, options->limits).whole();
}

OwnLoss own_loss(const Value& scores, const TrainingOptions& options) {
  TrainingOptions held = options;
  hold_own_loss(&held);
  onnx::ModelProto model = parse_model(std::as_bytes(std::span(held.loss_model)), options.limits);
  const std::vector<onnx::ValueInfoProto*> inputs = fed_inputs(model.mutable_graph());
  if (inputs.size() != 2 || model.graph().output_size() != 1) {
    refuse(options, "2 inputs without initializers, and 1 output",
           fmt::format("{} and {}", inputs.size(), model.graph().output_size()));
  }
  bind(inputs[0], inputs[1], scores, options);
  const std::string bytes = model.SerializeAsString();
  OwnLoss loss{
      std::move(import_model(std::as_bytes(std::span(bytes)), {.limits = options.limits}).graph)};
  if (loss.graph.inputs().size() != 2)
    refuse(options, "a loss that follows from its inputs", "random operators");
  const Type& result = loss.graph.outputs()[0].value.type();
  if (result.kind != Kind::tensor || !is_float(result.dtype) || !may_be_one_element(result))
    refuse(options, "an output of one float element", to_string(result));
  return loss;
}

}  // namespace steep
