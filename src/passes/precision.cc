// Mixed precision, with bfloat16 or float16. Operators whose provider supports it (matrix products,
// usually) read and write the narrow type. Results that end in an update or an output are written
// as float32. All other operators compute in float32, and states (weights, moments) stay float32.
//
// A float32 value that products read gets a single narrowing Cast, right after its producer, for
// all these readers. So forward saves the narrow value for backward's products. A narrow result of
// a product gets a widening Cast before each reader. These casts cost no pass over memory if
// fuse_elementwise absorbs them, or if a kernel reads the narrow type itself.
//
// Convolutions keep their float32 operands; their kernels may round these to bfloat16.

#include "passes/precision.h"

#include <functional>
#include <map>
#include <optional>
#include <unordered_map>

#include "ops/build.h"
#include "ops/op_def.h"
#include "passes/pipeline.h"
#include "runtime/bfloat16.h"
#include "steep/error.h"

namespace steep {
namespace {

bool has_bit(uint64_t mask, int i) { return (mask >> i & 1) != 0; }

constexpr PatternRule<> kMoves[] = {
    {.name = "precision/move",
     .reason = "Moving elements to other places is exact in any type.",
     .pattern = "Transpose|Gather|Slice|Expand(x, ...)"}};

/// Whether the node only moves the elements of input 0, so that the type does not matter to it.
bool moves(Node n) {
  if (n.output_count() != 1 || !n.input(0) || n.output(0).dtype() != n.input(0).dtype()) {
    return false;
  }
  const OpDef* def = find_op(n.op());
  return (def != nullptr && def->view) || apply_rules(kMoves, n, Match());
}

/// Whether the node moves elements, and narrowing before it costs no more than after it.
bool narrows_as_well_before(Node n) {
  return moves(n) &&
         element_count(n.input(0).type().dims()) <= element_count(n.output(0).type().dims());
}

/// Nodes, besides moves, that pass a gradient on to an update.
constexpr PatternRule<> kPassOn[] = {
    {.name = "precision/sum",
     .reason = "A sum of gradients, or a scaled one, is the gradient that an update reads.",
     .pattern = "Add|Sum|Mul|Div(...)"}};

/// Nodes from which an update reads a number.
constexpr PatternRule<> kSinks[] = {
    {.name = "precision/norm",
     .reason = "The norm for clipping is computed from gradients of full precision.",
     .pattern = "steep.GlobalNorm(...)"},
    {.name = "precision/deliver",
     .reason = "Gradients are summed over processes in full precision.",
     .pattern = "steep.Deliver(...)"}};

bool passes_on(Node n) { return moves(n) || apply_rules(kPassOn, n, Match()); }

/// Converts to bfloat16.
Tensor narrowed(const Tensor& wide) {
  Tensor narrow = Tensor::empty(DType::bf16, wide.dims());
  const auto* x = wide.data<float>();
  auto* y = static_cast<uint16_t*>(narrow.data());
  for (int64_t i = 0; i < wide.size(); ++i) y[i] = to_bfloat16(x[i]);
  return narrow;
}

/// Whether the bias is not along the result's last axis: kernels then add it to the rounded
/// product.
bool adds_bias_late(Node n) {
  const Ints perm = n.attrs().ints("perm_y");
  return n.input(2) && !perm.empty() && perm.back() != static_cast<int64_t>(perm.size()) - 1;
}

/// A product, and the parts that have to be separate nodes.
struct Product {
  bool relu = false, turn = false;
};

constexpr PatternRule<Product&> kProducts[] = {
    {.name = "precision/product",
     .reason = "steep.MatMul says which type it writes.",
     .pattern = "MatMul(a, b)",
     .then = [](const Match& m, Product&) { return m["a"].rank() >= 2 && m["b"].rank() >= 2; }},
    {.name = "precision/epilogue",
     .reason = "ReLU costs nothing in a chain of elementwise nodes behind the widening Cast.",
     .pattern = "product: steep.MatMul(...)",
     .then =
         [](const Match& m, Product& p) {
           const Node n = m.node("product");
           p.relu = n.attrs().string("activation", "") == "Relu";
           p.turn = adds_bias_late(n);
           return p.relu || p.turn;
         }},
};

/// Turns products into steep.MatMul without ReLU.
void normalise_products(Graph& g) {
  for (Node n : g.nodes()) {
    Value y = n.output(0);
    if (!y || y.dtype() != DType::f32) continue;
    Product product;
    if (!apply_rules(kProducts, n, Match(), product)) continue;
    std::vector<Value> inputs;
    for (int i = 0; i < n.input_count(); ++i) inputs.push_back(n.input(i));
    Attrs attrs = n.attrs();
    if (product.relu) attrs.set("activation", std::string());
    if (product.turn) attrs.set("perm_y", Ints());
    Graph::Scope scope(g, n.phase(), n.name());
    auto place = [&](Value v) {
      g.place_like(v.producer(), n);
      return v;
    };
    Value result = place(apply("steep.MatMul", inputs, std::move(attrs)));
    if (product.turn) result = place(transpose(result, n.attrs().ints("perm_y")));
    if (product.relu) result = place(apply("Relu", {result}));
    g.replace_uses(y, result);
  }
  g.prune();
}

class Narrower {
 public:
  Narrower(Graph& g, DType narrow, const Devices& devices)
      : g_(g), type_(narrow), devices_(devices), order_(g.nodes()) {}

  void run() {
    find_wide();
    find_wanted();
    for (Node n : order_) visit(n);
    std::vector<Output> outputs = g_.outputs();
    for (Output& o : outputs) {
      if (known_[o.value.id()].only_narrow) o.value = widened(o.value, o.value.producer());
    }
    g_.set_outputs(std::move(outputs));
  }

  static std::vector<PatternRuleInfo> patterns() { return list_rules(kNarrow, kWidened); }

 private:
  struct Known {
    Value narrow;              // the value in the narrow type, or null
    bool only_narrow = false;  // the wide value has no producer any more
    bool wanted = false;       // products read the value
    bool wide = false;         // see find_wide
  };

  Known& known(Value v) { return known_[v.id()]; }

  /// How the node's kernels use the narrow type; null if they do not.
  const SteepNarrow* find(Node n) {
    auto it = known_ops_.find(n.op());
    if (it == known_ops_.end())
      it = known_ops_.emplace(n.op(), devices_.narrows(n.op(), type_)).first;
    return it->second ? &*it->second : nullptr;
  }

  /// Finds values that reach an update or an output, perhaps as part of a sum: rounding to 16 bits
  /// would lose digits that the weights keep.
  void find_wide() {
    for (const Output& o : g_.outputs()) known(o.value).wide = true;
    for (const Update& u : g_.updates()) known(u.value).wide = true;
    for (size_t k = order_.size(); k-- > 0;) {
      Node n = order_[k];
      const OpDef* def = find_op(n.op());
      const bool sink =
          (def != nullptr && !def->updates_input.empty()) || apply_rules(kSinks, n, Match());
      if (!sink && !(passes_on(n) && known(n.output(0)).wide)) continue;
      for (int i = 0; i < n.input_count(); ++i) {
        if (n.input(i)) known(n.input(i)).wide = true;
      }
    }
  }

  /// Finds values that products read, also through nodes that move elements.
  void find_wanted() {
    for (size_t k = order_.size(); k-- > 0;) {
      Node n = order_[k];
      if (const SteepNarrow* op = find(n)) {
        for (int i = 0; i < n.input_count(); ++i) {
          if (has_bit(op->casts, i)) known(n.input(i)).wanted = true;
        }
      }
      if (narrows_as_well_before(n) && known(n.output(0)).wanted) known(n.input(0)).wanted = true;
    }
  }

  void visit(Node n) {
    if (const SteepNarrow* op = find(n); op != nullptr && n.output(0).dtype() == DType::f32) {
      return read_narrow(n, *op);
    }
    if (moves(n) && known(n.input(0)).only_narrow) {
      Known& y = known(n.output(0));
      y.narrow = moved(n, n);
      y.only_narrow = true;
      return;
    }
    if (apply_rules(kNarrow, n, Match(), *this)) return;
    for (int i = 0; i < n.input_count(); ++i) {
      Value x = n.input(i);
      if (!x || !known(x).only_narrow) continue;
      Value wide = widened(x, n);
      for (int k = i; k < n.input_count(); ++k) {
        if (n.input(k) == x) n.set_input(k, wide);
      }
    }
  }

  bool reuse_twin(Value x, Value y) {
    if (y.dtype() != type_ || !known(x).narrow) return false;
    g_.replace_uses(y, known(x).narrow);
    return true;
  }

  bool split(Node n) {
    if (!known(n.input(0)).only_narrow) return false;
    replace_narrow(n, {known(n.input(0)).narrow, n.input(1)});
    return true;
  }

  bool concatenate(Node n) {
    std::vector<Value> parts;
    for (int i = 0; i < n.input_count(); ++i) {
      if (!known(n.input(i)).only_narrow) return false;
      parts.push_back(known(n.input(i)).narrow);
    }
    replace_narrow(n, parts);
    return true;
  }

  /// Replaces the node by one on narrow values.
  void replace_narrow(Node n, const std::vector<Value>& inputs) {
    Graph::Scope scope(g_, n.phase(), n.name());
    const std::vector<Value> results = apply_n(n.op(), inputs, n.output_count(), n.attrs());
    g_.place_like(results[0].producer(), n);
    for (int i = 0; i < n.output_count(); ++i) {
      if (!n.output(i)) continue;
      known(n.output(i)).narrow = results[static_cast<size_t>(i)];
      known(n.output(i)).only_narrow = true;
    }
  }

  void read_narrow(Node n, const SteepNarrow& op) {
    std::vector<Value> inputs;
    for (int i = 0; i < n.input_count(); ++i) {
      Value x = n.input(i);
      inputs.push_back(x);
      if (!x || x.dtype() != DType::f32) continue;
      const bool reads =
          has_bit(op.reads, i) && (known(x).only_narrow || (op.prefers != 0 && known(x).wanted));
      if (reads || has_bit(op.casts, i)) {
        inputs.back() = narrow(x, n);
      } else if (known(x).only_narrow) {
        inputs.back() = widened(x, n);
      }
    }
    Value y = n.output(0);
    const bool writes =
        !known(y).wide && (op.result == STEEP_RESULT_NARROW ||
                           (op.result == STEEP_RESULT_NARROW_READ && known(y).wanted));
    Attrs attrs = n.attrs();
    if (op.follow == 0) {
      attrs.set("dtype", static_cast<int64_t>(writes ? type_ : DType::f32));
    }
    Graph::Scope scope(g_, n.phase(), n.name());
    const std::vector<Value> results = apply_n(n.op(), inputs, n.output_count(), std::move(attrs));
    g_.place_like(results[0].producer(), n);
    const int narrow_outputs = writes ? 1 : op.follow;
    for (int i = 0; i < n.output_count(); ++i) {
      Value old = n.output(i), now = results[static_cast<size_t>(i)];
      if (!old) continue;
      if (i < narrow_outputs) {
        known(old).narrow = now;
        known(old).only_narrow = true;
      } else {
        known(now) = known(old);
        g_.replace_uses(old, now);
      }
    }
  }

  /// The narrow value of `x`, which is made for `reader` if it does not exist yet.
  Value narrow(Value x, Node reader) {
    Value& twin = known(x).narrow;
    if (twin) return twin;
    Node from = x.producer();
    if (from && apply_rules(kWidened, from, Match(), type_)) {
      twin = from.input(0);
    } else if (x.role() == Role::constant && type_ == DType::bf16) {
      twin = g_.add_constant(narrowed(*x.tensor()), x.name());
    } else if (from && narrows_as_well_before(from)) {
      twin = moved(from, reader);
    } else {
      const Phase phase = from                      ? from.phase()
                          : x.role() == Role::input ? g_.input_phase(x)
                                                    : Phase::forward;
      Graph::Scope scope(g_, phase, x.name());
      twin = cast(x, type_);
      g_.place_like(twin.producer(), from ? from : reader);
    }
    return twin;
  }

  Value moved(Node n, Node reader) {
    std::vector<Value> inputs{narrow(n.input(0), reader)};
    for (int i = 1; i < n.input_count(); ++i) inputs.push_back(n.input(i));
    Graph::Scope scope(g_, n.phase(), n.name());
    Value result = apply(n.op(), inputs, n.attrs());
    g_.place_like(result.producer(), n);
    return result;
  }

  Value widened(Value x, Node reader) {
    Graph::Scope scope(g_, reader.phase(), x.name());
    Value wide = cast(known(x).narrow, DType::f32);
    g_.place_like(wide.producer(), reader);
    return wide;
  }

  static const PatternRule<Narrower&> kNarrow[3];
  static const PatternRule<DType> kWidened[1];

  Graph& g_;
  DType type_;
  const Devices& devices_;
  std::map<std::string, std::optional<SteepNarrow>, std::less<>> known_ops_;
  std::vector<Node> order_;
  std::unordered_map<uint32_t, Known> known_;  // by value id
};

/// Nodes that run on narrow values although no kernel requires it.
constexpr PatternRule<Narrower&> Narrower::kNarrow[] = {
    {.name = "precision/narrowing_cast",
     .reason = "A value that products read has one narrow twin, for a model's own casts, too.",
     .pattern = "y: Cast(x)",
     .then = [](const Match& m,
                Narrower& narrower) { return narrower.reuse_twin(m["x"], m["y"]); }},
    {.name = "precision/split",
     .reason = "Parts of a narrow value are narrow: joint projections of queries, keys and values.",
     .pattern = "split: Split(x, ...)",
     .then = [](const Match& m, Narrower& narrower) { return narrower.split(m.node("split")); }},
    {.name = "precision/concat",
     .reason = "A Concat of narrow parts is narrow.",
     .pattern = "concat: Concat(_, ...)",
     .then = [](const Match& m,
                Narrower& narrower) { return narrower.concatenate(m.node("concat")); }},
};

constexpr PatternRule<DType> Narrower::kWidened[] = {
    {.name = "precision/widened",
     .reason =
         "The narrow value from before a widening Cast is used again: nothing is rounded twice.",
     .pattern = "Cast(x)",
     .then = [](const Match& m, DType narrow) { return m["x"].dtype() == narrow; }}};

/// Convolutions reorder their operands anyway and can narrow them in the same pass, so a Cast in
/// the graph would not be cheaper.
void let_convolutions_narrow(Graph& g) {
  for (Node n : g.nodes()) {
    if (declares(n.op(), "allow_bf16")) n.mutable_attrs().set("allow_bf16", int64_t{1});
  }
}

}  // namespace

Precision precision_from(std::string_view name) {
  if (name == "fp32") return Precision::fp32;
  if (name == "bf16") return Precision::bf16;
  if (name == "fp16") return Precision::fp16;
  throw ModelError({.what = "There is no such precision.",
                    .expected = "\"fp32\", \"bf16\" or \"fp16\"",
                    .received = std::string(name)});
}

void precision_bf16(Graph& g, const Devices& devices) {
  normalise_products(g);
  let_convolutions_narrow(g);
  Narrower(g, DType::bf16, devices).run();
}

void precision_fp16(Graph& g, const Devices& devices) {
  normalise_products(g);
  Narrower(g, DType::f16, devices).run();
}

std::vector<PatternRuleInfo> precision_patterns() {
  std::vector<PatternRuleInfo> rules = list_rules(kProducts, kMoves, kPassOn, kSinks);
  const std::vector<PatternRuleInfo> of_narrower = Narrower::patterns();
  rules.insert(rules.end(), of_narrower.begin(), of_narrower.end());
  return rules;
}

}  // namespace steep
