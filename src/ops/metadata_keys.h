// Keys of node metadata in files, for what ONNX has no attribute for. Other runtimes ignore them.
#pragma once

namespace steep {

/// On an Identity (any value): gradients stop at this node.
inline constexpr char kStopGradientKey[] = "steep.stop_gradient";
/// Followed by the name of an attribute: its value in decimal, for a float attribute that float32,
/// ONNX's type for it, cannot hold exactly. Needed for float64 tensors.
inline constexpr char kDigitsKey[] = "steep.digits.";
/// On a BatchNormalization in training: kSampleVariance of ops/defs/batch_norm.h.
inline constexpr char kSampleVarianceKey[] = "steep.sample_variance";

}  // namespace steep
