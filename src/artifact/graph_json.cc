#include "artifact/graph_json.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "ops/op_def.h"
#include "runtime/budget.h"
#include "runtime/crc32c.h"
#include "steep/error.h"

namespace steep {

void throw_damaged(const std::string& what) {
  throw CheckpointError(ErrorParts{.what = "The artifact is damaged: " + what + ".",
                                   .remedy = "Copy it again, or write it again."});
}

size_t ArtifactTensors::add(const Tensor& tensor, bool unique) {
  const uint32_t sum = tensor.nbytes() == 0 ? 0 : crc32c(0, tensor.data(), tensor.nbytes());
  const auto [begin, end] = by_sum_.equal_range(sum);
  for (auto it = begin; !unique && it != end; ++it) {
    const Tensor& candidate = tensors_[it->second];
    if (candidate.dtype() != tensor.dtype() || candidate.dims() != tensor.dims()) continue;
    if (std::memcmp(candidate.data(), tensor.data(), tensor.nbytes()) == 0) return it->second;
  }
  tensors_.push_back(tensor);
  if (!unique) by_sum_.emplace(sum, tensors_.size() - 1);
  return tensors_.size() - 1;
}

const Json& member(const Json& json, const char* key) {
  if (!json.is_object()) throw_damaged(fmt::format("what should have '{}' is no object", key));
  const auto found = json.find(key);
  if (found == json.end()) throw_damaged(fmt::format("'{}' is missing", key));
  return *found;
}

const Json& list(const Json& json, const char* key) {
  const Json& items = member(json, key);
  if (!items.is_array()) throw_damaged(fmt::format("'{}' is no list", key));
  return items;
}

int64_t whole(const Json& json, int64_t least, int64_t most) {
  if (json.is_number_unsigned() && json.get<uint64_t>() > static_cast<uint64_t>(most))
    throw_damaged("a number is too large");
  if (!json.is_number_integer()) throw_damaged("a whole number is something else");
  const auto value = json.get<int64_t>();
  if (value < least || value > most) throw_damaged(fmt::format("{} is out of range", value));
  return value;
}

std::string text(const Json& json) {
  if (!json.is_string()) throw_damaged("a text is something else");
  return json.get<std::string>();
}

double real(const Json& json) {
  if (json.is_number()) return json.get<double>();
  const std::string word = text(json);  // JSON has no numbers for these
  if (word == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (word != "inf" && word != "-inf") throw_damaged("a number is something else");
  return word == "inf" ? INFINITY : -INFINITY;
}

Json real_to_json(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

namespace {

Json attr_to_json(const Attr& attr, ArtifactTensors& tensors) {
  struct Writer {
    ArtifactTensors& tensors;
    Json operator()(int64_t v) const { return {{"int", v}}; }
    Json operator()(double v) const { return {{"real", real_to_json(v)}}; }
    Json operator()(const std::string& v) const { return {{"text", v}}; }
    Json operator()(const Ints& v) const { return {{"ints", v}}; }
    Json operator()(const Floats& v) const {
      Json reals = Json::array();
      for (const double x : v) reals.push_back(real_to_json(x));
      return {{"reals", reals}};
    }
    Json operator()(const Strings& v) const { return {{"texts", v}}; }
    Json operator()(const Tensor& v) const { return {{"tensor", tensors.add(v)}}; }
    Json operator()(const Body& v) const { return {{"body", graph_to_json(*v, nullptr, tensors)}}; }
  };
  return std::visit(Writer{tensors}, attr);
}

Json type_to_json(Value v) {
  if (!v.type().concrete()) {
    throw ModelError(ErrorParts{.what = "A value of an artifact has no fixed shape.",
                                .node = v.name(),
                                .received = to_string(v.type())});
  }
  return Json::array({v.name(), static_cast<int32_t>(v.dtype()), v.type().dims()});
}

int phase_number(Phase phase) { return phase == Phase::forward ? 0 : 1; }

/// Numbers the values in the order of the nodes, so that a value has its number before a node reads
/// it.
class GraphWriter {
 public:
  GraphWriter(const Graph& graph, ArtifactTensors& tensors)
      : graph_(graph), tensors_(tensors), numbers_(graph.value_count(), -1) {}

  Json run(const std::unordered_map<uint32_t, Ints>* views) {
    Json inputs = Json::array(), states = Json::array(), nodes = Json::array();
    Json outputs = Json::array(), updates = Json::array();
    for (const Value v : graph_.inputs())
      inputs.push_back({declare(v), phase_number(graph_.input_phase(v))});
    for (const Value v : graph_.states()) states.push_back(declare(v));
    for (const Node n : graph_.nodes()) nodes.push_back(node(n, views));
    for (const Output& o : graph_.outputs())
      outputs.push_back({o.name, use(o.value), phase_number(o.phase)});
    for (const Update& u : graph_.updates()) updates.push_back({use(u.state), use(u.value)});
    return {{"values", std::move(values_)}, {"inputs", std::move(inputs)},
            {"states", std::move(states)},  {"constants", std::move(constants_)},
            {"nodes", std::move(nodes)},    {"outputs", std::move(outputs)},
            {"updates", std::move(updates)}};
  }

 private:
  int64_t declare(Value v) {
    values_.push_back(type_to_json(v));
    return numbers_[v.id()] = static_cast<int64_t>(values_.size()) - 1;
  }

  int64_t use(Value v) {
    if (!v) return -1;
    if (numbers_[v.id()] < 0 && v.role() == Role::constant)
      constants_.push_back({declare(v), tensors_.add(*v.tensor())});
    return numbers_[v.id()];
  }

  Json node(Node n, const std::unordered_map<uint32_t, Ints>* views) {
    Json in = Json::array(), out = Json::array(), attrs = Json::object();
    for (int i = 0; i < n.input_count(); ++i) in.push_back(use(n.input(i)));
    for (int i = 0; i < n.output_count(); ++i)
      out.push_back(n.output(i) ? declare(n.output(i)) : -1);
    for (const auto& [name, attr] : with_defaults(n.op(), n.attrs()))
      attrs[name] = attr_to_json(attr, tensors_);
    Json json{{"name", n.name()}, {"op", n.op()}, {"phase", phase_number(n.phase())},
              {"in", in},         {"out", out},   {"attrs", attrs}};
    if (views == nullptr) return json;
    const auto view = views->find(n.id());
    if (view != views->end()) json["view"] = view->second;
    return json;
  }

  const Graph& graph_;
  ArtifactTensors& tensors_;
  std::vector<int64_t> numbers_;  // by value id
  Json values_ = Json::array(), constants_ = Json::array();
};

}  // namespace

Json graph_to_json(const Graph& graph, const std::unordered_map<uint32_t, Ints>* views,
                   ArtifactTensors& tensors) {
  return GraphWriter(graph, tensors).run(views);
}

Type type_from_json(const Json& dtype, const Json& dims) {
  const auto type = static_cast<DType>(whole(dtype, 0, INT32_MAX));
  if (size_of(type) == 0) throw_damaged("an element type is unknown");
  constexpr size_t kMostAxes = 64;
  if (!dims.is_array() || dims.size() > kMostAxes) throw_damaged("a shape is something else");
  Shape shape;
  for (const Json& extent : dims) shape.emplace_back(whole(extent, 0, INT64_MAX));
  Type result{type, std::move(shape)};
  try {
    require_bytes(result.nbytes(), to_string(result));
  } catch (const ShapeError& error) {
    throw_damaged(error.parts().what);
  }
  return result;
}

namespace {

class GraphReader {
 public:
  GraphReader(const Json& json, const std::vector<Tensor>& tensors,
              const std::unordered_map<std::string, Type>* states)
      : json_(json), tensors_(tensors), states_(states) {
    graph_.node_limit = current_limits().max_nodes;
    for (const Json& v : list(json, "values")) {
      if (!v.is_array() || v.size() != 3) throw_damaged("a value is something else");
      names_.push_back(text(v[0]));
      types_.push_back(type_from_json(v[1], v[2]));
    }
    entries_.resize(types_.size());
  }

  Graph run(std::unordered_map<uint32_t, Ints>* views) {
    for (const Json& input : list(json_, "inputs")) {
      const size_t v = fresh(item(input, 0, 2));
      const Phase phase = phase_of(input[1]);
      if (graph_.find(names_[v])) throw_damaged("two inputs have one name");
      put(v, graph_.add_input(names_[v], types_[v], phase), phase);
    }
    for (const Json& state : list(json_, "states")) {
      const size_t v = fresh(state);
      const auto tensor = states_ == nullptr ? nullptr : find_state(names_[v]);
      if (tensor == nullptr || graph_.find(names_[v]) || !same(*tensor, types_[v]))
        throw_damaged("a state of a graph is not one of the session's: " + names_[v]);
      put(v, graph_.add_state(names_[v], types_[v]), Phase::forward);
    }
    for (const Json& constant : list(json_, "constants")) {
      const size_t v = fresh(item(constant, 0, 2));
      const Tensor& tensor = tensor_at(constant[1]);
      if (!same({tensor.dtype(), to_shape(tensor.dims())}, types_[v]))
        throw_damaged("a constant has another type than its bytes");
      put(v, graph_.add_constant(tensor, names_[v]), Phase::forward);
    }
    for (const Json& node : list(json_, "nodes")) add_node(node, views);
    add_results();
    return std::move(graph_);
  }

 private:
  static bool same(const Type& a, const Type& b) {
    return a.dtype == b.dtype && provably_equal(*a.shape, *b.shape);
  }
  static const Json& item(const Json& json, size_t i, size_t size) {
    if (!json.is_array() || json.size() != size) throw_damaged("a list has another length");
    return json[i];
  }
  static Phase phase_of(const Json& json) {
    return whole(json, 0, 1) == 0 ? Phase::forward : Phase::backward;
  }
  const Type* find_state(const std::string& name) const {
    const auto found = states_->find(name);
    return found == states_->end() ? nullptr : &found->second;
  }

  /// The number of a value that no node has produced so far.
  size_t fresh(const Json& json) const {
    const auto v = static_cast<size_t>(whole(json, 0, static_cast<int64_t>(types_.size()) - 1));
    if (entries_[v].value) throw_damaged("a value is made twice");
    return v;
  }
  void put(size_t v, Value value, Phase phase) { entries_[v] = {value, phase}; }

  /// A value that exists already and that a node of this phase may read; null for -1.
  Value use(const Json& json, Phase phase) const {
    const int64_t v = whole(json, -1, static_cast<int64_t>(types_.size()) - 1);
    if (v < 0) return {};
    const Entry& entry = entries_[static_cast<size_t>(v)];
    if (!entry.value) throw_damaged("a value is read before it is made");
    if (entry.phase > phase) throw_damaged("the forward part reads what the backward part makes");
    return entry.value;
  }

  const Tensor& tensor_at(const Json& json) const {
    const auto i = whole(json, 0, static_cast<int64_t>(tensors_.size()) - 1);
    const Tensor& tensor = tensors_[static_cast<size_t>(i)];
    if (!tensor.defined()) throw_damaged("a constant has the bytes of a state");
    return tensor;
  }

  Attr attr(const Json& json) const {
    if (!json.is_object() || json.size() != 1) throw_damaged("an attribute is something else");
    const std::string& kind = json.begin().key();
    const Json& value = json.front();
    if (kind == "int") return whole(value, INT64_MIN, INT64_MAX);
    if (kind == "real") return real(value);
    if (kind == "text") return text(value);
    if (kind == "tensor") return tensor_at(value);
    if (kind == "body")
      return std::make_shared<const Graph>(graph_from_json(value, tensors_, nullptr, nullptr));
    if (!value.is_array()) throw_damaged("an attribute is no list");
    Ints ints;
    Floats reals;
    Strings texts;
    for (const Json& x : value) {
      if (kind == "ints") ints.push_back(whole(x, INT64_MIN, INT64_MAX));
      if (kind == "reals") reals.push_back(real(x));
      if (kind == "texts") texts.push_back(text(x));
    }
    if (kind == "ints") return ints;
    if (kind == "reals") return reals;
    if (kind != "texts") throw_damaged("an attribute has an unknown kind");
    return texts;
  }

  void add_node(const Json& json, std::unordered_map<uint32_t, Ints>* views) {
    poll();
    const Phase phase = phase_of(member(json, "phase"));
    std::vector<Value> inputs;
    for (const Json& v : list(json, "in")) inputs.push_back(use(v, phase));
    Attrs attrs;
    const Json& values = member(json, "attrs");
    if (!values.is_object()) throw_damaged("attributes are no object");
    for (const auto& [name, value] : values.items()) attrs.set(name, attr(value));
    const Json& out = list(json, "out");
    const Graph::Scope scope(graph_, phase, "");
    const Node n = graph_.add_node(text(member(json, "op")), inputs, static_cast<int>(out.size()),
                                   std::move(attrs), text(member(json, "name")));
    for (size_t i = 0; i < out.size(); ++i) {
      if (whole(out[i], -1, static_cast<int64_t>(types_.size()) - 1) < 0) continue;
      const size_t v = fresh(out[i]);
      const Value y = n.output(static_cast<int>(i));
      graph_.set_type(y, types_[v]);
      graph_.rename(y, names_[v]);
      put(v, y, phase);
    }
    if (!json.contains("view")) return;
    if (views == nullptr) throw_damaged("a body has a view");
    Ints offsets;
    for (const Json& offset : list(json, "view")) offsets.push_back(whole(offset, 0, INT64_MAX));
    views->emplace(n.id(), std::move(offsets));
  }

  void add_results() {
    for (const Json& o : list(json_, "outputs")) {
      const Phase phase = phase_of(item(o, 2, 3));
      const Value v = use(o[1], phase);
      if (!v) throw_damaged("an output is nothing");
      graph_.add_output(text(o[0]), v, phase);
    }
    std::vector<bool> updated(types_.size(), false);
    for (const Json& u : list(json_, "updates")) {
      const Value state = use(item(u, 0, 2), Phase::backward), value = use(u[1], Phase::backward);
      if (!state || !value || state.role() != Role::state || !same(state.type(), value.type()))
        throw_damaged("an update does not fit its state");
      if (updated[state.id()]) throw_damaged("a state is updated twice");
      updated[state.id()] = true;
      graph_.add_update(state, value);
    }
  }

  struct Entry {
    Value value;
    Phase phase = Phase::forward;
  };

  const Json& json_;
  const std::vector<Tensor>& tensors_;
  const std::unordered_map<std::string, Type>* states_;
  Graph graph_;
  std::vector<std::string> names_;
  std::vector<Type> types_;
  std::vector<Entry> entries_;
};

}  // namespace

Graph graph_from_json(const Json& json, const std::vector<Tensor>& tensors,
                      const std::unordered_map<std::string, Type>* states,
                      std::unordered_map<uint32_t, Ints>* views) {
  return GraphReader(json, tensors, states).run(views);
}

}  // namespace steep
