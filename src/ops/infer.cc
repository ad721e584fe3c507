// Types of outputs: ONNX's inference functions on Steep's graph for ONNX's ops, OpDef::infer for
// Steep's ops.

#include <fmt/format.h>
#include <google/protobuf/arena.h>
#include <onnx/defs/schema.h>
#include <onnx/defs/shape_inference.h>

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "ops/build.h"
#include "ops/onnx_proto.h"
#include "ops/op_def.h"
#include "ops/operands.h"
#include "ops/shape_arithmetic.h"
#include "steep/error.h"

namespace steep {
namespace {

// Larger constants do not take part in inference, unless the node has as many outputs (the sizes of
// Split): no shape function reads them.
constexpr int64_t kMaxInferenceData = 1024;

/// One node of the graph, as ONNX's inference sees it. Lives for one inference call.
class Context final : public onnx::InferenceContext, public onnx::DataPropagationContext {
 public:
  explicit Context(Node n) : node_(n) {
    for (const auto& [name, attr] : n.attrs()) attrs_.emplace_back(to_proto(name, attr));
    const auto inputs = static_cast<size_t>(n.input_count());
    in_types_.resize(inputs);
    in_data_.resize(inputs);
    in_contents_.resize(inputs);
    for (size_t i = 0; i < inputs; ++i) {
      Value x = n.input(static_cast<int>(i));
      if (!x) continue;
      in_types_[i] = std::make_unique<onnx::TypeProto>(to_proto(x.type()));
      if (x.role() == Role::constant &&
          x.tensor()->size() <= std::max<int64_t>(kMaxInferenceData, n.output_count())) {
        in_data_[i] = std::make_unique<onnx::TensorProto>(to_proto(*x.tensor()));
        if (x.dtype() == DType::i64 && x.tensor()->dims().size() <= 1) {
          in_contents_[i] = std::make_unique<onnx::TensorShapeProto>();
          for (int64_t v : x.tensor()->to_ints()) in_contents_[i]->add_dim()->set_dim_value(v);
        }
      } else if (const Shape* contents = n.graph().contents(x)) {
        in_contents_[i] = std::make_unique<onnx::TensorShapeProto>();
        to_proto(*contents, in_contents_[i].get());
      }
    }
    for (int i = 0; i < n.output_count(); ++i) {
      out_types_.push_back(google::protobuf::Arena::CreateMessage<onnx::TypeProto>(&arena_));
    }
    out_contents_.resize(out_types_.size());
  }

  const onnx::AttributeProto* getAttribute(const std::string& name) const override {
    for (const auto& a : attrs_) {
      if (a.name() == name) return &a;
    }
    return nullptr;
  }
  size_t getNumInputs() const override { return in_types_.size(); }
  const onnx::TypeProto* getInputType(size_t i) const override {
    return i < in_types_.size() ? in_types_[i].get() : nullptr;
  }
  const onnx::TensorProto* getInputData(size_t i) const override {
    return i < in_data_.size() ? in_data_[i].get() : nullptr;
  }
  const onnx::TensorShapeProto* getInputData(size_t i) override { return getSymbolicInput(i); }
  const onnx::TensorShapeProto* getSymbolicInput(size_t i) const override {
    return i < in_contents_.size() ? in_contents_[i].get() : nullptr;
  }
  const onnx::SparseTensorProto* getInputSparseData(size_t) const override { return nullptr; }
  size_t getNumOutputs() const override { return out_types_.size(); }
  onnx::TypeProto* getOutputType(size_t i) override { return out_types_.at(i); }
  const onnx::TypeProto* getOutputType(size_t i) const override { return out_types_.at(i); }
  onnx::GraphInferencer* getGraphAttributeInferencer(const std::string&) override {
    return nullptr;
  }
  std::string getDisplayName() const override { return node_.name(); }
  void addOutputData(size_t i, onnx::TensorShapeProto&& data) override {
    out_contents_.at(i) = shape_from_proto(data);
  }

  std::vector<std::optional<Shape>>& out_contents() { return out_contents_; }
  const std::vector<onnx::TypeProto*>& out_types() const { return out_types_; }
  /// Only scalars and vectors have contents, but ONNX's functions treat every tensor as a vector.
  bool makes_vector() const {
    const auto& tensor = out_types_.front()->tensor_type();
    return tensor.has_shape() && tensor.shape().dim_size() <= 1;
  }

 private:
  Node node_;
  std::vector<onnx::AttributeProto> attrs_;
  std::vector<std::unique_ptr<onnx::TypeProto>> in_types_;
  std::vector<std::unique_ptr<onnx::TensorProto>> in_data_;
  std::vector<std::unique_ptr<onnx::TensorShapeProto>> in_contents_;
  // ONNX's functions fill these. They are in an arena because the arena does not destroy a message
  // that is left incomplete when memory runs out; protobuf would crash there (onnx_proto.cc).
  google::protobuf::Arena arena_;
  std::vector<onnx::TypeProto*> out_types_;
  std::vector<std::optional<Shape>> out_contents_;
};

const onnx::OpSchema* schema_of(const std::string& op) {
  thread_local std::unordered_map<std::string, const onnx::OpSchema*> cache;
  auto [it, fresh] = cache.try_emplace(op, nullptr);
  if (fresh) it->second = onnx::OpSchemaRegistry::Schema(op);
  return it->second;
}

std::string input_types(Node n) {
  std::string text;
  for (int i = 0; i < n.input_count(); ++i) {
    if (i != 0) text += ", ";
    text += n.input(i) ? to_string(n.input(i).type()) : "absent";
  }
  return text;
}

/// Whether a step of Slice is so large that ONNX's contents function could overflow: it adds the
/// step to an index without a check.
bool strides_far(Node n) {
  const Tensor* steps = n.op() == "Slice" ? constant(n.input(4)) : nullptr;
  if (steps == nullptr) return false;
  const Ints values = steps->to_ints();
  return std::any_of(values.begin(), values.end(),
                     [](int64_t step) { return step != static_cast<int32_t>(step); });
}

void infer_onnx(Node n) {
  const onnx::OpSchema* schema = schema_of(n.op());
  if (schema == nullptr) {
    throw ModelError({.what = "The operator is not known.",
                      .node = n.name(),
                      .op = n.op(),
                      .remedy = "Run `steep check` on the model for the list of such nodes."});
  }
  // ONNX's functions narrow some axes to int before they check them.
  const int64_t axis = n.attrs().integer("axis", 0);
  if (axis != static_cast<int32_t>(axis)) {
    throw ShapeError({.what = "An axis is out of range.",
                      .node = n.name(),
                      .op = n.op(),
                      .expected = "an axis of " + input_types(n),
                      .received = std::to_string(axis),
                      .remedy = "Export the model again."});
  }
  // GatherND's function reads an extent at a negative index.
  if (const int64_t batch = n.attrs().integer("batch_dims", 0); batch < 0) {
    throw ShapeError({.what = "The number of batch dimensions is negative.",
                      .node = n.name(),
                      .op = n.op(),
                      .expected = "batch_dims of at least 0",
                      .received = std::to_string(batch)});
  }
  Context ctx(n);
  try {
    schema->GetTypeAndShapeInferenceFunction()(ctx);
    if (schema->has_data_propagation_function() && ctx.makes_vector() && !strides_far(n))
      schema->GetDataPropagationFunction()(ctx);
  } catch (const onnx::InferenceError& e) {
    throw ShapeError({.what = "The inputs of a node do not match its operator.",
                      .node = n.name(),
                      .op = n.op(),
                      .expected = e.what(),
                      .received = input_types(n),
                      .remedy = "Check the shapes fed to the model, or export it again."});
  }
  for (int i = 0; i < n.output_count(); ++i) {
    Value y = n.output(i);
    if (!y) continue;
    const auto& proto = *ctx.out_types()[static_cast<size_t>(i)];
    n.graph().set_type(y, type_from_proto(proto));
    auto& contents = ctx.out_contents()[static_cast<size_t>(i)];
    if (contents) n.graph().set_contents(y, std::move(*contents));
  }
}

/// The shape that Reshape gives to an operand without elements, in cases that ONNX's rules leave
/// open. A -1 beside an extent of 0 is ambiguous; here it gets the value that it has for any other
/// batch size, once the equal leading extents are left out. A 0 means "copy the extent of x" in
/// ONNX, which is impossible if the copied extents ask for elements; here such a 0 is an extent
/// that was computed as 0.
std::optional<Dims> reshape_of_nothing(Node n) {
  const Value x = n.input(0);
  if (!x || !n.output(0) || !x.type().concrete() || integer_of(n, "allowzero") != 0)
    return std::nullopt;
  const Dims& from = x.type().dims();
  const auto target = elements_of(n.input(1));
  if (!target || element_count(from) != 0) return std::nullopt;

  Dims extents, to;  // the extents as given; the same with zeros replaced by x's
  std::optional<size_t> open;
  for (size_t i = 0; i < target->size(); ++i) {
    const auto& extent = (*target)[i].number;
    const bool first_open = extent == -1 && !open;
    if (!extent || (*extent < 0 && !first_open) || (*extent == 0 && i >= from.size()))
      return std::nullopt;
    if (first_open) open = i;
    extents.push_back(*extent);
    to.push_back(*extent == 0 ? from[i] : *extent);
  }
  if (!open) {
    const bool copies_too_much = element_count(to) != 0 && element_count(extents) == 0;
    return copies_too_much ? std::optional(extents) : std::nullopt;
  }

  size_t same = 0;
  while (same < *open && same < from.size() && from[same] == to[same]) ++same;
  const auto past = static_cast<Dims::difference_type>(same);
  to[*open] = 1;
  const bool ambiguous = element_count(to) == 0;
  const int64_t others = element_count({to.begin() + past, to.end()});
  const int64_t rest = element_count({from.begin() + past, from.end()});
  if (!ambiguous || others == 0 || rest % others != 0) return std::nullopt;
  to[*open] = rest / others;
  return to;
}

/// Throws ShapeError when a view would have another number of elements than its operand, whose
/// bytes it shares. ONNX's inference does not check the shape given to Reshape.
void check_view(Node n) {
  const Value x = n.input(0), y = n.output(0);
  if (!x || !y || !x.type().concrete() || !y.type().concrete()) return;
  if (element_count(x.type().dims()) == element_count(y.type().dims())) return;
  throw ShapeError(
      {.what = "A view changes the number of elements.",
       .node = n.name(),
       .op = n.op(),
       .expected = to_string(y.type()),
       .received = to_string(x.type()),
       .remedy = "Check the shapes fed to the model: its export may have fixed them."});
}

}  // namespace

void infer_types(Node n) {
  if (const onnx::OpSchema* schema = schema_of(n.op())) check_operands(n, *schema);
  const OpDef* def = find_op(n.op());
  if (def == nullptr || def->infer == nullptr) {
    if (const auto dims = n.op() == "Reshape" ? reshape_of_nothing(n) : std::nullopt) {
      n.graph().set_type(n.output(0), {n.input(0).dtype(), Shape(dims->begin(), dims->end())});
      check_view(n);
      return;
    }
    infer_onnx(n);
    if (def != nullptr && def->refine != nullptr) def->refine(n);
    propagate_contents(n);
    if (def != nullptr && def->view) check_view(n);
    return;
  }
  const std::vector<Type> types = def->infer(n);
  for (int i = 0; i < n.output_count(); ++i) {
    if (Value y = n.output(i); y && static_cast<size_t>(i) < types.size()) {
      n.graph().set_type(y, types[static_cast<size_t>(i)]);
    }
  }
}

}  // namespace steep
