// steep.Muon{momentum, epsilon, weight_decay, ns_a, ns_b, ns_c, ns_steps, nesterov, match_rms,
// unclamped, maximize}, state buf, for matrices: Jordan et al. 2024, as torch.optim.Muon, except
// that the products are in the precision of the update, not always in bfloat16.
#include <algorithm>
#include <cmath>

#include "ops/defs/optimizers/optimizers.h"

namespace steep {
namespace {

/// About the orthogonal matrix that is nearest to x, by the Newton-Schulz iteration. Its products
/// are ordinary nodes.
Value orthogonal(Node n, const Settings& settings, Value x, bool tall) {
  if (tall) x = swap_last(x);
  const Value length = sqrt(sum(x * x, {}, false));
  x = x / apply("Max", {length, settings("epsilon")});
  for (int64_t i = 0; i < integer_of(n, "ns_steps"); ++i) {
    const Value gram = matmul(x, swap_last(x));
    const Value factor = settings("ns_b") * gram + settings("ns_c") * matmul(gram, gram);
    x = settings("ns_a") * x + matmul(factor, x);
  }
  return tall ? swap_last(x) : x;
}

/// The factor of the rate for a matrix of these extents.
double adjustment(Node n, double rows, double columns) {
  if (integer_of(n, "match_rms") != 0) return 0.2 * std::sqrt(std::max(rows, columns));
  if (columns == 0) return 1;  // nothing to update
  const double least = integer_of(n, "unclamped") != 0 ? 0.0 : 1.0;
  return std::sqrt(std::max(least, rows / columns));
}

std::vector<Value> muon_decompose(Node n) {
  const Settings settings(n);
  const Value param = n.input(kParamInput), gradient = scaled_gradient(n);
  const auto rows = static_cast<double>(param.shape()[0].value());
  const auto columns = static_cast<double>(param.shape()[1].value());
  const Value momentum = settings.exact("momentum");
  const Value buffer = moving_average(momentum, n.input(kFirstState), gradient);
  const bool nesterov = integer_of(n, "nesterov") != 0;
  const Value direction = nesterov ? moving_average(momentum, buffer, gradient) : buffer;
  const Value step = orthogonal(n, settings, direction, rows > columns);
  const Value lr = settings.exact("lr");
  const Value rate = lr * adjustment(n, rows, columns);
  const Value shrink = 1.0 - lr * settings.exact("weight_decay");
  const Value start = settings.is_zero("weight_decay") ? param : param * cast_like(shrink, param);
  // A sum of products, so that the pass precision_bf16 does not round the last product of a step.
  return {start + -cast_like(rate, param) * step, buffer};
}

}  // namespace

extern const OpDef kSteepMuon = {.name = "steep.Muon",
                                 .attributes = {{"momentum", 0.0},
                                                {"epsilon", 0.0},
                                                {"weight_decay", 0.0},
                                                {"ns_a", 0.0},
                                                {"ns_b", 0.0},
                                                {"ns_c", 0.0},
                                                {"ns_steps", 5},
                                                {"nesterov", 0},
                                                {"match_rms", 0},
                                                {"unclamped", 0},
                                                {"maximize", 0}},
                                 .ranks = "2 2",
                                 .infer = updated_types,
                                 .decompose = muon_decompose,
                                 .updates_input = {kParamInput, kFirstState}};

}  // namespace steep
