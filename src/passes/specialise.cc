#include "passes/specialise.h"

#include <fmt/format.h>

#include <map>

#include "ops/build.h"
#include "ops/op_def.h"
#include "passes/simplify.h"
#include "steep/error.h"

namespace steep {
namespace {

// Larger results are left to run time, where the planner gives them memory that is reused.
constexpr int64_t kMaxFoldedElements = int64_t{1} << 20;

void check_input(Value input, const Type& given, std::map<std::string, int64_t>& symbols) {
  const Type& wanted = input.type();
  auto fail = [&](const char* what) {
    throw ShapeError(
        {.what = what,
         .node = input.name(),
         .expected = to_string(wanted),
         .received = to_string(given),
         .remedy = "Feed the input with the dtype and shape that the model declares."});
  };
  if (given.dtype != wanted.dtype) fail("An input has the wrong dtype.");
  if (!wanted.shape) return;
  if (wanted.shape->size() != given.shape->size())
    fail("An input has the wrong number of dimensions.");
  for (size_t i = 0; i < wanted.shape->size(); ++i) {
    const Dim& w = (*wanted.shape)[i];
    const int64_t g = (*given.shape)[i].value();
    if (w.known() && w.value() != g) fail("An input has the wrong shape.");
    if (w.known() || w.symbol().empty()) continue;
    auto [it, first] = symbols.try_emplace(w.symbol(), g);
    if (!first && it->second != g) {
      throw ShapeError(
          {.what = "Two inputs disagree on a named dimension.",
           .node = input.name(),
           .expected = fmt::format("{} = {}, as another input has it", w.symbol(), it->second),
           .received = fmt::format("{} = {}", w.symbol(), g)});
    }
  }
}

Tensor shape_tensor(Node n) {
  Dims dims = n.input(0).type().dims();
  const auto rank = static_cast<int64_t>(dims.size());
  if (n.op() == "Size") return Tensor::scalar<int64_t>(element_count(dims));
  auto clamp = [rank](int64_t i) { return std::clamp<int64_t>(i < 0 ? i + rank : i, 0, rank); };
  const int64_t start = clamp(n.attrs().integer("start", 0));
  const int64_t end = std::max(start, clamp(n.attrs().integer("end", rank)));
  return Tensor::from(Ints(dims.begin() + start, dims.begin() + end), {end - start});
}

class Specialiser {
 public:
  Specialiser(Graph& g, const Provider& provider)
      : g_(g), provider_(provider), now_(g.value_count()) {}

  void visit(Node n) {
    for (int i = 0; i < n.input_count(); ++i) {
      if (Value x = n.input(i); x && x.id() < now_.size() && now_[x.id()])
        n.set_input(i, now_[x.id()]);
    }
    infer_types(n);
    if (Value same = simplify(n)) {
      replace(n.output(0), same);
    } else if ((n.op() == "Shape" || n.op() == "Size") && n.input(0).type().concrete()) {
      replace(n.output(0), g_.add_constant(shape_tensor(n), n.output(0).name()));
    } else if (foldable(n)) {
      fold(n);
    }
    for (int i = 0; i < n.output_count(); ++i) {
      Value y = n.output(i);
      if (!y || (y.id() < now_.size() && now_[y.id()]) || y.type().concrete()) continue;
      throw ModelError(
          {.what = "The shape of a value depends on data, so that the step cannot be planned.",
           .node = n.name(),
           .op = n.op(),
           .expected = "a shape that follows from the shapes of the inputs",
           .received = to_string(y.type()),
           .remedy = "Replace this node by one whose output shape is fixed."});
    }
  }

  /// Once the forward part is known, so are the types of its outputs' gradients.
  void bind_gradient_inputs() {
    for (Value input : g_.inputs()) {
      if (Value like = g_.gradient_of(input)) g_.set_type(input, latest(like).type());
    }
  }

  void finish() {
    auto last = [this](Value v) { return latest(v); };
    for (Output& o : g_.mutable_outputs()) o.value = last(o.value);
    for (Update& u : g_.mutable_updates()) u.value = last(u.value);
    g_.prune();
  }

 private:
  Value latest(Value v) const { return v.id() < now_.size() && now_[v.id()] ? now_[v.id()] : v; }
  void replace(Value from, Value to) { now_[from.id()] = to; }

  static bool foldable(Node n) {
    if (n.input_count() == 0) return false;
    for (int i = 0; i < n.input_count(); ++i) {
      if (n.input(i) && n.input(i).role() != Role::constant) return false;
    }
    for (int i = 0; i < n.output_count(); ++i) {
      Value y = n.output(i);
      // Range, ConstantOfShape and their like: the extent follows once the values are looked at.
      if (y && y.type().concrete() && element_count(y.type().dims()) > kMaxFoldedElements)
        return false;
    }
    return true;
  }

  void fold(Node n) {
    std::vector<Tensor> inputs;
    for (int i = 0; i < n.input_count(); ++i) {
      inputs.push_back(n.input(i) ? *n.input(i).tensor() : Tensor());
    }
    for (int i = 0; i < n.output_count(); ++i) {
      if (n.output(i) && !n.output(i).type().concrete()) return;
    }
    const std::vector<Tensor> outputs = run_node(provider_, n, inputs);
    for (int i = 0; i < n.output_count(); ++i) {
      Value y = n.output(i);
      if (y) replace(y, g_.add_constant(outputs[static_cast<size_t>(i)], y.name()));
    }
  }

  Graph& g_;
  const Provider& provider_;
  std::vector<Value> now_;  // by id of an original value: what its readers read instead
};

}  // namespace

NodeSpec spec_of(Node n) {
  NodeSpec spec{.name = n.name(), .op = n.op(), .attrs = n.attrs(), .inputs = {}, .outputs = {}};
  auto operand = [](Value v) {
    if (!v) return Operand{};
    return Operand{v.dtype(), v.type().dims(), v.role() == Role::constant ? v.tensor() : nullptr};
  };
  for (int i = 0; i < n.input_count(); ++i) spec.inputs.push_back(operand(n.input(i)));
  for (int i = 0; i < n.output_count(); ++i) spec.outputs.push_back(operand(n.output(i)));
  return spec;
}

std::vector<Tensor> run_node(const Provider& provider, Node n, std::span<const Tensor> inputs) {
  std::string why_not;
  const ChosenKernel chosen = choose_kernel(provider, spec_of(n), &why_not);
  if (!chosen.kernel) {
    throw ProviderError(
        {.what = "No kernel can run a node.", .node = n.name(), .op = n.op(), .received = why_not});
  }
  std::vector<Tensor> outputs;
  std::vector<const void*> in;
  std::vector<void*> out;
  for (const Tensor& t : inputs) in.push_back(t.data());
  for (int i = 0; i < n.output_count(); ++i) {
    outputs.push_back(Tensor::zeros(n.output(i).dtype(), n.output(i).type().dims()));
    out.push_back(outputs.back().data());
  }
  Tensor scratch = Tensor::empty(DType::u8, {static_cast<int64_t>(chosen.kernel->scratch_bytes)});
  chosen.kernel->execute({in.data(), out.data(), scratch.data()});
  return outputs;
}

Graph specialise(const Graph& graph, std::span<const Type> types, const Provider& provider) {
  Graph g = graph;
  g.prune();
  std::map<std::string, int64_t> symbols;
  for (size_t i = 0; i < g.inputs().size(); ++i) {
    if (g.gradient_of(g.inputs()[i])) continue;
    check_input(g.inputs()[i], types[i], symbols);
    g.set_type(g.inputs()[i], types[i]);
  }
  Specialiser specialiser(g, provider);
  bool in_backward = false;
  for (Node n : g.nodes()) {
    if (n.phase() == Phase::backward && !in_backward) {
      in_backward = true;
      specialiser.bind_gradient_inputs();
    }
    Graph::Scope scope(g, n.phase(), n.name());
    specialiser.visit(n);
  }
  if (!in_backward) specialiser.bind_gradient_inputs();
  specialiser.finish();
  return g;
}

}  // namespace steep
