// The inference part of a model: removes what only training reads.
#pragma once

#include <span>
#include <string>

namespace steep {

/// Copies a serialised model without its output `loss`, without the outputs that depend on the
/// input `label`, and without the nodes, initializers and inputs that only these need. Inputs that
/// were unused before stay. Throws ModelError when no output is left, and when the bytes are no
/// ONNX model.
std::string strip_loss(std::span<const std::byte> model, const std::string& loss,
                       const std::string& label);

}  // namespace steep
