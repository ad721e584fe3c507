// The description of a convolution, or of one of its gradients.
#pragma once

#include <algorithm>

#include "providers/cpu/kernel.h"
#include "providers/cpu/window.h"

namespace steep::cpu {

enum class ConvPart : uint8_t { forward, grad_input, grad_weight };

/// y[n, o, p] = Σ x[n, i, p stride - pad + k dilation] w[o, i, k] (+ bias[o]), for each group.
struct ConvProblem {
  ConvPart part;
  DType dtype;
  bool bias;          ///< forward only
  bool bf16 = false;  ///< the operands may be rounded to bfloat16
  Dims x, w, y;
  int64_t groups;
  std::vector<WindowAxis> axes;

  int64_t multiplications() const {
    const auto all =
        static_cast<__int128>(element_count(y)) * element_count(Dims(w.begin() + 1, w.end()));
    return static_cast<int64_t>(std::min<__int128>(all, INT64_MAX));
  }
};

std::optional<ConvProblem> read_conv(const NodeSpec& node, std::string* why_not);

std::unique_ptr<Kernel> make_onednn_conv(const NodeSpec& node, std::string* why_not);
/// The same for a problem, exactly as it says.
std::unique_ptr<Kernel> make_onednn_conv(const ConvProblem& problem, std::string* why_not);

/// Float32 and float64 without groups, where each window has one tap and reads each place once.
std::unique_ptr<Kernel> make_pointwise_conv(const NodeSpec& node, std::string* why_not);

/// Whether make_depthwise_gradient() takes the problem.
bool has_depthwise_gradient(const ConvProblem& p);
std::unique_ptr<Kernel> make_depthwise_gradient(const NodeSpec& node, std::string* why_not);

}  // namespace steep::cpu
