// Rules for operators whose meaning, attributes or inputs changed between opset 7 and the newest
// opset, or for which Steep's canonical form differs from ONNX's. The table of
// model/import/handlers.cc says for which versions each rule holds. Source: "Versions of this
// operator" in ONNX's docs/Operators.md, and docs/Changelog.md.
#pragma once

#include <vector>

#include "model/upgrade/call.h"

namespace steep {

// A rule returns the outputs of the node, in order; unwanted outputs may be missing. It throws
// ModelError when the old form has no equivalent in the new one.
using Bindings = std::vector<Binding>;

// shape.cc
Bindings upgrade_axes_attribute(
    const Call& call);  // Squeeze, Unsqueeze, Reduce*: `axes` became an input
Bindings upgrade_center_crop_pad(const Call& call);
Bindings upgrade_flatten(const Call& call);
Bindings upgrade_pad(const Call& call);
Bindings upgrade_slice(const Call& call);
Bindings upgrade_equal_split(const Call& call);  // all parts have the same length
Bindings upgrade_split(const Call& call);
Bindings upgrade_top_k(const Call& call);
Bindings upgrade_asymmetric_resize(const Call& call);
Bindings upgrade_resize(const Call& call);
Bindings upgrade_upsample(const Call& call);
Bindings upgrade_scatter(const Call& call);
Bindings upgrade_dft(const Call& call);

// math.cc
Bindings upgrade_clip(const Call& call);
Bindings upgrade_gemm(const Call& call);
Bindings upgrade_softmax(const Call& call);  // Softmax, LogSoftmax, Hardmax
Bindings upgrade_cast(const Call& call);
Bindings upgrade_cast_like(const Call& call);
Bindings upgrade_constant(const Call& call);
Bindings upgrade_constant_of_shape(const Call& call);
Bindings upgrade_identity(const Call& call);
Bindings upgrade_range(const Call& call);

// nn.cc
Bindings upgrade_batch_normalization_without_mode(const Call& call);
Bindings upgrade_batch_normalization(const Call& call);
Bindings upgrade_dropout_without_mode(const Call& call);
Bindings upgrade_dropout(const Call& call);
Bindings upgrade_layer_normalization(const Call& call);
Bindings upgrade_rms_normalization(const Call& call);
Bindings upgrade_group_normalization(const Call& call);
Bindings upgrade_grid_sample(const Call& call);
Bindings upgrade_roi_align(const Call& call);

// quantize.cc
Bindings upgrade_dequantize_linear(const Call& call);

// random.cc
Bindings upgrade_random(const Call& call);
Bindings upgrade_random_like(const Call& call);
Bindings upgrade_bernoulli(const Call& call);
Bindings upgrade_multinomial(const Call& call);

// sequence.cc
Bindings upgrade_split_to_sequence(const Call& call);
Bindings upgrade_sequence_construct(const Call& call);
Bindings upgrade_sequence_empty(const Call& call);
Bindings upgrade_sequence_at(const Call& call);
Bindings upgrade_sequence_insert(const Call& call);
Bindings upgrade_sequence_erase(const Call& call);
Bindings upgrade_sequence_length(const Call& call);
Bindings upgrade_concat_from_sequence(const Call& call);
Bindings upgrade_optional(const Call& call);
Bindings upgrade_optional_get_element(const Call& call);
Bindings upgrade_optional_has_element(const Call& call);

// training.cc
Bindings upgrade_adam(const Call& call);
Bindings upgrade_adagrad(const Call& call);
Bindings upgrade_momentum(const Call& call);

}  // namespace steep
