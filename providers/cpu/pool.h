// MaxPool, AveragePool, steep.SumPool and their gradients: one geometry for all kernels.
#pragma once

#include <array>
#include <cstddef>
#include <utility>
#include <vector>

#include "providers/cpu/build_kernel.h"
#include "providers/cpu/window.h"

namespace steep::cpu {

/// The geometry of a pooling.
struct Pool {
  size_t rank = 0;  ///< number of spatial axes
  std::array<WindowAxis, 3> axes;
  // By axis and window: taps inside the axis, and how many lie inside or in the padding.
  std::array<std::vector<std::pair<int64_t, int64_t>>, 3> taps;
  std::array<std::vector<int64_t>, 3> inside_pads;
  int64_t planes = 0;

  int64_t in() const { return axes[0].in * axes[1].in * axes[2].in; }
  int64_t out() const { return axes[0].out * axes[1].out * axes[2].out; }
  /// The maximal number of elements in one window.
  double taps_each() const {
    double taps = 1;
    for (const WindowAxis& a : axes) taps *= static_cast<double>(std::min(a.kernel, a.in));
    return taps;
  }
  double work() const { return static_cast<double>(planes * out()) * taps_each(); }
  int64_t grain() const {
    const double each = static_cast<double>(out()) * taps_each();
    return std::max<int64_t>(1, static_cast<int64_t>(16384 / std::max(1.0, each)));
  }
};

/// The pooling that `node` computes, or whose gradient it computes. Nothing, with the reason in
/// *why_not, when shapes and attributes do not fit.
std::optional<Pool> read_pool(const NodeSpec& node, std::string* why_not);

/// The candidates "onednn" and "loops", for MaxPool and steep.MaxPoolGrad and for the other
/// operators.
std::unique_ptr<Kernel> make_onednn_pool(const NodeSpec& node, std::string* why_not);
std::unique_ptr<Kernel> make_max_pool(const NodeSpec& node, std::string* why_not);
std::unique_ptr<Kernel> make_max_pool_grad(const NodeSpec& node, std::string* why_not);
std::unique_ptr<Kernel> make_sum_pool(const NodeSpec& node, std::string* why_not);

}  // namespace steep::cpu
