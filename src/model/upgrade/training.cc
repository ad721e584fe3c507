// ai.onnx.preview.training: one optimizer update, written as arithmetic.

#include <fmt/format.h>

#include <functional>

#include "model/read/quote.h"
#include "model/upgrade/rules.h"
#include "ops/build.h"
#include "steep/error.h"

namespace steep {
namespace {

/// The update of one parameter, from its parts: parameter, gradient, moments.
using Step = std::function<std::vector<Value>(std::span<const Value> parts)>;

/// Inputs are R, T, all X, all G, then each moment for all parameters; outputs are all X, then each
/// moment.
Bindings for_each_parameter(const Call& c, size_t parts, const Step& step) {
  const size_t operands = c.inputs.size();
  if (operands < 2 + parts || (operands - 2) % parts != 0) {
    c.fail("An optimizer has a wrong number of inputs.",
           fmt::format("2, and {} for each parameter", parts), fmt::format("{}", operands),
           "Export the model again.");
  }
  const size_t count = (operands - 2) / parts;
  Bindings results(count * (parts - 1));
  for (size_t i = 0; i < count; ++i) {
    std::vector<Value> own;
    for (size_t p = 0; p < parts; ++p) own.push_back(c.need(2 + p * count + i));
    const std::vector<Value> after = step(own);
    for (size_t p = 0; p < after.size(); ++p) results[p * count + i] = after[p];
  }
  return results;
}

Value number(const Call& c, size_t i, Value like) {
  return cast_like(reshape(c.need(i), Ints{}), like);
}

}  // namespace

Bindings upgrade_adam(const Call& c) {
  const double alpha = c.attrs.real("alpha", 0.9F), beta = c.attrs.real("beta", 0.999F);
  const double epsilon = c.attrs.real("epsilon", 1e-6F);
  const double before = c.attrs.real("norm_coefficient", 0);
  const double after = c.attrs.real("norm_coefficient_post", 0);
  return for_each_parameter(c, 4, [&](std::span<const Value> p) -> std::vector<Value> {
    const Value x = p[0], rate = number(c, 0, x), t = number(c, 1, x);
    auto decay = [&](double base) {
      return 1.0 - apply("Pow", {scalar(c.graph, base, x.dtype()), t});
    };
    const Value g = before == 0 ? p[1] : x * before + p[1];
    const Value v = p[2] * alpha + g * (1 - alpha);
    const Value h = p[3] * beta + g * g * (1 - beta);
    const Value adjusted = where(greater(t, 0), rate * sqrt(decay(beta)) / decay(alpha), rate);
    const Value result = x - adjusted * v / (sqrt(h) + epsilon);
    return {after == 0 ? result : result * (1 - after), v, h};
  });
}

Bindings upgrade_adagrad(const Call& c) {
  const double epsilon = c.attrs.real("epsilon", 1e-6F);
  const double norm = c.attrs.real("norm_coefficient", 0);
  const double decay = c.attrs.real("decay_factor", 0);
  return for_each_parameter(c, 3, [&](std::span<const Value> p) -> std::vector<Value> {
    const Value x = p[0], t = number(c, 1, x);
    const Value rate = number(c, 0, x) / (t * decay + 1);
    const Value g = norm == 0 ? p[1] : x * norm + p[1];
    const Value h = p[2] + g * g;
    return {x - rate * g / (sqrt(h) + epsilon), h};
  });
}

Bindings upgrade_momentum(const Call& c) {
  const double alpha = c.attrs.real("alpha", 0), beta = c.attrs.real("beta", 0);
  const double norm = c.attrs.real("norm_coefficient", 0);
  const bool nesterov = c.attrs.string("mode", "standard") == "nesterov";
  return for_each_parameter(c, 3, [&](std::span<const Value> p) -> std::vector<Value> {
    const Value x = p[0], rate = number(c, 0, x);
    const Value g = norm == 0 ? p[1] : x * norm + p[1];
    const Value one = scalar(c.graph, 1, x.dtype());
    const Value factor = where(greater(number(c, 1, x), 0), scalar(c.graph, beta, x.dtype()), one);
    const Value v = p[2] * alpha + factor * g;
    return {x - rate * (nesterov ? g + v * alpha : v), v};
  });
}

}  // namespace steep
