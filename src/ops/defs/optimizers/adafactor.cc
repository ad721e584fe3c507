// steep.Adafactor{beta2_decay, epsilon, epsilon2, clip_threshold, weight_decay, maximize}, states
// row_var and col_var, or variance for parameters of less than two axes: Shazeer & Stern 2018, as
// torch.optim.Adafactor. The second moment of a matrix is stored as the means over its rows and
// over its columns; further axes in front are a batch of matrices.
#include <algorithm>
#include <limits>

#include "ops/defs/optimizers/optimizers.h"

namespace steep {
namespace {

/// The number of elements along some axes, at least 1: means of nothing are 0.
double count(const Shape& shape, const Ints& axes) {
  double product = 1;
  for (const int64_t axis : axes) product *= static_cast<double>((shape.end() + axis)->value());
  return std::max(product, 1.0);
}

/// `like`: a value with the extents of x, which are known.
Value mean_square(Value x, Value like, const Ints& axes) {
  return sum(x * x, axes, true) / count(like.shape(), axes);
}

Value root_mean_square(Value x, Value like) {
  Ints axes;
  for (int64_t axis = -like.rank(); axis < 0; ++axis) axes.push_back(axis);
  const Value square = x * x;
  return sqrt((axes.empty() ? square : sum(square, {}, false)) / count(like.shape(), axes));
}

/// A negative epsilon stands for that of the parameter's type.
Value least_root(const Settings& settings) {
  const Value epsilon = settings("epsilon");
  const double of_type = epsilon.dtype() == DType::f64 ? std::numeric_limits<double>::epsilon()
                                                       : std::numeric_limits<float>::epsilon();
  return where(less(epsilon, 0), of_type, epsilon);
}

std::vector<Value> adafactor_decompose(Node n) {
  const Settings settings(n);
  const Value param = n.input(kParamInput), gradient = scaled_gradient(n);
  const Value lr = settings.exact("lr"), t = settings.step();
  const Value kept = 1.0 - apply("Pow", {t, settings.exact("beta2_decay")});
  const Value rate = apply("Min", {lr, 1.0 / sqrt(t)});
  const Value size = apply("Max", {settings("epsilon2"), root_mean_square(param, param)});
  const Value epsilon = least_root(settings);

  std::vector<Value> results{{}};
  Value variance;
  if (param.rank() < 2) {
    variance = moving_average(kept, n.input(kFirstState), gradient * gradient);
    results.push_back(variance);
  } else {
    const Value rows =
        moving_average(kept, n.input(kFirstState), mean_square(gradient, param, {-1}));
    const Value columns =
        moving_average(kept, n.input(kFirstState + 1), mean_square(gradient, param, {-2}));
    const Value mean = sum(rows, {-2}, true) / count(param.shape(), {-2});
    variance = rows / apply("Max", {mean, epsilon}) * columns;
    results.insert(results.end(), {rows, columns});
  }
  const Value step = gradient / sqrt(apply("Max", {variance, epsilon * epsilon}));
  const Value excess = root_mean_square(step, param) / settings("clip_threshold");
  const Value factor =
      cast_like(rate, param) * size / apply("Max", {excess, scalar(n.graph(), 1, param.dtype())});
  const Value shrink = 1.0 - lr * settings.exact("weight_decay");
  const Value start = settings.is_zero("weight_decay") ? param : param * cast_like(shrink, param);
  // A sum of products, so that the pass precision_bf16 sees that an update reads the gradient.
  results[0] = start + -factor * step;
  return results;
}

}  // namespace

extern const OpDef kSteepAdafactor = {.name = "steep.Adafactor",
                                      .attributes = {{"beta2_decay", 0.0},
                                                     {"epsilon", 0.0},
                                                     {"epsilon2", 0.0},
                                                     {"clip_threshold", 1.0},
                                                     {"weight_decay", 0.0},
                                                     {"maximize", 0}},
                                      .infer = updated_types,
                                      .decompose = adafactor_decompose,
                                      .updates_input = {kParamInput, kFirstState, kFirstState + 1}};

}  // namespace steep
