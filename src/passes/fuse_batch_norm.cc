// Makes the activation that follows a batch normalisation part of it, forward and backward:
//
//   z, m, v = steep.BatchNorm(x, s, b)           y, m, v = steep.BatchNorm(x, s, b) {activation}
//   y = Relu(z)                              →
//   dx, … = steep.BatchNormGrad(                 dx, … = steep.BatchNormGrad(
//             Where(y <= 0, 0, dy), x, s, m, v)            dy, x, s, m, v, b) {activation}
//
// Both kernels are bound by memory: the activation and its gradient are four passes over arrays of
// their own. The gradient computes z again, to the same bits, from the x that it reads anyway, so
// that z and masks need not be kept. Hence gradients come first: each is a rewrite of its own. The
// activation follows if nothing else reads z any more.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ir/readers.h"
#include "ops/build.h"
#include "passes/pipeline.h"

namespace steep {
namespace {

/// Elements of a channel in one image. The CPU's kernel declines shorter ones, whose sums run along
/// the batch. Then separate nodes are faster, because the parts of a fused node stay unfused.
constexpr int64_t kShortestPlane = 8;

bool has_kernel(Value x) {
  if (x.dtype() != DType::f32 && x.dtype() != DType::f64) return false;
  const Dims& dims = x.type().dims();
  int64_t plane = 1;
  for (size_t i = 2; i < dims.size(); ++i) plane *= dims[i];
  return plane >= kShortestPlane && dims[0] > 0 && dims[1] > 0;
}

/// The attributes of `n` with the activation; nothing if it has one, or bounds do not fit.
std::optional<Attrs> with_activation(Node n, const Match& m, std::string_view activation) {
  if (!text_of(n, "activation").empty() || !has_kernel(m["x"])) return {};
  Attrs attrs = n.attrs();
  attrs.set("activation", std::string(activation));
  if (activation == "Relu") return attrs;
  const auto low = m.number("low"), high = m.number("high");
  if (!low || !high || !(*low <= *high)) return {};
  attrs.set("low", *low);
  attrs.set("high", *high);
  return attrs;
}

bool is_like(Value a, Value b) {
  return a.dtype() == b.dtype() && a.type().dims() == b.type().dims();
}

/// Replaces the node by one of the same operator, and returns that one's first output.
Value replace(Node old, const std::vector<Value>& operands, const Attrs& attrs) {
  Graph& g = old.graph();
  const Graph::Scope scope(g, old.phase(), old.name());
  const auto results = apply_n(old.op(), operands, old.output_count(), attrs);
  g.place_like(results[0].producer(), old);
  for (int i = 0; i < old.output_count(); ++i) {
    if (old.output(i)) g.replace_uses(old.output(i), results[static_cast<size_t>(i)]);
  }
  g.erase(old);
  return results[0];
}

bool fuse_gradient(const Match& m, std::string_view activation) {
  const Node grad = m.node("grad"), norm = m.node("norm");
  const Value mean = grad.input(3), variance = grad.input(4);
  if (mean != norm.output(1) || variance != norm.output(2) || !is_like(m["dy"], m["x"]) ||
      real_of(grad, "epsilon") != real_of(norm, "epsilon") || !text_of(norm, "activation").empty())
    return false;
  const auto attrs = with_activation(grad, m, activation);
  if (!attrs) return false;
  replace(grad, {m["dy"], m["x"], m["scale"], mean, variance, m["bias"]}, *attrs);
  return true;
}

/// REQUIRES: only the match reads the normalised values.
bool fuse_activation(const Match& m, std::string_view activation) {
  const Node norm = m.node("norm"), y = m.node("y");
  if (y.phase() != norm.phase() || !is_like(y.output(0), norm.output(0))) return false;
  const auto attrs = with_activation(norm, m, activation);
  if (!attrs) return false;
  const Value result = replace(norm, {m["x"], m["scale"], m["bias"]}, *attrs);
  y.graph().replace_uses(y.output(0), result);
  return true;
}

constexpr PatternRule<> kGradients[] = {
    {.name = "fuse_batch_norm/relu_gradient",
     .reason = "The gradient of ReLU costs a comparison while dy is in a register.",
     .pattern = "grad: steep.BatchNormGrad(only Where(LessOrEqual(Relu(norm: steep.BatchNorm("
                "x, scale, bias)), 0), 0, dy), x, scale, _, _)",
     .then = [](const Match& m) { return fuse_gradient(m, "Relu"); }},
    {.name = "fuse_batch_norm/clip_gradient",
     .reason = "So does the gradient of Clip, as files have it.",
     .pattern = "grad: steep.BatchNormGrad(only Where(LessOrEqual(low, norm: steep.BatchNorm("
                "x, scale, bias)), Where(LessOrEqual(Max(norm, low), high), dy, 0), 0), x, scale, "
                "_, _)",
     .then = [](const Match& m) { return fuse_gradient(m, "Clip"); }},
    {.name = "fuse_batch_norm/hardtanh_gradient",
     .reason = "So does that of PyTorch's ReLU6 and Hardtanh, whose slope at bounds is 0.",
     .pattern = "grad: steep.BatchNormGrad(only Where(And(Less(norm: steep.BatchNorm("
                "x, scale, bias), high), Greater(norm, low)), dy, 0), x, scale, _, _)",
     .then = [](const Match& m) { return fuse_gradient(m, "Hardtanh"); }},
};

constexpr PatternRule<const Readers&> kActivations[] = {
    {.name = "fuse_batch_norm/relu",
     .reason = "ReLU costs an instruction before the normalised values are written.",
     .pattern = "y: Relu(only norm: steep.BatchNorm(x, scale, bias))",
     .then = [](const Match& m, const Readers&) { return fuse_activation(m, "Relu"); }},
    {.name = "fuse_batch_norm/clip",
     .reason = "Clip costs two.",
     .pattern = "y: Clip(only norm: steep.BatchNorm(x, scale, bias), low, high)",
     .then = [](const Match& m, const Readers&) { return fuse_activation(m, "Clip"); }},
    {.name = "fuse_batch_norm/hardtanh",
     .reason = "PyTorch's ReLU6 and Hardtanh are comparisons, so that ends count as in PyTorch.",
     .pattern = "y: Where(only LessOrEqual(norm, low), low, only Where(only GreaterOrEqual(norm, "
                "high), high, norm: steep.BatchNorm(x, scale, bias)))",
     .then =
         [](const Match& m, const Readers& readers) {
           const Value z = m["norm"];
           return readers.of(z).size() == 3 && !z.graph().is_output(z) &&
                  fuse_activation(m, "Hardtanh");
         }},
};

}  // namespace

void fuse_batch_norm(Graph& g, const Devices& devices) {
  if (!devices.only_host()) return;  // kernels of other providers do not know the attribute
  const Readers all(g);
  for (Node n : g.nodes()) apply_rules(kGradients, n, Match(all));
  g.prune();  // the masks read the normalised values
  const Readers readers(g);
  for (Node n : g.nodes()) apply_rules(kActivations, n, Match(readers), readers);
}

std::vector<PatternRuleInfo> fuse_batch_norm_patterns() {
  return list_rules(kGradients, kActivations);
}

}  // namespace steep
