#include "mutate_model.h"

#include <onnx/defs/schema.h>

#include <climits>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace steep::fuzz {
namespace {

using onnx::AttributeProto;
using onnx::GraphProto;
using onnx::ModelProto;
using onnx::NodeProto;
using onnx::TensorProto;

constexpr int64_t kInts[] = {0,
                             1,
                             -1,
                             2,
                             -2,
                             3,
                             -3,
                             4,
                             -4,
                             5,
                             7,
                             16,
                             127,
                             255,
                             1000,
                             65536,
                             INT32_MAX,
                             int64_t{1} << 31,
                             -(int64_t{1} << 31),
                             int64_t{1} << 32,
                             int64_t{1} << 61,
                             int64_t{1} << 62,
                             INT64_MAX,
                             INT64_MIN,
                             INT64_MIN + 1};
constexpr float kFloats[] = {0.0f,
                             -0.0f,
                             1.0f,
                             -1.0f,
                             0.5f,
                             2.0f,
                             1e-30f,
                             3e38f,
                             -3e38f,
                             2147483648.0f,
                             std::numeric_limits<float>::infinity(),
                             -std::numeric_limits<float>::infinity(),
                             std::numeric_limits<float>::quiet_NaN(),
                             std::numeric_limits<float>::denorm_min()};
constexpr const char* kTexts[] = {
    "",           "NOTSET",        "SAME_UPPER", "VALID",      "constant", "reflect",
    "edge",       "linear",        "cubic",      "nearest",    "mean",     "sum",
    "none",       "add",           "max",        "bilinear",   "reverse",  "bidirectional",
    "asymmetric", "align_corners", "i,j->ij",    "...ij,jk->", "loss",     "\xff"};

/// The size of one element of raw data in bytes; 1 for packed types.
size_t width_of(int32_t dtype) {
  switch (dtype) {
    case TensorProto::FLOAT:
    case TensorProto::INT32:
    case TensorProto::UINT32: return 4;
    case TensorProto::DOUBLE:
    case TensorProto::INT64:
    case TensorProto::UINT64: return 8;
    case TensorProto::FLOAT16:
    case TensorProto::BFLOAT16:
    case TensorProto::INT16:
    case TensorProto::UINT16: return 2;
    default: return 1;
  }
}

const std::vector<const onnx::OpSchema*>& schemas() {
  static const std::vector<const onnx::OpSchema*> all = [] {
    std::vector<const onnx::OpSchema*> found;
    static const std::vector<onnx::OpSchema> every =
        onnx::OpSchemaRegistry::get_all_schemas();  // the newest version of each operator
    for (const onnx::OpSchema& s : every) {
      if (s.domain().empty()) found.push_back(&s);
    }
    return found;
  }();
  return all;
}

class Mutation {
 public:
  Mutation(ModelProto& model, std::mt19937_64& random) : model_(model), random_(random) {
    collect(*model.mutable_graph());
    for (auto& function : *model.mutable_functions()) {
      for (auto& node : *function.mutable_node()) add(node);
    }
  }

  void run() {
    using Change = void (Mutation::*)();
    static constexpr Change kChanges[] = {
        &Mutation::change_op,         &Mutation::change_attribute, &Mutation::change_attribute,
        &Mutation::add_attribute,     &Mutation::remove_attribute, &Mutation::move_edge,
        &Mutation::move_edge,         &Mutation::feed_ints,        &Mutation::change_dims,
        &Mutation::change_dtype,      &Mutation::change_value,     &Mutation::change_value,
        &Mutation::copy_node,         &Mutation::remove_node,      &Mutation::change_count,
        &Mutation::change_opset,      &Mutation::move_output,      &Mutation::put_into_branch,
        &Mutation::resize_initializer};
    (this->*kChanges[below(std::size(kChanges))])();
  }

  /// The name of any value in `graph`.
  std::string any_name(const GraphProto& graph) {
    std::vector<const std::string*> names;
    for (const auto& x : graph.input()) names.push_back(&x.name());
    for (const auto& x : graph.initializer()) names.push_back(&x.name());
    for (const auto& n : graph.node()) {
      for (const auto& y : n.output()) names.push_back(&y);
    }
    return names.empty() ? "" : *names[below(names.size())];
  }

  size_t below(size_t n) { return n == 0 ? 0 : static_cast<size_t>(random_() % n); }

 private:
  void collect(GraphProto& graph) {
    graphs_.push_back(&graph);
    for (auto& tensor : *graph.mutable_initializer()) tensors_.push_back(&tensor);
    for (auto& node : *graph.mutable_node()) add(node);
  }
  void add(NodeProto& node) {
    nodes_.push_back(&node);
    for (auto& attribute : *node.mutable_attribute()) {
      if (attribute.has_t()) tensors_.push_back(attribute.mutable_t());
      if (attribute.has_g()) collect(*attribute.mutable_g());
      for (auto& g : *attribute.mutable_graphs()) collect(g);
    }
  }

  template <typename T, size_t N>
  T any(const T (&of)[N]) {
    return of[below(N)];
  }
  template <typename T>
  T* any(const std::vector<T*>& of) {
    return of.empty() ? nullptr : of[below(of.size())];
  }
  /// Small numbers are more frequent than hostile ones, so that some models pass the checks.
  int64_t integer() { return below(2) == 0 ? static_cast<int64_t>(below(6)) - 1 : any(kInts); }
  std::string fresh(const char* stem) { return stem + std::to_string(random_() % 1000000); }
  GraphProto& graph() { return *graphs_[below(graphs_.size())]; }

  void change_op() {
    if (NodeProto* n = any(nodes_)) n->set_op_type(schemas()[below(schemas().size())]->Name());
  }

  void set_attribute(AttributeProto& a) {
    const int as = below(8) == 0 ? static_cast<int>(below(9)) : static_cast<int>(a.type());
    switch (as) {
      case AttributeProto::FLOAT: a.set_f(any(kFloats)); break;
      case AttributeProto::INT: a.set_i(integer()); break;
      case AttributeProto::STRING: a.set_s(any(kTexts)); break;
      case AttributeProto::FLOATS:
        if (a.floats_size() == 0 || below(4) == 0) a.add_floats(0);
        a.set_floats(static_cast<int>(below(static_cast<size_t>(a.floats_size()))), any(kFloats));
        break;
      case AttributeProto::INTS:
        if (a.ints_size() > 0 && below(5) == 0) {
          a.mutable_ints()->RemoveLast();
          break;
        }
        if (a.ints_size() == 0 || below(5) == 0) a.add_ints(1);
        a.set_ints(static_cast<int>(below(static_cast<size_t>(a.ints_size()))), integer());
        break;
      case AttributeProto::STRINGS: *a.add_strings() = any(kTexts); break;
      default: return;  // tensors and graphs have their own mutations
    }
    a.set_type(static_cast<AttributeProto::AttributeType>(as));
  }

  void change_attribute() {
    std::vector<AttributeProto*> all;
    for (NodeProto* n : nodes_) {
      for (auto& a : *n->mutable_attribute()) all.push_back(&a);
    }
    if (AttributeProto* a = any(all))
      set_attribute(*a);
    else
      add_attribute();
  }

  /// Adds an attribute that the operator has.
  void add_attribute() {
    NodeProto* n = any(nodes_);
    if (n == nullptr) return;
    const onnx::OpSchema* schema = onnx::OpSchemaRegistry::Schema(n->op_type());
    if (schema == nullptr || schema->attributes().empty()) return;
    auto it = schema->attributes().begin();
    std::advance(it, below(schema->attributes().size()));
    for (auto& a : *n->mutable_attribute()) {
      if (a.name() == it->first) return set_attribute(a);
    }
    AttributeProto* a = n->add_attribute();
    a->set_name(it->first);
    a->set_type(it->second.type);
    set_attribute(*a);
  }

  void remove_attribute() {
    NodeProto* n = any(nodes_);
    if (n == nullptr || n->attribute_size() == 0) return;
    n->mutable_attribute()->SwapElements(
        static_cast<int>(below(static_cast<size_t>(n->attribute_size()))), n->attribute_size() - 1);
    n->mutable_attribute()->RemoveLast();
  }

  void move_edge() {
    GraphProto& g = graph();
    if (g.node_size() == 0) return;
    const size_t to = below(static_cast<size_t>(g.node_size()));
    NodeProto& n = *g.mutable_node(static_cast<int>(to));
    if (n.input_size() == 0) return;
    std::string name = below(10) == 0 ? "" : any_name(below(4) == 0 ? model_.graph() : g);
    if (to > 0 && below(3) == 0) {
      // Reads the result of the previous node, so that chains grow.
      const NodeProto& before = g.node(static_cast<int>(to) - 1);
      if (before.output_size() > 0) name = before.output(0);
    }
    n.set_input(static_cast<int>(below(static_cast<size_t>(n.input_size()))), name);
  }

  /// Feeds an integer operand: axes, shapes, indices, pads.
  void feed_ints() {
    GraphProto& g = graph();
    if (g.node_size() == 0) return;
    NodeProto& n = *g.mutable_node(static_cast<int>(below(static_cast<size_t>(g.node_size()))));
    TensorProto* t = g.add_initializer();
    t->set_name(fresh("ints"));
    t->set_data_type(TensorProto::INT64);
    const size_t count = below(5);
    if (below(4) != 0) t->add_dims(static_cast<int64_t>(count));
    for (size_t i = 0; i < (t->dims_size() == 0 ? 1 : count); ++i) t->add_int64_data(integer());
    if (n.input_size() == 0 || below(3) == 0) {
      n.add_input(t->name());
    } else {
      n.set_input(static_cast<int>(below(static_cast<size_t>(n.input_size()))), t->name());
    }
  }

  void change_dims() {
    GraphProto& g = graph();
    std::vector<onnx::ValueInfoProto*> values;
    for (auto& x : *g.mutable_input()) values.push_back(&x);
    for (auto& x : *g.mutable_output()) values.push_back(&x);
    if (below(2) == 0) {
      if (TensorProto* t = any(tensors_); t != nullptr && t->dims_size() > 0) {
        t->set_dims(static_cast<int>(below(static_cast<size_t>(t->dims_size()))), integer());
        return;
      }
    }
    onnx::ValueInfoProto* v = any(values);
    if (v == nullptr) return;
    auto* shape = v->mutable_type()->mutable_tensor_type()->mutable_shape();
    if (shape->dim_size() == 0 || below(5) == 0) shape->add_dim();
    auto* dim = shape->mutable_dim(static_cast<int>(below(static_cast<size_t>(shape->dim_size()))));
    if (below(4) == 0) {
      dim->set_dim_param("n");
    } else {
      dim->set_dim_value(integer());
    }
  }

  void change_dtype() {
    const auto dtype = static_cast<int32_t>(below(27));
    if (below(2) == 0) {
      if (TensorProto* t = any(tensors_)) t->set_data_type(dtype);
      return;
    }
    GraphProto& g = graph();
    if (g.input_size() == 0) return;
    auto& input = *g.mutable_input(static_cast<int>(below(static_cast<size_t>(g.input_size()))));
    input.mutable_type()->mutable_tensor_type()->set_elem_type(dtype);
  }

  void change_value() {
    TensorProto* t = any(tensors_);
    if (t == nullptr) return;
    if (t->int64_data_size() > 0) {
      t->set_int64_data(static_cast<int>(below(static_cast<size_t>(t->int64_data_size()))),
                        integer());
    } else if (t->int32_data_size() > 0) {
      t->set_int32_data(static_cast<int>(below(static_cast<size_t>(t->int32_data_size()))),
                        static_cast<int32_t>(integer()));
    } else if (t->float_data_size() > 0) {
      t->set_float_data(static_cast<int>(below(static_cast<size_t>(t->float_data_size()))),
                        any(kFloats));
    } else if (const size_t width = width_of(t->data_type()); t->raw_data().size() >= width) {
      const size_t at = below(t->raw_data().size() / width) * width;
      const float f = any(kFloats);
      int64_t bits = integer();
      if (t->data_type() == TensorProto::FLOAT) std::memcpy(&bits, &f, sizeof f);
      std::memcpy(t->mutable_raw_data()->data() + at, &bits, width);
    }
  }

  void resize_initializer() {
    TensorProto* t = any(tensors_);
    if (t == nullptr) return;
    const size_t rank = below(5);
    size_t count = 1;
    t->clear_dims();
    for (size_t i = 0; i < rank; ++i) {
      t->add_dims(static_cast<int64_t>(below(4)));
      count *= static_cast<size_t>(t->dims(static_cast<int>(i)));
    }
    t->clear_float_data();
    t->clear_int32_data();
    t->clear_int64_data();
    std::string bytes(count * width_of(t->data_type()), '\0');
    for (size_t i = 0; i + 4 <= bytes.size(); i += 4) {
      const float f = 0.25f * static_cast<float>(i % 7);
      if (t->data_type() == TensorProto::FLOAT) std::memcpy(bytes.data() + i, &f, 4);
    }
    t->set_raw_data(bytes);
  }

  void copy_node() {
    GraphProto& g = graph();
    if (g.node_size() == 0 || g.node_size() > 60) return;
    const size_t from = below(static_cast<size_t>(g.node_size()));
    NodeProto copy = g.node(static_cast<int>(from));
    if (!copy.name().empty()) copy.set_name(fresh("node"));
    const std::string old = copy.output_size() > 0 ? copy.output(0) : "";
    for (auto& y : *copy.mutable_output()) {
      if (!y.empty()) y = fresh("y");
    }
    // Before the last nodes, so that they may read it.
    const std::string made = copy.output_size() > 0 ? copy.output(0) : "";
    if (copy.input_size() > 0 && below(2) == 0) copy.set_input(0, old);
    *g.add_node() = std::move(copy);
    for (int i = g.node_size() - 1; i > static_cast<int>(from) + 1; --i) {
      g.mutable_node()->SwapElements(i, i - 1);
    }
    for (int i = static_cast<int>(from) + 2; i < g.node_size(); ++i) {
      for (auto& x : *g.mutable_node(i)->mutable_input()) {
        if (x == old && below(2) == 0) x = made;
      }
    }
  }

  void remove_node() {
    GraphProto& g = graph();
    if (g.node_size() < 2) return;
    const int at = static_cast<int>(below(static_cast<size_t>(g.node_size())));
    const NodeProto gone = g.node(at);
    g.mutable_node()->DeleteSubrange(at, 1);
    if (gone.input_size() == 0 || gone.output_size() == 0 || below(4) == 0) return;
    for (auto& n : *g.mutable_node()) {
      for (auto& x : *n.mutable_input()) {
        if (x == gone.output(0)) x = gone.input(0);
      }
    }
  }

  /// Changes the number of operands or outputs.
  void change_count() {
    NodeProto* n = any(nodes_);
    if (n == nullptr) return;
    switch (below(4)) {
      case 0:
        if (n->input_size() > 0) n->mutable_input()->RemoveLast();
        break;
      case 1:
        if (n->output_size() > 0) n->mutable_output()->RemoveLast();
        break;
      case 2: n->add_output(fresh("y")); break;
      default: n->add_input(any_name(model_.graph()));
    }
  }

  void change_opset() {
    if (model_.opset_import_size() == 0) model_.add_opset_import();
    auto& opset = *model_.mutable_opset_import(
        static_cast<int>(below(static_cast<size_t>(model_.opset_import_size()))));
    opset.set_version(below(10) == 0 ? any(kInts) : static_cast<int64_t>(1 + below(27)));
  }

  void move_output() {
    GraphProto& g = graph();
    if (g.output_size() == 0) return;
    auto& output = *g.mutable_output(static_cast<int>(below(static_cast<size_t>(g.output_size()))));
    output.set_name(any_name(g));
  }

  /// Moves the node into both branches of an If, or into the body of a Loop with a few iterations.
  void put_into_branch() {
    GraphProto& g = graph();
    if (g.node_size() == 0) return;
    NodeProto& n = *g.mutable_node(static_cast<int>(below(static_cast<size_t>(g.node_size()))));
    if (n.output_size() == 0 || n.ByteSizeLong() > 2000) return;
    TensorProto* condition = g.add_initializer();
    condition->set_name(fresh("condition"));
    condition->set_data_type(TensorProto::BOOL);
    condition->add_int32_data(static_cast<int32_t>(below(2)));
    GraphProto body;
    body.set_name("body");
    *body.add_node() = n;
    for (auto& y : *body.mutable_node(0)->mutable_output()) y += "_in";
    for (const auto& y : body.node(0).output()) body.add_output()->set_name(y);
    NodeProto outer;
    outer.set_op_type("If");
    outer.add_input(condition->name());
    *outer.mutable_output() = n.output();
    for (const char* branch : {"then_branch", "else_branch"}) {
      AttributeProto* a = outer.add_attribute();
      a->set_name(branch);
      a->set_type(AttributeProto::GRAPH);
      *a->mutable_g() = body;
    }
    n = std::move(outer);
  }

  ModelProto& model_;
  std::mt19937_64& random_;
  std::vector<GraphProto*> graphs_;
  std::vector<NodeProto*> nodes_;
  std::vector<TensorProto*> tensors_;
};

}  // namespace

void mutate_model(ModelProto& model, std::mt19937_64& random) { Mutation(model, random).run(); }

void join_models(ModelProto& into, const ModelProto& from, std::mt19937_64& random) {
  Mutation dice(into, random);
  const std::string mark = "_" + std::to_string(random() % 1000);
  auto marked = [&](const std::string& name) { return name.empty() ? name : name + mark; };
  GraphProto& graph = *into.mutable_graph();
  for (const auto& input : from.graph().input()) {
    auto* added = graph.add_input();
    *added = input;
    added->set_name(marked(input.name()));
  }
  for (const auto& initializer : from.graph().initializer()) {
    auto* added = graph.add_initializer();
    *added = initializer;
    added->set_name(marked(initializer.name()));
  }
  // In front, so that the existing nodes may read them.
  GraphProto nodes;
  for (const auto& node : from.graph().node()) {
    auto* added = nodes.add_node();
    *added = node;
    for (auto& x : *added->mutable_input()) x = marked(x);
    for (auto& y : *added->mutable_output()) y = marked(y);
  }
  const std::string end = dice.any_name(nodes);
  if (graph.node_size() > 0 && !end.empty()) {
    auto& reader =
        *graph.mutable_node(static_cast<int>(dice.below(static_cast<size_t>(graph.node_size()))));
    if (reader.input_size() > 0) {
      reader.set_input(static_cast<int>(dice.below(static_cast<size_t>(reader.input_size()))), end);
    }
  }
  for (auto& node : *graph.mutable_node()) *nodes.add_node() = std::move(node);
  *graph.mutable_node() = std::move(*nodes.mutable_node());
}

}  // namespace steep::fuzz
