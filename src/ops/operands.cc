#include "ops/operands.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <sstream>
#include <unordered_map>

#include "ops/build.h"
#include "ops/op_def.h"
#include "ops/steep_types.h"
#include "steep/error.h"

namespace steep {
namespace {

constexpr const char* kCast = "Insert a Cast before it, or export the model again.";

using Parameter = onnx::OpSchema::FormalParameter;

const Parameter& formal_input(const onnx::OpSchema& schema, size_t i) {
  return schema.inputs()[std::min(i, schema.inputs().size() - 1)];
}

/// The number of operands that the schema describes. Captured operands of a body come after them.
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

/// Whether the schema allows the dtype. Float dtypes are always allowed: rules and passes work in
/// every width.
bool takes(const Parameter& parameter, DType dtype) {
  if (!is_integer(dtype) && dtype != DType::boolean) return true;
  const std::string text = fmt::format("tensor({})", name_of(dtype));
  const auto& types = parameter.GetTypes();
  return types.empty() || std::any_of(types.begin(), types.end(),
                                      [&](const std::string* type) { return *type == text; });
}

bool takes_floats(const Parameter& parameter) {
  const auto& types = parameter.GetTypes();
  return std::any_of(types.begin(), types.end(), [](const std::string* type) {
    return type->find("float") != std::string::npos || type->find("double") != std::string::npos;
  });
}

std::string type_names(const Parameter& parameter) {
  std::vector<std::string> names;
  for (const std::string* type : parameter.GetTypes()) names.push_back(*type);
  std::sort(names.begin(), names.end());
  return fmt::format("{}", fmt::join(names, " or "));
}

/// ONNX's functions assume that all operands have the dtype of the first, and that indices are
/// integers. Kernels and gradients rely on the inferred types, so this checks that operands of one
/// type variable agree (unless Steep has its own type rule), and that axes, shapes and indices are
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
      throw ShapeError({.what = "An operand has to have an integer type.",
                        .node = n.name(),
                        .op = n.op(),
                        .expected = parameter.GetTypeStr() + " " + parameter.GetName(),
                        .received = to_string(x.type()) + " " + x.name(),
                        .remedy = kCast});
    }
    if (own_types) continue;
    if (x.type().kind == Kind::tensor && !takes(parameter, x.dtype())) {
      throw ShapeError({.what = "An operand has a type that the operator does not take.",
                        .node = n.name(),
                        .op = n.op(),
                        .expected = type_names(parameter) + " " + parameter.GetName(),
                        .received = to_string(x.type()) + " " + x.name(),
                        .remedy = kCast});
    }
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

/// Throws ShapeError unless the operand has one element. Kernels read only its first element.
void check_single(Node n, int input) {
  const Value x = n.input(input);
  const Shape& shape = x.shape();
  if (std::all_of(shape.begin(), shape.end(),
                  [](const Dim& d) { return !d.known() || d.value() == 1; })) {
    return;
  }
  throw ShapeError({.what = "An operand has to be a single value.",
                    .node = n.name(),
                    .op = n.op(),
                    .expected = fmt::format("one element in input {}", input),
                    .received = to_string(x.type()) + " " + x.name(),
                    .remedy = "Check what is fed to the model, or export it again."});
}

void check_ranks(Node n) {
  const OpDef* def = find_op(n.op());
  if (def == nullptr) return;
  std::istringstream words{std::string(def->ranks)};
  std::string word;
  for (int i = 0; words >> word; ++i) {
    const Value x = n.input(i);
    if (word == "." || !x || x.type().kind != Kind::tensor || !x.type().shape) continue;
    if (word == "e") {
      check_single(n, i);
      continue;
    }
    const int64_t rank = x.rank();
    int64_t target = word[0] - '0';
    if (word == "s") {
      const Dim one = rank == 1 ? x.shape()[0] : Dim();
      const bool fits = !n.input(0).type().shape || n.input(0).rank() > 0;
      if (rank == 1 && fits && (!one.known() || one.value() == 1)) continue;
      target = 0;
    }
    if (word == "=" || word == "<") {
      if (!n.input(0).type().shape) continue;
      target = n.input(0).rank() - (word == "<" ? 1 : 0);
    }
    const bool or_more = word.back() == '+';
    if (rank == target || (or_more && rank > target)) continue;
    throw ShapeError({.what = "An operand has the wrong number of dimensions.",
                      .node = n.name(),
                      .op = n.op(),
                      .expected = fmt::format("input {} of {}{} dimension(s)", i,
                                              or_more ? "at least " : "", target),
                      .received = to_string(x.type()) + " " + x.name(),
                      .remedy = "Check the shapes fed to the model, or export it again."});
  }
}

/// Settings that are multiplied with extents, or that divide them.
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

/// The allowed words of a text attribute; `op` is empty when they hold for all operators that have
/// the attribute.
struct Text {
  std::string_view op, name, words;
};
constexpr std::array kTexts = {
    Text{"", "auto_pad", "NOTSET SAME_UPPER SAME_LOWER VALID"},
    Text{"", "approximate", "none tanh"},
    Text{"BitShift", "direction", "LEFT RIGHT"},
    Text{"DepthToSpace", "mode", "DCR CRD"},
    Text{"GRU", "direction", "forward reverse bidirectional"},
    Text{"GridSample", "mode", "linear nearest cubic bilinear bicubic"},
    Text{"GridSample", "padding_mode", "zeros border reflection"},
    Text{"LSTM", "direction", "forward reverse bidirectional"},
    Text{"NegativeLogLikelihoodLoss", "reduction", "none mean sum"},
    Text{"Pad", "mode", "constant reflect edge wrap"},
    Text{"RNN", "direction", "forward reverse bidirectional"},
    Text{"Resize", "coordinate_transformation_mode",
         "half_pixel half_pixel_symmetric pytorch_half_pixel align_corners asymmetric "
         "tf_half_pixel_for_nn tf_crop_and_resize"},
    Text{"Resize", "keep_aspect_ratio_policy", "stretch not_larger not_smaller"},
    Text{"Resize", "mode", "nearest linear cubic"},
    Text{"Resize", "nearest_mode", "round_prefer_floor round_prefer_ceil floor ceil simple"},
    Text{"RoiAlign", "coordinate_transformation_mode", "half_pixel output_half_pixel"},
    Text{"RoiAlign", "mode", "avg max"},
    Text{"ScatterElements", "reduction", "none add mul max min"},
    Text{"ScatterND", "reduction", "none add mul max min"},
    Text{"SoftmaxCrossEntropyLoss", "reduction", "none mean sum"},
    Text{"TensorScatter", "mode", "linear circular"},
    Text{"TfIdfVectorizer", "mode", "TF IDF TFIDF"},
};

bool has_word(std::string_view words, const std::string& word) {
  std::istringstream all{std::string(words)};
  return std::find(std::istream_iterator<std::string>(all), {}, word) !=
         std::istream_iterator<std::string>();
}

/// Refuses unknown words: rules compare with one word and would treat any other text as the
/// default.
void check_texts(Node n) {
  for (const auto& [op, name, words] : kTexts) {
    if (!op.empty() && op != n.op()) continue;
    const Attr* attribute = n.attrs().find(name);
    const auto* text = attribute != nullptr ? std::get_if<std::string>(attribute) : nullptr;
    if (text == nullptr || has_word(words, *text)) continue;
    throw ModelError({.what = "An attribute has a value that its operator does not know.",
                      .node = n.name(),
                      .op = n.op(),
                      .expected = fmt::format("{}: one of {}", name, words),
                      .received = *text,
                      .remedy = "Export the model again."});
  }
}

/// Limits the settings so that products of two of them, and sums of a few, cannot overflow.
void check_settings(Node n) {
  auto refuse = [&](std::string_view what, int64_t least, int64_t most, int64_t received) {
    throw ShapeError({.what = "A window or block of a node is out of range.",
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
  check_texts(n);
}

}  // namespace steep
