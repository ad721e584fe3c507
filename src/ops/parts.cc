#include "ops/parts.h"

#include <algorithm>

#include "ops/build.h"

namespace steep {

Grads differentiate_parts(const Parts& parts, std::span<const Value> inputs, const Grads& dy,
                          Differentiate differentiate) {
  // Differentiate from copies of the inputs, so that no path leads through the inputs' producers.
  std::vector<Value> own(inputs.begin(), inputs.end()), wrt;
  for (Value& v : own) {
    if (!v || !is_float(v.dtype())) continue;
    v = apply("Identity", {v});
    wrt.push_back(v);
  }
  if (wrt.empty()) return {};
  const std::vector<Value> all = parts(own);
  std::vector<Value> outputs, seeds;
  for (size_t i = 0; i < dy.size(); ++i) {
    if (!dy[i] || !all.at(i)) continue;
    outputs.push_back(all[i]);
    seeds.push_back(dy[i]);
  }
  Graph& g = wrt[0].graph();
  const Grads gradients = differentiate(g, outputs, seeds, wrt, wrt[0].producer().phase());
  Grads dx(inputs.size());
  for (size_t i = 0, next = 0; i < own.size(); ++i) {
    if (own[i] == inputs[i]) continue;
    const Value d = gradients[next++];
    const auto copy = std::find(own.begin(), own.end(), d);
    dx[i] = d && copy != own.end() ? inputs[static_cast<size_t>(copy - own.begin())] : d;
  }
  for (size_t i = 0; i < own.size(); ++i) {
    if (own[i] != inputs[i]) g.replace_uses(own[i], inputs[i]);
  }
  return dx;
}

std::vector<Value> gradients_in_parts(const Parts& parts, std::span<const Value> inputs,
                                      const Grads& dy, Differentiate differentiate) {
  std::vector<Value> dx = differentiate_parts(parts, inputs, dy, differentiate);
  for (size_t i = 0; i < dx.size(); ++i) {
    if (!dx[i] && inputs[i] && is_float(inputs[i].dtype())) dx[i] = zeros_like(inputs[i]);
  }
  return dx;
}

}  // namespace steep
