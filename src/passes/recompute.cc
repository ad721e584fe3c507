// Computes elementwise values that backward reads again in backward, from fewer bytes. Forward then
// writes fewer arrays, and they need not be kept.
//
//   forward: t = Tanh(x * 0.8), y = x * t        forward: y = x * Tanh(x * 0.8)
//   backward: dx = f(dy, x, t)               →   backward: dx = f(dy, x, Tanh(x * 0.8))
//
// The pass applies only if the sources of the value have fewer bytes than the value, or are kept
// anyway: reading and writing an array costs more than the arithmetic. This is true for a layer
// normalisation, whose gradient keeps its input. The general idea is in Chen et al., Training Deep
// Nets with Sublinear Memory Cost, 2016; here it is used only where it costs no time.

#include "ir/recompute.h"

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "ops/build.h"
#include "ops/op_def.h"
#include "passes/pipeline.h"
#include "passes/views.h"

namespace steep {
namespace {

bool is_elementwise(Node n) {
  const OpDef* def = n ? find_op(n.op()) : nullptr;
  return def != nullptr && def->elementwise && n.output_count() == 1;
}

/// Nodes that are recomputed although they are not elementwise.
constexpr PatternRule<> kRules[] = {
    {.name = "recompute/layer_normalization",
     .reason =
         "Its gradient keeps the input anyway, and normalising that again is one pass over it.",
     .pattern = "LayerNormalization(x, ...)"}};

class Recomputer {
 public:
  explicit Recomputer(Graph& g) : g_(g), order_(g.nodes()) {
    for (const Output& o : g.outputs()) kept_.insert(o.value.id());
    for (const Update& u : g.updates()) kept_.insert(u.value.id());
    for (Node n : order_) {
      if (n.phase() != Phase::backward) continue;
      for (int i = 0; i < n.input_count(); ++i) {
        Value x = n.input(i);
        if (x && !(is_elementwise(n) && can_recompute(x))) kept_.insert(x.id());
      }
    }
    for (Node n : order_) {
      if (n.output(0) && can_recompute(n.output(0))) find_sources(n.output(0));
    }
  }

  void run() {
    for (Node n : order_) {
      if (n.phase() != Phase::backward || !is_elementwise(n)) continue;
      for (int i = 0; i < n.input_count(); ++i) {
        Value x = n.input(i);
        if (x && recomputes(x) && pays(x)) n.set_input(i, copy(x, n));
      }
    }
    for (Node n : order_) {
      if (n.phase() != Phase::backward) continue;
      for (int i = 0; i < n.input_count(); ++i) {
        const Value x = n.input(i), y = x ? behind_views(x) : x;
        if (!y || !is_kept_norm(y)) continue;
        const Value replacement = copy(y, n);
        if (x == y) {
          n.set_input(i, replacement);
          continue;
        }
        const Graph::Scope scope(g_, Phase::backward, y.producer().name() + "/again");
        n.set_input(i, reshape(replacement, x.type().dims()));
        g_.place_like(n.input(i).producer(), n);
      }
    }
  }

 private:
  static constexpr size_t kMostSources = 8;
  /// The kept values that the copy of a value's producer would read; nothing if there are too many.
  using Sources = std::optional<std::vector<Value>>;

  /// Whether an elementwise node of forward computes x.
  static bool can_recompute(Value x) {
    Node p = x.producer();
    return p && p.phase() == Phase::forward && is_elementwise(p);
  }

  /// Called once for each value, producers first, because the number of paths to sources may be
  /// exponential. Values that are kept later are sources already, so earlier results stay valid.
  void find_sources(Value x) {
    Sources& sources = sources_[x.id()];
    sources.emplace();
    auto add = [&](Value v) {
      if (std::find(sources->begin(), sources->end(), v) == sources->end()) sources->push_back(v);
      if (sources->size() > kMostSources) sources.reset();
    };
    Node p = x.producer();
    for (int i = 0; i < p.input_count() && sources; ++i) {
      Value in = p.input(i);
      if (!in) continue;
      if (!recomputes(in)) {
        add(in);
      } else if (const Sources& more = sources_.at(in.id()); !more) {
        sources.reset();
      } else {
        for (size_t k = 0; k < more->size() && sources; ++k) add((*more)[k]);
      }
    }
  }

  /// Whether v is kept in any case: constants, states and inputs are.
  bool stays(Value v) const { return !v.producer() || kept_.count(v.id()) != 0; }

  bool pays(Value x) {
    auto [it, fresh] = pays_.try_emplace(x.id(), false);
    if (!fresh) return it->second;
    const Sources& sources = sources_.at(x.id());
    if (!sources) return false;
    size_t bytes = 0;
    for (Value s : *sources) bytes += stays(s) ? 0 : s.type().nbytes();
    if (bytes >= x.type().nbytes()) return false;
    for (Value s : *sources) kept_.insert(s.id());
    return it->second = true;
  }

  bool recomputes(Value x) const { return kept_.count(x.id()) == 0 && can_recompute(x); }

  /// Whether x is the result of a large layer normalisation whose input is kept.
  bool is_kept_norm(Value x) const {
    constexpr size_t kLeastBytes = size_t{1} << 20;
    Node p = x.producer();
    if (!p || p.phase() != Phase::forward || x != p.output(0)) return false;
    if (x.type().nbytes() < kLeastBytes || g_.is_output(x)) return false;
    return apply_rules(kRules, p, Match()) && stays(p.input(0));
  }

  /// The recomputed x for `reader` and all later readers. It reads kept values and other
  /// recomputed values.
  Value copy(Value x, Node reader) {
    const auto is_recomputed = [&](Value v) { return recomputes(v); };
    return recompute_value(x, recomputed_, is_recomputed, [&](Value y) {
      const Node p = y.producer();
      const Graph::Scope scope(g_, Phase::backward, p.name() + "/again");
      const Node clone =
          g_.add_node(p.op(), recomputed_inputs(p, recomputed_, is_recomputed), 1, p.attrs());
      g_.set_type(clone.output(0), y.type());
      g_.place_like(clone, reader);
      recomputed_[y.id()] = clone.output(0);
    });
  }

  Graph& g_;
  std::vector<Node> order_;
  std::unordered_set<uint32_t> kept_;              // by value id: available in backward in any case
  std::unordered_map<uint32_t, Sources> sources_;  // by value id
  std::unordered_map<uint32_t, bool> pays_;        // by value id
  RecomputedValues recomputed_;
};

}  // namespace

void recompute(Graph& g) { Recomputer(g).run(); }

std::vector<PatternRuleInfo> recompute_patterns() { return list_rules(kRules); }

}  // namespace steep
