// Keys of nodes' metadata in files: what ONNX has no attribute for. Other runtimes read past them.
#pragma once

namespace steep {

/// Of an Identity (any value): gradients stop at it.
inline constexpr char kStopGradientKey[] = "steep.stop_gradient";
/// With an attribute's name behind it: the attribute in decimal, where float32, ONNX's type for it,
/// has too few digits. float64 tensors want them.
inline constexpr char kDigitsKey[] = "steep.digits.";
/// Of a BatchNormalization in training: kSampleVariance of ops/defs/batch_norm.h.
inline constexpr char kSampleVarianceKey[] = "steep.sample_variance";

}  // namespace steep
