#include "train/quantised_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "ops/build.h"
#include "ops/defs/quantize.h"
#include "steep/error.h"
#include "train/parameters.h"

namespace steep {

const char* const kInsteadOfQuantisedOperators =
    "Convert the model to QDQ (pairs of QuantizeLinear and DequantizeLinear around float "
    "operators; quantize_static(…, quant_format=QuantFormat.QDQ) of onnxruntime.quantization), or "
    "train the float original and quantise the result.";

namespace {

/// An operator that computes with quantised numbers, and the inputs that may be weights.
struct QuantisedOperator {
  std::string_view op;
  std::array<int, 2> weights;
};
constexpr std::array<QuantisedOperator, 5> kOperators = {{{"QLinearConv", {3, 8}},
                                                          {"QLinearMatMul", {0, 3}},
                                                          {"MatMulInteger", {0, 1}},
                                                          {"ConvInteger", {1, 1}},
                                                          {"DynamicQuantizeLinear", {-1, -1}}}};

const QuantisedOperator* quantised_operator(Node n) {
  const auto* found = std::find_if(kOperators.begin(), kOperators.end(),
                                   [&](const QuantisedOperator& o) { return o.op == n.op(); });
  return found == kOperators.end() ? nullptr : found;
}

bool reads(Node n, int input, Value v) { return n.input_count() > input && n.input(input) == v; }

bool dequantises(Node n, Value v) { return n.op() == "DequantizeLinear" && reads(n, 0, v); }

bool same(const Tensor& a, const Tensor& b) {
  if (a.defined() != b.defined()) return false;
  return !a.defined() || (a.dtype() == b.dtype() && a.dims() == b.dims() &&
                          std::memcmp(a.data(), b.data(), a.nbytes()) == 0);
}

/// Writes an integer in the range of the dtype. REQUIRES: stores(tensor.dtype()).
void store(Tensor& tensor, int64_t i, double value) {
  const auto integer = static_cast<int64_t>(value);
  const DType dtype = tensor.dtype();
  if (bits_of(dtype) < 8) {  // the low bits of a byte
    const int mask = (1 << bits_of(dtype)) - 1;
    static_cast<uint8_t*>(tensor.data())[i] = static_cast<uint8_t>(integer & mask);
    return;
  }
  // Two's complement: the lowest bytes of the wider integer.
  std::memcpy(static_cast<char*>(tensor.data()) + static_cast<size_t>(i) * size_of(dtype), &integer,
              size_of(dtype));
}

bool stores(DType dtype) {
  return is_integer(dtype) && (bits_of(dtype) <= 16 || dtype == DType::i32);
}

std::vector<double> numbers(const Tensor& integers) {
  const Ints values = integers.to_ints();
  return {values.begin(), values.end()};
}

/// Maps an element to its scale.
class Scales {
 public:
  Scales(const QuantisedWeight& weight, const Dims& dims) : one_(weight.scale.size() == 1) {
    if (one_) return;
    const auto rank = static_cast<int64_t>(dims.size());
    const auto axis = static_cast<size_t>(weight.axis < 0 ? weight.axis + rank : weight.axis);
    extent_ = dims.at(axis);
    for (size_t i = axis + 1; i < dims.size(); ++i) inner_ *= dims[i];
    block_ = weight.block;
    if (block_ > 0) blocks_ = (extent_ + block_ - 1) / block_;
  }

  size_t of(int64_t element) const {
    if (one_) return 0;
    const int64_t at = element / inner_ % extent_;
    if (block_ == 0) return static_cast<size_t>(at);
    const int64_t outer = element / (inner_ * extent_);
    return static_cast<size_t>((outer * blocks_ + at / block_) * inner_ + element % inner_);
  }

 private:
  bool one_;
  int64_t extent_ = 1, inner_ = 1, block_ = 0, blocks_ = 1;
};

/// Whether DequantizeLinear can have these operands: the importer has not checked all of them.
bool fits(const QuantisedWeight& weight, const Dims& dims) {
  if (weight.zero.defined() &&
      (weight.zero.dims() != weight.scale.dims() || weight.zero.dtype() != weight.dtype))
    return false;
  if (weight.scale.size() == 1 && weight.block == 0) return true;
  const auto rank = static_cast<int64_t>(dims.size());
  const int64_t axis = weight.axis < 0 ? weight.axis + rank : weight.axis;
  if (axis < 0 || axis >= rank || weight.block < 0) return false;
  const int64_t extent = dims[static_cast<size_t>(axis)];
  Dims expected{extent};
  if (weight.block > 0) {
    expected = dims;
    expected[static_cast<size_t>(axis)] = (extent + weight.block - 1) / weight.block;
  }
  return weight.scale.dims() == expected;
}

/// The float32 values of a weight.
Tensor dequantised(const QuantisedWeight& weight, const Tensor& integers) {
  Tensor result = Tensor::empty(DType::f32, integers.dims());
  const std::vector<double> values = numbers(integers);
  const std::vector<double> zeros =
      weight.zero.defined() ? numbers(weight.zero) : std::vector<double>();
  const Scales scales(weight, integers.dims());
  for (int64_t i = 0; i < integers.size(); ++i) {
    const size_t s = scales.of(i);
    const double zero = zeros.empty() ? 0 : zeros[s];
    result.data<float>()[i] = static_cast<float>((values[static_cast<size_t>(i)] - zero) *
                                                 double{weight.scale.data<float>()[s]});
  }
  return result;
}

/// A constant scale in float32.
std::optional<Tensor> scale_of(Value scale) {
  const Tensor* tensor = constant(scale);
  if (tensor == nullptr || tensor->dtype() != DType::f32) return std::nullopt;
  return *tensor;
}

/// The first scale by which nothing can be quantised: 0, NaN or infinity. Nothing if there is none.
std::optional<float> unusable(const Tensor& scale) {
  const std::span<const float> all(scale.data<float>(), static_cast<size_t>(scale.size()));
  const auto found =
      std::find_if(all.begin(), all.end(), [](float s) { return !std::isfinite(s) || s == 0; });
  return found == all.end() ? std::nullopt : std::optional<float>(*found);
}

/// How DequantizeLinear reads the weight; nothing if it cannot be trained, with the reason.
std::optional<QuantisedWeight> described(Value v, std::span<const Node> users, std::string* why) {
  if (!stores(v.dtype())) {
    *why = fmt::format("is {}, and only integers of at most 16 bits and int32 can be trained",
                       name_of(v.dtype()));
    return std::nullopt;
  }
  std::optional<QuantisedWeight> result;
  for (Node n : users) {
    if (!dequantises(n, v)) {
      *why = fmt::format("is also read by {} '{}', which passes no gradient", n.op(), n.name());
      return std::nullopt;
    }
    const std::optional<Tensor> scale = scale_of(n.input(1));
    const Value zero = n.input_count() > 2 ? n.input(2) : Value();
    if (!scale || (zero && constant(zero) == nullptr)) {
      *why = "has a scale that is no float32 constant, or a computed zero point";
      return std::nullopt;
    }
    if (const std::optional<float> bad = unusable(*scale)) {
      *why = fmt::format("has the scale {}, by which nothing can be quantised", *bad);
      return std::nullopt;
    }
    QuantisedWeight own{.name = v.name(),
                        .dtype = v.dtype(),
                        .scale = *scale,
                        .zero = zero ? *constant(zero) : Tensor(),
                        .axis = integer_of(n, "axis"),
                        .block = integer_of(n, "block_size")};
    if (!fits(own, v.tensor()->dims())) {
      *why = "has a scale or zero point of another shape";
      return std::nullopt;
    }
    const bool equal = !result || (same(result->scale, own.scale) && same(result->zero, own.zero) &&
                                   result->axis == own.axis && result->block == own.block);
    if (!equal) {
      *why = "is read with several scales";
      return std::nullopt;
    }
    result = std::move(own);
  }
  return result;
}

/// Throws ModelError for a name of what DequantizeLinear returns: the weight is the integers.
void refuse_dequantised(const Graph& graph, std::span<const std::string> names) {
  for (const std::string& name : names) {
    const Value v = graph.find(name);
    const Node n = v ? v.producer() : Node();
    if (!n || n.op() != "DequantizeLinear" || constant(n.input(0)) == nullptr) continue;
    const std::string integers = n.input(0).name();
    throw ModelError(ErrorParts{
        .what = "The model stores this weight as integers, which have another name.",
        .node = name,
        .op = n.op(),
        .expected = fmt::format("'{}', the integers", integers),
        .received = name,
        .remedy = fmt::format("Name '{}': it is trained as floats, and exported as integers of the "
                              "same scale.",
                              integers)});
  }
}

/// Throws ModelError if a scale or zero point is to be trained, too.
void refuse_trained_scale(const std::string& weight, Node dequantize, const Named& trainable) {
  for (int i = 1; i < dequantize.input_count(); ++i) {
    const Value v = dequantize.input(i);
    if (!v || trainable.exact.count(v.name()) == 0) continue;
    throw ModelError(ErrorParts{
        .what = "A scale or zero point cannot be trained beside the integers that it scales.",
        .node = v.name(),
        .expected = fmt::format("'{}' alone, or '{}' alone", weight, v.name()),
        .received = "both in `trainable` (--train)",
        .remedy = "Train the weight: it keeps its scale and zero point."});
  }
}

/// Gives the readers of an integer constant the rounded values of a float constant.
void make_float(Graph& graph, Value v, std::span<const Node> users, const QuantisedWeight& weight) {
  const Tensor values = dequantised(weight, *v.tensor());
  graph.set_tensor(v, values);
  graph.set_type(v, {DType::f32, to_shape(values.dims())});
  for (Node n : users) {
    const DType dtype = n.output(0).dtype();
    Value y = v;
    const Graph::Scope scope(graph, n.phase(), n.name());
    if (weight.dtype == DType::i32) {
      y = cast(v, dtype);
    } else {
      const Value zero = n.input_count() > 2 ? n.input(2) : Value();
      y = apply("steep.FakeQuantize", {v, n.input(1), zero},
                {{"axis", weight.axis},
                 {"block_size", weight.block},
                 {"output_dtype", static_cast<int64_t>(weight.dtype)},
                 {"dtype", static_cast<int64_t>(dtype)}});
    }
    if (y != v) graph.place_like(y.producer(), n);
    graph.replace_uses(n.output(0), y);
    graph.erase(n);
  }
}

}  // namespace

std::vector<QuantisedWeight> train_quantised(Graph& graph,
                                             std::span<const std::string> initializers,
                                             std::span<const std::string> constants,
                                             const TrainingOptions& options) {
  std::vector<QuantisedWeight> result;
  refuse_dequantised(graph, options.trainable);
  refuse_dequantised(graph, options.frozen);
  if (options.trainable.empty()) return result;
  std::vector<std::string> all(initializers.begin(), initializers.end());
  all.insert(all.end(), constants.begin(), constants.end());
  const Named trainable = named_by(options.trainable, all, initializers.size());
  const Named frozen = named_by(options.frozen, all, initializers.size());
  const std::vector<std::vector<Node>> users = graph.users();
  for (const std::string& name : all) {
    const Value v = graph.find(name);
    if (!v || v.tensor() == nullptr || is_float(v.dtype())) continue;
    if (!trainable.has(name) || frozen.has(name)) continue;
    const std::vector<Node>& own = users[v.id()];
    if (std::none_of(own.begin(), own.end(), [&](Node n) { return dequantises(n, v); })) continue;
    const bool named = trainable.exact.count(name) != 0;
    std::string why;
    std::optional<QuantisedWeight> weight;
    if (v.role() == Role::constant) {
      weight = described(v, own, &why);
    } else {
      why = "stays packed beside adapters";
    }
    if (weight) {
      for (Node n : own) refuse_trained_scale(name, n, trainable);
      make_float(graph, v, own, *weight);
      result.push_back(std::move(*weight));
    } else if (named) {
      throw ModelError(ErrorParts{
          .what = "The quantised weight cannot be trained.",
          .node = name,
          .expected =
              "integers that only DequantizeLinear reads, with one constant scale other than 0",
          .received = fmt::format("{}, which {}", to_string(v.type()), why),
          .remedy = "Train the float original and quantise the result, or leave out the name."});
    }
  }
  return result;
}

Tensor quantised(const QuantisedWeight& weight, const Tensor& values) {
  Tensor result = Tensor::empty(weight.dtype, values.dims());
  const std::vector<double> zeros =
      weight.zero.defined() ? numbers(weight.zero) : std::vector<double>();
  const Scales scales(weight, values.dims());
  const bool bias = weight.dtype == DType::i32;
  const QuantisedRange range = bias ? QuantisedRange{std::numeric_limits<int32_t>::min(),
                                                     std::numeric_limits<int32_t>::max()}
                                    : quantised_range(weight.dtype);
  for (int64_t i = 0; i < values.size(); ++i) {
    const float x = values.data<float>()[i];
    if (!std::isfinite(x)) {
      throw DataError(
          ErrorParts{.what = "A weight cannot be quantised.",
                     .node = weight.name,
                     .expected = "finite values",
                     .received = fmt::format("{} at element {}", x, i),
                     .remedy = "Train with a smaller rate, or from an earlier checkpoint."});
    }
    const size_t s = scales.of(i);
    const double exact = double{x} / double{weight.scale.data<float>()[s]};
    // The kernel of QuantizeLinear rounds to the dtype of the scale first.
    const double quotient = bias ? exact : double{static_cast<float>(exact)};
    const double q = std::nearbyint(quotient) + (zeros.empty() ? 0 : zeros[s]);
    store(result, i, q > range.low ? std::min(q, range.high) : range.low);
  }
  return result;
}

IntegerUses::IntegerUses(const Graph& graph, std::span<const Value> losses)
    : users_(graph.value_count()), feeding_(graph.value_count(), 0) {
  std::vector<char> live(graph.value_count(), 0);
  for (Value loss : losses) live[loss.id()] = 1;
  const std::vector<Node> order = graph.nodes();
  for (auto n = order.rbegin(); n != order.rend(); ++n) {
    bool any = false, feeds = quantised_operator(*n) != nullptr;
    for (int i = 0; i < n->output_count(); ++i) {
      if (!n->output(i)) continue;
      any = any || live[n->output(i).id()] != 0;
      feeds = feeds || feeding_[n->output(i).id()] != 0;
    }
    if (!any) continue;
    if (quantised_operator(*n) != nullptr) operators_.insert(operators_.begin(), *n);
    for (int i = 0; i < n->input_count(); ++i) {
      if (!n->input(i)) continue;
      live[n->input(i).id()] = 1;
      if (feeds) feeding_[n->input(i).id()] = 1;
      users_[n->input(i).id()].push_back(*n);
    }
  }
}

std::string IntegerUses::why_not(Value constant) const {
  const std::vector<Node>& users = users_[constant.id()];
  for (Node n : users) {
    const QuantisedOperator* op = quantised_operator(n);
    if (op == nullptr) continue;
    const bool weighs = std::any_of(op->weights.begin(), op->weights.end(),
                                    [&](int i) { return i >= 0 && reads(n, i, constant); });
    if (weighs)
      return fmt::format(
          "is an operand of {}, which has no gradient: use QDQ, or the float "
          "original",
          n.op());
  }
  for (Node n : users) {
    if (!dequantises(n, constant)) continue;
    std::string why;
    if (!described(constant, users, &why)) return why;
    return fmt::format("is quantised to {}; name it to train it", name_of(constant.dtype()));
  }
  const bool narrow = is_integer(constant.dtype()) && size_of(constant.dtype()) == 1;
  for (Node n : users) {
    if (narrow && constant.rank() > 0 && n.op() == "Cast" && is_float(n.output(0).dtype()))
      return fmt::format("is {}, and a Cast passes no gradient", name_of(constant.dtype()));
  }
  return "";
}

void IntegerUses::refuse_operators() const {
  if (operators_.empty()) return;
  std::set<std::string> names;
  for (Node n : operators_) names.insert(n.op());
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "" : ", ") + name;
  throw ModelError(ErrorParts{
      .what = fmt::format("{} node(s) compute with quantised numbers ({}), and quantised operators "
                          "have no gradient.",
                          operators_.size(), list),
      .node = operators_.front().name(),
      .op = std::string(operators_.front().op()),
      .expected = "float operators, quantised by QuantizeLinear and DequantizeLinear (QDQ)",
      .received = std::string(operators_.front().op()),
      .remedy = fmt::format("{} To train only what follows the last of these nodes, name it "
                            "(trainable, --train).",
                            kInsteadOfQuantisedOperators)});
}

void keep_only(std::vector<QuantisedWeight>& weights, const std::vector<std::string>& names) {
  std::erase_if(weights, [&](const QuantisedWeight& weight) {
    return std::find(names.begin(), names.end(), weight.name) == names.end();
  });
}

}  // namespace steep
