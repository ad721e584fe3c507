// Rules for operators whose meaning, attributes or inputs changed between opset 7 and the newest
// opset, or for which Steep's canonical form differs from ONNX's. The table of
// model/import/handlers.cc says for which versions each rule holds. Source: "Versions of this
// operator" in ONNX's docs/Operators.md, and docs/Changelog.md.
#pragma once

#include <vector>

#include "model/raise/call.h"

namespace steep {

// A rule returns the outputs of the node, in order; unwanted outputs may be missing. It throws
// ModelError when the old form has no equivalent in the new one.
using Bindings = std::vector<Binding>;

// shape.cc
Bindings raise_axes_attribute(
    const Call& call);  // Squeeze, Unsqueeze, Reduce*: `axes` became an input
Bindings raise_center_crop_pad(const Call& call);
Bindings raise_flatten(const Call& call);
Bindings raise_pad(const Call& call);
Bindings raise_slice(const Call& call);
Bindings raise_equal_split(const Call& call);  // all parts have the same length
Bindings raise_split(const Call& call);
Bindings raise_top_k(const Call& call);
Bindings raise_asymmetric_resize(const Call& call);
Bindings raise_resize(const Call& call);
Bindings raise_upsample(const Call& call);
Bindings raise_scatter(const Call& call);
Bindings raise_dft(const Call& call);

// math.cc
Bindings raise_clip(const Call& call);
Bindings raise_gemm(const Call& call);
Bindings raise_softmax(const Call& call);  // Softmax, LogSoftmax, Hardmax
Bindings raise_cast(const Call& call);
Bindings raise_cast_like(const Call& call);
Bindings raise_constant(const Call& call);
Bindings raise_constant_of_shape(const Call& call);
Bindings raise_identity(const Call& call);
Bindings raise_range(const Call& call);

// nn.cc
Bindings raise_batch_normalization_without_mode(const Call& call);
Bindings raise_batch_normalization(const Call& call);
Bindings raise_dropout_without_mode(const Call& call);
Bindings raise_dropout(const Call& call);
Bindings raise_layer_normalization(const Call& call);
Bindings raise_rms_normalization(const Call& call);
Bindings raise_group_normalization(const Call& call);
Bindings raise_grid_sample(const Call& call);
Bindings raise_roi_align(const Call& call);

// quantize.cc
Bindings raise_dequantize_linear(const Call& call);

// random.cc
Bindings raise_random(const Call& call);
Bindings raise_random_like(const Call& call);
Bindings raise_bernoulli(const Call& call);
Bindings raise_multinomial(const Call& call);

// sequence.cc
Bindings raise_split_to_sequence(const Call& call);
Bindings raise_sequence_construct(const Call& call);
Bindings raise_sequence_empty(const Call& call);
Bindings raise_sequence_at(const Call& call);
Bindings raise_sequence_insert(const Call& call);
Bindings raise_sequence_erase(const Call& call);
Bindings raise_sequence_length(const Call& call);
Bindings raise_concat_from_sequence(const Call& call);
Bindings raise_optional(const Call& call);
Bindings raise_optional_get_element(const Call& call);
Bindings raise_optional_has_element(const Call& call);

// training.cc
Bindings raise_adam(const Call& call);
Bindings raise_adagrad(const Call& call);
Bindings raise_momentum(const Call& call);

}  // namespace steep
