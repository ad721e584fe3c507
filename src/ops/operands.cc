#include "ops/operands.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <sstream>
#include <unordered_map>

#include "ops/build.h"
#include "ops/op_def.h"
#include "ops/own_types.h"
#include "steep/error.h"

namespace steep {
namespace {

constexpr const char* kCast = "Put a Cast in front, or export the model again.";

using Parameter = onnx::OpSchema::FormalParameter;

const Parameter& formal_input(const onnx::OpSchema& schema, size_t i) {
  return schema.inputs()[std::min(i, schema.inputs().size() - 1)];
}

/// How many operands the schema speaks of: those that a body captures come after them.
size_t operand_count(Node n, const onnx::OpSchema& schema) {
  const auto& formal = schema.inputs();
  const bool variadic = !formal.empty() && formal.back().GetOption() == onnx::OpSchema::Variadic;
  return variadic ? std::max(formal.size(), static_cast<size_t>(n.input_count())) : formal.size();
}

void check_presence(Node n, const onnx::OpSchema& schema) {
  for (size_t i = 0; i < operand_count(n, schema); ++i) {
    const Parameter& parameter = formal_input(schema, i);
    if (parameter.GetOption() == onnx::OpSchema::Optional || n.input(static_cast<int>(i))) continue;
    throw ShapeError({.what = "A node lacks an input.",
                      .node = n.name(),
                      .op = n.op(),
                      .expected = fmt::format("input {}, {}", i, parameter.GetName()),
                      .received = "none",
                      .remedy = "Export the model again."});
  }
}

bool takes_floats(const Parameter& parameter) {
  const auto& types = parameter.GetTypes();
  return std::any_of(types.begin(), types.end(), [](const std::string* type) {
    return type->find("float") != std::string::npos || type->find("double") != std::string::npos;
  });
}

/// ONNX's functions take the dtype of the first operand for that of all, and integers for granted.
/// What they give is the type of the bytes that kernels and gradients work on: operands of one type
/// variable must agree, where rules of ours do not say otherwise, and axes, shapes and indices be
/// integers.
void check_dtypes(Node n, const onnx::OpSchema& schema) {
  std::unordered_map<std::string_view, Value> first;  // by type variable
  const OpDef* def = find_op(n.op());
  const bool own_types = def != nullptr && def->infer != nullptr;
  for (size_t i = 0; i < operand_count(n, schema); ++i) {
    const auto& parameter = formal_input(schema, i);
    const Value x = n.input(static_cast<int>(i));
    if (!x || !parameter.GetIsHomogeneous()) continue;
    if (is_float(x.dtype()) && !takes_floats(parameter)) {
      throw ShapeError({.what = "An operand has to be integers.",
                        .node = n.name(),
                        .op = n.op(),
                        .expected = parameter.GetTypeStr() + " " + parameter.GetName(),
                        .received = to_string(x.type()) + " " + x.name(),
                        .remedy = kCast});
    }
    if (own_types) continue;
    const Value other = first.try_emplace(parameter.GetTypeStr(), x).first->second;
    if (other.dtype() == x.dtype()) continue;
    throw ShapeError({.what = "Operands of a node differ in dtype.",
                      .node = n.name(),
                      .op = n.op(),
                      .expected = to_string(other.type()) + " " + other.name(),
                      .received = to_string(x.type()) + " " + x.name(),
                      .remedy = kCast});
  }
}

void check_ranks(Node n) {
  const OpDef* def = find_op(n.op());
  if (def == nullptr) return;
  std::istringstream words{std::string(def->ranks)};
  std::string word;
  for (int i = 0; words >> word; ++i) {
    const Value x = n.input(i);
    if (word == "." || !x || x.type().kind != Kind::tensor || !x.type().shape) continue;
    const int64_t rank = x.rank();
    int64_t wanted = word[0] - '0';
    if (word == "s") {
      const Dim one = rank == 1 ? x.shape()[0] : Dim();
      const bool fits = !n.input(0).type().shape || n.input(0).rank() > 0;
      if (rank == 1 && fits && (!one.known() || one.value() == 1)) continue;
      wanted = 0;
    }
    if (word == "=" || word == "<") {
      if (!n.input(0).type().shape) continue;
      wanted = n.input(0).rank() - (word == "<" ? 1 : 0);
    }
    const bool or_more = word.back() == '+';
    if (rank == wanted || (or_more && rank > wanted)) continue;
    throw ShapeError({.what = "An operand has the wrong number of dimensions.",
                      .node = n.name(),
                      .op = n.op(),
                      .expected = fmt::format("input {} of {}{} dimension(s)", i,
                                              or_more ? "at least " : "", wanted),
                      .received = to_string(x.type()) + " " + x.name(),
                      .remedy = "Check the shapes fed to the model, or export it again."});
  }
}

/// Settings that are multiplied with extents, or divide them.
struct Setting {
  std::string_view name;
  int64_t least, most = kFar;
};
constexpr std::array kSettings = {
    Setting{"block_size", 0},
    Setting{"blocksize", 1},
    Setting{"dilations", 1},
    Setting{"group", 1},
    Setting{"hidden_size", 1},
    Setting{"kernel_shape", 1},
    Setting{"num_groups", 1},
    Setting{"offset_group", 1},
    Setting{"output_height", 0},
    Setting{"output_padding", 0},
    Setting{"output_shape", 0},
    Setting{"output_width", 0},
    Setting{"pads", -kFar},
    Setting{"pooled_shape", 0},
    Setting{"sampling_ratio", -kFar, 1024},
    Setting{"size", 1},
    Setting{"strides", 1},
};

/// Products of two of these, and sums of a few, stay far from overflowing.
void check_settings(Node n) {
  auto refuse = [&](std::string_view what, int64_t least, int64_t most, int64_t received) {
    throw ShapeError({.what = "A window or block of a node reaches too far.",
                      .node = n.name(),
                      .op = n.op(),
                      .expected = fmt::format("{} from {} to {}", what, least, most),
                      .received = std::to_string(received),
                      .remedy = "Export the model again."});
  };
  bool any = false;
  for (const auto& [name, least, most] : kSettings) {
    const Attr* attribute = n.attrs().find(name);
    if (attribute == nullptr) continue;
    const auto* list = std::get_if<Ints>(attribute);
    const auto* one = std::get_if<int64_t>(attribute);
    if (list == nullptr && one == nullptr) continue;
    any = true;
    for (int64_t v : list != nullptr ? *list : Ints{*one}) {
      if (v < least || v > most) refuse(name, least, most, v);
    }
  }
  const OpDef* def = find_op(n.op());
  for (const auto& [input, least] : def != nullptr ? def->sizes : std::vector<SizeInput>{}) {
    const Tensor* sizes = constant(n.input(input));
    if (sizes == nullptr || !is_integer(sizes->dtype())) continue;
    for (int64_t v : sizes->to_ints()) {
      if (v < least || v > kFar) refuse(n.input(input).name(), least, kFar, v);
    }
  }
  for (int i = 0; any && i < n.input_count(); ++i) {
    if (!n.input(i) || !n.input(i).type().shape) continue;
    for (const Dim& d : n.input(i).shape()) {
      if (d.value() > 2 * kFar) refuse("extents", 0, 2 * kFar, d.value());
    }
  }
}

}  // namespace

void check_operands(Node n, const onnx::OpSchema& schema) {
  check_presence(n, schema);
  check_dtypes(n, schema);
  check_ranks(n);
  check_settings(n);
}

}  // namespace steep
