#include "device/boundary.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>

#include "device/caught.h"
#include "ops/op_def.h"
#include "runtime/budget.h"
#include "runtime/utf8.h"
#include "steep/error.h"

using steep::Attr;
using steep::Attrs;
using steep::Body;
using steep::Dim;
using steep::Floats;
using steep::Graph;
using steep::Ints;
using steep::Node;
using steep::NodeSpec;
using steep::Operand;
using steep::Strings;
using steep::Tensor;
using steep::Type;
using steep::Value;

/// The types that SteepOp::infer reads and sets. A symbol is the number -2 - its index.
struct OpenTypes {
  std::vector<std::string> symbols{};
  std::vector<std::optional<Type>> types{};  // by output

  int64_t number_of(const Dim& d) {
    if (d.known() || d.symbol().empty()) return d.value();
    const auto found = std::find(symbols.begin(), symbols.end(), d.symbol());
    const auto index = found - symbols.begin();
    if (found == symbols.end()) symbols.push_back(d.symbol());
    return -2 - index;
  }
  /// Nothing if no operand has an extent of this number.
  std::optional<Dim> dim_of(int64_t number) const {
    if (number >= 0) return Dim(number);
    if (number == -1) return Dim();
    const auto index = static_cast<uint64_t>(-2 - number);
    if (index >= symbols.size()) return std::nullopt;
    return Dim::symbol(symbols[index]);
  }
};

/// A node outside of any graph has a spec. A node in a body, and a node whose types are inferred,
/// has a node.
struct SteepNode {
  explicit SteepNode(const NodeSpec& s)
      : spec(&s), attrs(steep::with_defaults(s.op, s.attrs)), name(s.name), op(s.op) {}
  explicit SteepNode(Node n)
      : node(n), attrs(steep::with_defaults(n.op(), n.attrs())), name(n.name()), op(n.op()) {}

  const NodeSpec* spec = nullptr;
  Node node{};
  OpenTypes* open = nullptr;  // during type inference
  Attrs attrs;
  std::string name, op;  // zero-terminated
  std::vector<Tensor> outputs{};
  // Memory for attributes that were read: they point to it.
  mutable std::map<const Graph*, std::shared_ptr<SteepGraph>> bodies{};
  mutable std::deque<std::vector<const char*>> texts{};
  mutable std::deque<std::vector<size_t>> lengths{};
  mutable std::deque<Ints> dims{};
};

struct SteepGraph {
  explicit SteepGraph(const Graph& g) : graph(&g) {
    for (Node n : g.nodes()) nodes.emplace_back(n);
  }

  const Graph* graph;
  std::deque<SteepNode> nodes;
  std::vector<steep::GraphView::Claim> claims{};
  mutable std::deque<Ints> dims{};
};

namespace steep {
namespace {

/// Writes `value` to *to, whose struct may be of another version.
template <typename T>
void fill(T* to, T value) {
  const size_t size = std::min(to->size, sizeof(T));
  value.size = to->size;
  std::memcpy(to, &value, size);
}

std::string text_or_empty(const char* text) { return text == nullptr ? "" : as_utf8(text); }

SteepError* make_error(SteepErrorKind kind, const SteepErrorText* source) {
  SteepErrorText text{};
  if (source != nullptr) std::memcpy(&text, source, std::min(source->size, sizeof(text)));
  return new SteepError{kind,
                        text_or_empty(text.what),
                        text_or_empty(text.node),
                        text_or_empty(text.op),
                        text_or_empty(text.expected),
                        text_or_empty(text.received),
                        text_or_empty(text.remedy)};
}

const char* op_of(const SteepNode* n) { return n->op.c_str(); }
const char* name_of_node(const SteepNode* n) { return n->name.c_str(); }

int input_count(const SteepNode* n) {
  return n->spec != nullptr ? static_cast<int>(n->spec->inputs.size()) : n->node.input_count();
}
int output_count(const SteepNode* n) {
  return n->spec != nullptr ? static_cast<int>(n->spec->outputs.size()) : n->node.output_count();
}

SteepOperand absent() {
  return {.size = 0, .dtype = 0, .rank = 0, .dims = nullptr, .constant = nullptr, .value = -1};
}

SteepOperand raw(const Operand& o) {
  SteepOperand raw = absent();
  raw.dtype = static_cast<int32_t>(o.dtype);
  raw.rank = static_cast<int32_t>(o.dims.size());
  raw.dims = o.dims.data();
  if (o.constant != nullptr) raw.constant = o.constant->data();
  return raw;
}

/// An operand. Extents that are not known are -1; during type inference, the numbers of their
/// symbols.
SteepOperand raw(Value v, std::deque<Ints>& keep, OpenTypes* open = nullptr) {
  SteepOperand raw = absent();
  if (!v) return raw;
  raw.dtype = static_cast<int32_t>(v.dtype());
  raw.value = v.id();
  Ints& dims = keep.emplace_back();
  if (v.type().shape) {
    for (const Dim& d : *v.type().shape)
      dims.push_back(open != nullptr ? open->number_of(d) : d.value());
  }
  raw.rank = v.type().shape ? static_cast<int32_t>(dims.size()) : -1;
  raw.dims = dims.data();
  if (v.role() == Role::constant) raw.constant = std::as_const(*v.tensor()).data();
  return raw;
}

void input(const SteepNode* n, int i, SteepOperand* to) {
  if (n->spec == nullptr) return fill(to, raw(n->node.input(i), n->dims, n->open));
  fill(to, i < 0 ? absent() : raw(n->spec->in(static_cast<size_t>(i))));
}

void output(const SteepNode* n, int i, SteepOperand* to) {
  if (n->spec == nullptr) return fill(to, raw(n->node.output(i), n->dims));
  fill(to, i < 0 ? absent() : raw(n->spec->out(static_cast<size_t>(i))));
}

int attr_count(const SteepNode* n) { return static_cast<int>(n->attrs.end() - n->attrs.begin()); }

void attr(const SteepNode* n, int i, SteepAttr* to) {
  SteepAttr raw_attr{};
  if (i < 0 || i >= attr_count(n)) return fill(to, raw_attr);
  const auto& [name, value] = n->attrs.begin()[i];
  raw_attr.name = name.c_str();
  raw_attr.tensor = absent();
  if (const auto* integer = std::get_if<int64_t>(&value)) {
    raw_attr.kind = STEEP_ATTR_INT;
    raw_attr.integer = *integer;
  } else if (const auto* real = std::get_if<double>(&value)) {
    raw_attr.kind = STEEP_ATTR_REAL;
    raw_attr.real = *real;
  } else if (const auto* text = std::get_if<std::string>(&value)) {
    raw_attr.kind = STEEP_ATTR_STRING;
    raw_attr.string = text->c_str();
    raw_attr.count = text->size();
  } else if (const auto* ints = std::get_if<Ints>(&value)) {
    raw_attr.kind = STEEP_ATTR_INTS;
    raw_attr.ints = ints->data();
    raw_attr.count = ints->size();
  } else if (const auto* reals = std::get_if<Floats>(&value)) {
    raw_attr.kind = STEEP_ATTR_REALS;
    raw_attr.reals = reals->data();
    raw_attr.count = reals->size();
  } else if (const auto* texts = std::get_if<Strings>(&value)) {
    raw_attr.kind = STEEP_ATTR_STRINGS;
    auto& pointers = n->texts.emplace_back();
    auto& lengths = n->lengths.emplace_back();
    for (const std::string& t : *texts) pointers.push_back(t.c_str()), lengths.push_back(t.size());
    raw_attr.strings = pointers.data();
    raw_attr.lengths = lengths.data();
    raw_attr.count = texts->size();
  } else if (const auto* tensor = std::get_if<Tensor>(&value)) {
    raw_attr.kind = STEEP_ATTR_TENSOR;
    raw_attr.tensor = raw(Operand{tensor->dtype(), tensor->dims(), tensor});
    raw_attr.tensor.dims = tensor->dims().data();
  } else if (const auto* body = std::get_if<Body>(&value); body != nullptr && *body) {
    raw_attr.kind = STEEP_ATTR_BODY;
    auto [at, fresh] = n->bodies.try_emplace(body->get());
    if (fresh) at->second = std::make_shared<SteepGraph>(**body);
    raw_attr.body = at->second.get();
  }
  raw_attr.tensor.size = sizeof(SteepOperand);
  fill(to, raw_attr);
}

Value at(const std::vector<Value>& values, int i) {
  return i < 0 || i >= static_cast<int>(values.size()) ? Value() : values[static_cast<size_t>(i)];
}

int graph_input_count(const SteepGraph* g) { return static_cast<int>(g->graph->inputs().size()); }
void graph_input(const SteepGraph* g, int i, SteepOperand* to) {
  fill(to, raw(at(g->graph->inputs(), i), g->dims));
}
int graph_output_count(const SteepGraph* g) { return static_cast<int>(g->graph->outputs().size()); }
void graph_output(const SteepGraph* g, int i, SteepOperand* to) {
  const bool there = i >= 0 && i < graph_output_count(g);
  fill(to, raw(there ? g->graph->outputs()[static_cast<size_t>(i)].value : Value(), g->dims));
}
int node_count(const SteepGraph* g) { return static_cast<int>(g->nodes.size()); }
const SteepNode* node_at(const SteepGraph* g, int i) {
  return i < 0 || i >= node_count(g) ? nullptr : &g->nodes[static_cast<size_t>(i)];
}

/// Converts the current exception to an error.
SteepError* to_provider_error() {
  auto [kind, p] = caught_error("A function of the engine failed.");
  return new SteepError{kind,
                        std::move(p.what),
                        std::move(p.node),
                        std::move(p.op),
                        std::move(p.expected),
                        std::move(p.received),
                        std::move(p.remedy)};
}

SteepError* claim(SteepGraph* g, const SteepNode* const* nodes, size_t count, const char* name) {
  try {
    GraphView::Claim claim{{}, name == nullptr ? "" : name};
    for (size_t i = 0; i < count; ++i) claim.nodes.push_back(nodes[i]->node);
    if (claim.nodes.empty() || claim.name.find('.') == std::string::npos) {
      throw ProviderError(
          {.what = "A claim needs nodes, and a name with a dot.", .received = claim.name});
    }
    g->claims.push_back(std::move(claim));
    return nullptr;
  } catch (...) {
    return to_provider_error();
  }
}

SteepError* new_output(SteepNode* n, int i, int32_t rank, const int64_t* dims, void** data) {
  try {
    const auto index = static_cast<size_t>(i);
    if (n->spec == nullptr || i < 0 || !n->spec->out(index).present() || rank < 0) {
      throw InternalError({.what = "A kernel allocated an output that nothing reads.",
                           .node = n->name,
                           .op = n->op});
    }
    n->outputs.resize(std::max(n->outputs.size(), index + 1));
    Dims extents(dims, dims + rank);
    Tensor& t = n->outputs[index] = Tensor::empty(n->spec->out(index).dtype, std::move(extents));
    *data = t.data();
    return nullptr;
  } catch (...) {
    return to_provider_error();
  }
}

SteepError* set_output(SteepNode* n, int i, int32_t dtype, int32_t rank, const int64_t* dims) {
  try {
    const auto refuse = [&](const char* what, std::string received) {
      throw ProviderError({.what = what,
                           .node = n->name,
                           .op = n->op,
                           .received = std::move(received),
                           .remedy = "Ask the plug-in's author."});
    };
    if (n->open == nullptr || i < 0 || i >= output_count(n))
      refuse("A provider gives a type for an output that does not exist.", std::to_string(i));
    Type type{static_cast<DType>(dtype)};
    if (size_of(type.dtype) == 0)
      refuse("A provider gives a dtype that does not exist.", std::to_string(dtype));
    if (rank >= 0) type.shape.emplace();
    for (int32_t axis = 0; axis < rank; ++axis) {
      const std::optional<Dim> d = n->open->dim_of(dims[axis]);
      if (!d)
        refuse("A provider gives a symbolic extent that no operand has.",
               std::to_string(dims[axis]));
      type.shape->push_back(d.value_or(Dim()));
    }
    n->open->types[static_cast<size_t>(i)] = std::move(type);
    return nullptr;
  } catch (...) {
    return to_provider_error();
  }
}

SteepError* poll_now() {
  try {
    poll();
    return nullptr;
  } catch (...) {
    return to_provider_error();
  }
}

size_t max_bytes() { return current_limits().max_bytes; }

}  // namespace

void throw_error(SteepError* error) {
  const std::unique_ptr<SteepError> owner(error);
  ErrorParts parts{.what = std::move(error->what),
                   .node = std::move(error->node),
                   .op = std::move(error->op),
                   .expected = std::move(error->expected),
                   .received = std::move(error->received),
                   .remedy = std::move(error->remedy)};
  switch (error->kind) {
    case STEEP_MODEL: throw ModelError(std::move(parts));
    case STEEP_SHAPE: throw ShapeError(std::move(parts));
    case STEEP_DATA: throw DataError(std::move(parts));
    case STEEP_PROVIDER: throw ProviderError(std::move(parts));
    case STEEP_MEMORY: throw OutOfMemoryError(std::move(parts));
    case STEEP_INTERRUPTED: throw InterruptedError(std::move(parts));
    case STEEP_BUG: break;
  }
  throw InternalError(std::move(parts));
}

const SteepHost& host_table() {
  static const SteepHost table{.size = sizeof(SteepHost),
                               .version = STEEP_VERSION,
                               .error = make_error,
                               .drop_error = [](SteepError* error) { delete error; },
                               .op = op_of,
                               .name = name_of_node,
                               .input_count = input_count,
                               .output_count = output_count,
                               .input = input,
                               .output = output,
                               .attr_count = attr_count,
                               .attr = attr,
                               .graph_input_count = graph_input_count,
                               .graph_input = graph_input,
                               .graph_output_count = graph_output_count,
                               .graph_output = graph_output,
                               .node_count = node_count,
                               .node = node_at,
                               .claim = claim,
                               .new_output = new_output,
                               .poll = poll_now,
                               .max_bytes = max_bytes,
                               .set_output = set_output};
  return table;
}

NodeView::NodeView(const NodeSpec& spec) : node_(std::make_unique<SteepNode>(spec)) {}
NodeView::~NodeView() = default;

std::vector<Type> infer_by(SteepError* (*infer)(SteepNode*), const std::string& provider, Node n) {
  bool known = true;
  for (int i = 0; i < n.input_count(); ++i)
    known = known && (!n.input(i) || n.input(i).type().concrete());
  OpenTypes open;
  open.types.resize(static_cast<size_t>(n.output_count()));
  SteepNode view(n);
  view.open = &open;
  if (SteepError* error = infer(&view); error != nullptr) {
    if (error->node.empty()) error->node = n.name();
    if (error->op.empty()) error->op = n.op();
    throw_error(error);
  }
  std::vector<Type> types;
  for (const auto& type : open.types) {
    if (!type || (known && !type->concrete())) {
      throw ProviderError({.what = "A provider does not give the type of a result.",
                           .node = n.name(),
                           .op = n.op(),
                           .expected = "a dtype, and extents once those of the operands are known",
                           .received = type ? to_string(*type) : "nothing",
                           .remedy = "Ask the author of the plug-in " + provider + "."});
    }
    types.push_back(*type);
  }
  return types;
}

GraphView::GraphView(Graph& graph) : graph_(std::make_unique<SteepGraph>(graph)) {}
GraphView::~GraphView() = default;
const std::vector<GraphView::Claim>& GraphView::claims() const { return graph_->claims; }

std::vector<Tensor> NodeView::take_outputs() {
  node_->outputs.resize(node_->spec->outputs.size());
  return std::move(node_->outputs);
}

}  // namespace steep
