// Weights of operators of ai.onnx.ml, which files hold in attributes (model/import/ml.h).
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "steep/tensor.h"

namespace steep {

/// The serialised model with those of `weights` in its attributes that it holds there; these are
/// removed from *weights. Nothing if there are none. Throws ModelError for a weight of another
/// dtype or shape.
std::optional<std::string> with_ml_weights(std::span<const std::byte> model,
                                           std::map<std::string, Tensor>* weights);

}  // namespace steep
