#include "model/raise/raise.h"

#include <string_view>
#include <unordered_map>

namespace steep {

std::vector<Binding> raise(const Call& call) {
  using Rule = Bindings (*)(const Call&);
  static const std::unordered_map<std::string_view, Rule> rules = {
      {"ai.onnx.preview.training.Adagrad", raise_adagrad},
      {"ai.onnx.preview.training.Adam", raise_adam},
      {"ai.onnx.preview.training.Momentum", raise_momentum},
      {"BatchNormalization", raise_batch_normalization},
      {"Bernoulli", raise_bernoulli},
      {"Cast", raise_cast},
      {"CastLike", raise_cast_like},
      {"CenterCropPad", raise_center_crop_pad},
      {"Clip", raise_clip},
      {"ConcatFromSequence", raise_concat_from_sequence},
      {"Constant", raise_constant},
      {"ConstantOfShape", raise_constant_of_shape},
      {"DFT", raise_dft},
      {"DequantizeLinear", raise_dequantize_linear},
      {"Dropout", raise_dropout},
      {"Flatten", raise_flatten},
      {"Gemm", raise_gemm},
      {"GridSample", raise_grid_sample},
      {"GroupNormalization", raise_group_normalization},
      {"Hardmax", raise_softmax},
      {"Identity", raise_identity},
      {"LayerNormalization", raise_layer_normalization},
      {"LogSoftmax", raise_softmax},
      {"Multinomial", raise_multinomial},
      {"Optional", raise_optional},
      {"OptionalGetElement", raise_optional_get_element},
      {"OptionalHasElement", raise_optional_has_element},
      {"Pad", raise_pad},
      {"RMSNormalization", raise_rms_normalization},
      {"RandomNormal", raise_random},
      {"RandomNormalLike", raise_random_like},
      {"RandomUniform", raise_random},
      {"RandomUniformLike", raise_random_like},
      {"ReduceL1", raise_axes_attribute},
      {"ReduceL2", raise_axes_attribute},
      {"ReduceLogSum", raise_axes_attribute},
      {"ReduceLogSumExp", raise_axes_attribute},
      {"ReduceMax", raise_axes_attribute},
      {"ReduceMean", raise_axes_attribute},
      {"ReduceMin", raise_axes_attribute},
      {"ReduceProd", raise_axes_attribute},
      {"ReduceSum", raise_axes_attribute},
      {"ReduceSumSquare", raise_axes_attribute},
      {"Range", raise_range},
      {"Resize", raise_resize},
      {"RoiAlign", raise_roi_align},
      {"Scatter", raise_scatter},
      {"SequenceAt", raise_sequence_at},
      {"SequenceConstruct", raise_sequence_construct},
      {"SequenceEmpty", raise_sequence_empty},
      {"SequenceErase", raise_sequence_erase},
      {"SequenceInsert", raise_sequence_insert},
      {"SequenceLength", raise_sequence_length},
      {"Slice", raise_slice},
      {"Softmax", raise_softmax},
      {"Split", raise_split},
      {"SplitToSequence", raise_split_to_sequence},
      {"Squeeze", raise_axes_attribute},
      {"TopK", raise_top_k},
      {"Unsqueeze", raise_axes_attribute},
      {"Upsample", raise_upsample},
  };
  const auto rule = rules.find(call.op);
  return rule == rules.end() ? call.as_is() : rule->second(call);
}

}  // namespace steep
