// Shared by the optimizer kernels: scalars, dtypes and the split of a parameter into parts.
#pragma once

#include <cmath>
#include <optional>
#include <string>

#include "providers/cpu/kernel.h"

namespace steep::cpu {

/// Elements per part of a sum over a parameter. Parts do not depend on the number of threads.
constexpr int64_t kSumPart = 16384;

inline int64_t sum_parts(int64_t n) { return (n + kSumPart - 1) / kSumPart; }

/// The inputs of every optimizer, as in ops/defs/optimizers/optimizers.h: input `lr` may hold all
/// settings, lr first. States are the last inputs.
struct StepInputs {
  static constexpr int kLr = 2, kStep = 3, kGradScale = 4, kFirstState = 5;
  bool has_settings = false;
  bool float_step = false;
  bool has_scale = false;
  bool maximize = false;

  double learning_rate(const KernelArgs& args) const {
    return has_settings ? *args.input<double>(kLr) : *args.input<float>(kLr);
  }
  /// The i-th number after lr, or `attribute` if the node has its settings as attributes.
  double setting(const KernelArgs& args, int i, double attribute) const {
    return has_settings ? args.input<double>(kLr)[1 + i] : attribute;
  }
  double number(const KernelArgs& args) const {
    return float_step ? *args.input<float>(kStep)
                      : static_cast<double>(*args.input<int64_t>(kStep));
  }
  /// Negative to maximize.
  double scale(const KernelArgs& args) const {
    const double scale = has_scale ? *args.input<float>(kGradScale) : 1.0;
    return maximize ? -scale : scale;
  }
};

/// Checks the dtypes of the numbers that a step reads. `settings`: the number of settings besides
/// lr. std::nullopt with the reason otherwise.
inline std::optional<StepInputs> step_numbers(const NodeSpec& node, int64_t settings,
                                              std::string* why_not) {
  const Operand& scale = node.in(StepInputs::kGradScale);
  const Operand& rate = node.in(StepInputs::kLr);
  const bool has_settings = rate.dtype == DType::f64 && rate.dims == Dims{1 + settings};
  const DType number = node.in(StepInputs::kStep).dtype;
  const bool scalars = (has_settings || (rate.dtype == DType::f32 && rate.size() == 1)) &&
                       (number == DType::i64 || number == DType::f32) &&
                       (!scale.present() || scale.dtype == DType::f32);
  if (!scalars) {
    *why_not =
        "lr must be float32 or all settings in float64, grad_scale float32, step int64 or "
        "float32";
    return std::nullopt;
  }
  return StepInputs{.has_settings = has_settings,
                    .float_step = number == DType::f32,
                    .has_scale = scale.present(),
                    .maximize = node.attrs.integer("maximize") != 0};
}

/// As step_numbers(), and checks dtypes and extents: gradient and states must match the parameter.
inline std::optional<StepInputs> step_inputs(const NodeSpec& node, int64_t settings,
                                             std::string* why_not) {
  const Operand& param = node.in(0);
  if (param.dtype != DType::f32 && param.dtype != DType::f64) {
    *why_not = "dtype is neither float32 nor float64";
    return std::nullopt;
  }
  const auto fits = [&](const Operand& o) {
    return o.dtype == param.dtype && o.dims == param.dims;
  };
  bool all_fit = fits(node.in(1));
  for (size_t i = StepInputs::kFirstState; i < node.inputs.size(); ++i) {
    all_fit = all_fit && (!node.in(i).present() || fits(node.in(i)));
  }
  if (!all_fit) {
    *why_not = "gradient or state differs from the parameter in dtype or shape";
    return std::nullopt;
  }
  return step_numbers(node, settings, why_not);
}

/// The inputs that hold the states of an Adam-like update.
constexpr int kM = StepInputs::kFirstState, kV = kM + 1, kGreatest = kV + 1;

/// Constants of one step of an Adam-like update, computed in double as torch.optim does.
struct AdamStep {
  double grad_scale, lr;
  double beta1, beta2, epsilon, weight_decay;
  double correction1, correction2;  ///< 1 - betaᵗ, or 1 without bias correction
  bool amsgrad = false;             ///< a third state holds the greatest v so far
};

struct AdamOptions {
  double beta1, beta2, epsilon, weight_decay;

  explicit AdamOptions(const Attrs& attrs)
      : beta1(attrs.real("beta1")),
        beta2(attrs.real("beta2")),
        epsilon(attrs.real("epsilon")),
        weight_decay(attrs.real("weight_decay")) {}

  AdamStep at(const StepInputs& inputs, const KernelArgs& args, bool bias_correction) const {
    const double t = inputs.number(args);
    const double now1 = inputs.setting(args, 0, beta1), now2 = inputs.setting(args, 1, beta2);
    return {.grad_scale = inputs.scale(args),
            .lr = inputs.learning_rate(args),
            .beta1 = now1,
            .beta2 = now2,
            .epsilon = inputs.setting(args, 2, epsilon),
            .weight_decay = inputs.setting(args, 3, weight_decay),
            .correction1 = bias_correction ? 1 - std::pow(now1, t) : 1,
            .correction2 = bias_correction ? 1 - std::pow(now2, t) : 1};
  }
};

}  // namespace steep::cpu
