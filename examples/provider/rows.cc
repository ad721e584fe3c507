// Softmax, LayerNormalization and its gradient: each row is computed separately.
#include <algorithm>

#include "kernels.h"

namespace mirror {
namespace {

/// The number of rows and their length, when rows start at `axis`.
std::pair<int64_t, int64_t> rows_from(const Operand& x, int64_t axis) {
  if (axis < 0) axis += x.rank();
  return {x.product(0, axis), x.product(axis, x.rank())};
}

}  // namespace

std::optional<Kernel> make_softmax(const Node& node, std::string& why) {
  if (!all_floats(node, why)) return std::nullopt;
  const Operand x = node.in(0);
  const int64_t axis = node.integer("axis");
  if (axis != -1 && axis != x.rank() - 1) return decline(why, "not along the last axis");
  const auto [rows, length] = rows_from(x, -1);
  Kernel kernel;
  kernel.may_share = {{0, 0}};
  kernel.bind = [rows, length](const Pointers& at) {
    return [=] {
      for (int64_t r = 0; r < rows; ++r) {
        const float* from = at.f(0) + r * length;
        float* to = at.y(0) + r * length;
        const float most = length > 0 ? *std::max_element(from, from + length) : 0;
        double sum = 0;
        for (int64_t i = 0; i < length; ++i) sum += to[i] = std::exp(from[i] - most);
        for (int64_t i = 0; i < length; ++i) to[i] = static_cast<float>(to[i] / sum);
      }
    };
  };
  return kernel;
}

std::optional<Kernel> make_layer_norm(const Node& node, std::string& why) {
  if (!all_floats(node, why)) return std::nullopt;
  const auto [rows, length] = rows_from(node.in(0), node.integer("axis"));
  if (node.in(1).size() != length) return decline(why, "a scale that is broadcast");
  const double epsilon = node.real("epsilon");
  const bool bias = node.in(2).present(), mean = node.out(1).present(),
             inverse = node.out(2).present();
  Kernel kernel;
  kernel.bind = [=](const Pointers& at) {
    return [=] {
      for (int64_t r = 0; r < rows; ++r) {
        const float* x = at.f(0) + r * length;
        double sum = 0, squares = 0;
        for (int64_t i = 0; i < length; ++i) sum += x[i];
        const double m = sum / static_cast<double>(length);
        for (int64_t i = 0; i < length; ++i) squares += (x[i] - m) * (x[i] - m);
        const double inv = 1 / std::sqrt(squares / static_cast<double>(length) + epsilon);
        for (int64_t i = 0; i < length; ++i) {
          const double y = (x[i] - m) * inv * at.f(1)[i] + (bias ? at.f(2)[i] : 0);
          at.y(0)[r * length + i] = static_cast<float>(y);
        }
        if (mean) at.y(1)[r] = static_cast<float>(m);
        if (inverse) at.y(2)[r] = static_cast<float>(inv);
      }
    };
  };
  return kernel;
}

std::optional<Kernel> make_layer_norm_grad(const Node& node, std::string& why) {
  if (!all_floats(node, why)) return std::nullopt;
  const auto [rows, length] = rows_from(node.in(1), node.integer("axis"));
  if (node.in(2).size() != length) return decline(why, "a scale that is broadcast");
  const bool dx = node.out(0).present(), dscale = node.out(1).present(),
             dbias = node.out(2).present();
  Kernel kernel;
  kernel.bind = [=](const Pointers& at) {
    return [=] {
      std::vector<double> scales(static_cast<size_t>(length), 0), biases(scales);
      for (int64_t r = 0; r < rows; ++r) {
        const float *dy = at.f(0) + r * length, *x = at.f(1) + r * length;
        const double m = at.f(3)[r], inv = at.f(4)[r];
        double along = 0, across = 0;
        for (int64_t i = 0; i < length; ++i) {
          const double unit = (x[i] - m) * inv, d = dy[i] * at.f(2)[i];
          along += d * unit, across += d;
          scales[static_cast<size_t>(i)] += dy[i] * unit, biases[static_cast<size_t>(i)] += dy[i];
        }
        along /= static_cast<double>(length), across /= static_cast<double>(length);
        for (int64_t i = 0; dx && i < length; ++i) {
          const double unit = (x[i] - m) * inv, d = dy[i] * at.f(2)[i];
          at.y(0)[r * length + i] = static_cast<float>(inv * (d - across - unit * along));
        }
      }
      for (int64_t i = 0; i < length; ++i) {
        if (dscale) at.y(1)[i] = static_cast<float>(scales[static_cast<size_t>(i)]);
        if (dbias) at.y(2)[i] = static_cast<float>(biases[static_cast<size_t>(i)]);
      }
    };
  };
  return kernel;
}

}  // namespace mirror
