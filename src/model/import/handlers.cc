#include "model/import/handlers.h"

#include <algorithm>
#include <climits>
#include <tuple>

#include "contrib/contrib.h"
#include "model/import/ml.h"
#include "model/read/node_names.h"
#include "model/upgrade/rules.h"

namespace steep {
namespace {

constexpr std::string_view kOnnx = "";

// Sources of the versions: "Versions of this operator" in ONNX's docs/Operators.md, and its
// docs/Changelog.md. The first row of an operator has the version in force at opset 7, the oldest
// supported opset, or the operator's first version.
constexpr HandlerRow kRows[] = {
    {kOnnx, "BatchNormalization", 7, upgraded<upgrade_batch_normalization_without_mode>},
    {kOnnx, "BatchNormalization", 14, upgraded<upgrade_batch_normalization>},
    {kOnnx, "Bernoulli", 15, upgraded<upgrade_bernoulli>},
    {kOnnx, "Cast", 6, upgraded<upgrade_cast>},
    {kOnnx, "CastLike", 15, upgraded<upgrade_cast_like>},
    {kOnnx, "CenterCropPad", 18, upgraded<upgrade_center_crop_pad>},
    {kOnnx, "Clip", 6, upgraded<upgrade_clip>},
    {kOnnx, "Clip", 11, import_as_is},
    {kOnnx, "ConcatFromSequence", 11, upgraded<upgrade_concat_from_sequence>},
    {kOnnx, "Constant", 1, upgraded<upgrade_constant>},
    {kOnnx, "ConstantOfShape", 9, upgraded<upgrade_constant_of_shape>},
    {kOnnx, "DFT", 17, upgraded<upgrade_dft>},
    {kOnnx, "DFT", 20, import_as_is},
    {kOnnx, "DequantizeLinear", 10, upgraded<upgrade_dequantize_linear>},
    {kOnnx, "Dropout", 7, upgraded<upgrade_dropout_without_mode>},
    {kOnnx, "Dropout", 12, upgraded<upgrade_dropout>},
    {kOnnx, "Flatten", 1, upgraded<upgrade_flatten>},
    {kOnnx, "Gemm", 7, upgraded<upgrade_gemm>},
    {kOnnx, "GridSample", 16, upgraded<upgrade_grid_sample>},
    {kOnnx, "GridSample", 20, import_as_is},
    {kOnnx, "GroupNormalization", 18, upgraded<upgrade_group_normalization>},
    {kOnnx, "GroupNormalization", 21, import_as_is},
    {kOnnx, "Hardmax", 1, upgraded<upgrade_softmax>},
    {kOnnx, "Hardmax", 13, import_as_is},
    {kOnnx, "Identity", 1, upgraded<upgrade_identity>},
    {kOnnx, "If", 1, import_if},
    {kOnnx, "LayerNormalization", 17, upgraded<upgrade_layer_normalization>},
    {kOnnx, "LogSoftmax", 1, upgraded<upgrade_softmax>},
    {kOnnx, "LogSoftmax", 13, import_as_is},
    {kOnnx, "Loop", 1, import_loop},
    {kOnnx, "Multinomial", 7, upgraded<upgrade_multinomial>},
    {kOnnx, "Optional", 15, upgraded<upgrade_optional>},
    {kOnnx, "OptionalGetElement", 15, upgraded<upgrade_optional_get_element>},
    {kOnnx, "OptionalHasElement", 15, upgraded<upgrade_optional_has_element>},
    {kOnnx, "Pad", 2, upgraded<upgrade_pad>},
    {kOnnx, "Pad", 11, import_as_is},
    {kOnnx, "RMSNormalization", 23, upgraded<upgrade_rms_normalization>},
    {kOnnx, "RandomNormal", 1, upgraded<upgrade_random>},
    {kOnnx, "RandomNormalLike", 1, upgraded<upgrade_random_like>},
    {kOnnx, "RandomUniform", 1, upgraded<upgrade_random>},
    {kOnnx, "RandomUniformLike", 1, upgraded<upgrade_random_like>},
    {kOnnx, "Range", 11, upgraded<upgrade_range>},
    {kOnnx, "ReduceL1", 1, upgraded<upgrade_axes_attribute>},
    {kOnnx, "ReduceL2", 1, upgraded<upgrade_axes_attribute>},
    {kOnnx, "ReduceLogSum", 1, upgraded<upgrade_axes_attribute>},
    {kOnnx, "ReduceLogSumExp", 1, upgraded<upgrade_axes_attribute>},
    {kOnnx, "ReduceMax", 1, upgraded<upgrade_axes_attribute>},
    {kOnnx, "ReduceMean", 1, upgraded<upgrade_axes_attribute>},
    {kOnnx, "ReduceMin", 1, upgraded<upgrade_axes_attribute>},
    {kOnnx, "ReduceProd", 1, upgraded<upgrade_axes_attribute>},
    {kOnnx, "ReduceSum", 1, upgraded<upgrade_axes_attribute>},
    {kOnnx, "ReduceSumSquare", 1, upgraded<upgrade_axes_attribute>},
    {kOnnx, "Resize", 10, upgraded<upgrade_asymmetric_resize>},
    {kOnnx, "Resize", 11, upgraded<upgrade_resize>},
    {kOnnx, "RoiAlign", 10, upgraded<upgrade_roi_align>},
    {kOnnx, "RoiAlign", 16, import_as_is},
    {kOnnx, "Scan", 8, import_batched_scan},
    {kOnnx, "Scan", 9, import_scan},
    {kOnnx, "Scatter", 9, upgraded<upgrade_scatter>},
    {kOnnx, "SequenceAt", 11, upgraded<upgrade_sequence_at>},
    {kOnnx, "SequenceConstruct", 11, upgraded<upgrade_sequence_construct>},
    {kOnnx, "SequenceEmpty", 11, upgraded<upgrade_sequence_empty>},
    {kOnnx, "SequenceErase", 11, upgraded<upgrade_sequence_erase>},
    {kOnnx, "SequenceInsert", 11, upgraded<upgrade_sequence_insert>},
    {kOnnx, "SequenceLength", 11, upgraded<upgrade_sequence_length>},
    {kOnnx, "SequenceMap", 17, import_with_bodies},
    {kOnnx, "Slice", 1, upgraded<upgrade_slice>},
    {kOnnx, "Slice", 10, import_as_is},
    {kOnnx, "Softmax", 1, upgraded<upgrade_softmax>},
    {kOnnx, "Softmax", 13, import_as_is},
    {kOnnx, "Split", 2, upgraded<upgrade_equal_split>},
    {kOnnx, "Split", 18, upgraded<upgrade_split>},
    {kOnnx, "SplitToSequence", 11, upgraded<upgrade_split_to_sequence>},
    {kOnnx, "Squeeze", 1, upgraded<upgrade_axes_attribute>},
    {kOnnx, "TopK", 1, upgraded<upgrade_top_k>},
    {kOnnx, "TopK", 10, import_as_is},
    {kOnnx, "Unsqueeze", 1, upgraded<upgrade_axes_attribute>},
    {kOnnx, "Upsample", 7, upgraded<upgrade_upsample>},
    {kPreviewDomain, "FlexAttention", 1, import_with_bodies},
    {kTrainingDomain, "Adagrad", 1, upgraded<upgrade_adagrad>},
    {kTrainingDomain, "Adam", 1, upgraded<upgrade_adam>},
    {kTrainingDomain, "Gradient", 1, import_gradient},
    {kTrainingDomain, "Momentum", 1, upgraded<upgrade_momentum>},
};

auto key_of(const HandlerRow& row) { return std::tie(row.domain, row.op, row.since); }
bool before(const HandlerRow& a, const HandlerRow& b) { return key_of(a) < key_of(b); }

}  // namespace

std::span<const HandlerRow> handler_rows() {
  static const std::vector<HandlerRow> sorted = [] {
    std::vector<HandlerRow> rows(std::begin(kRows), std::end(kRows));
    for (const ContribOp* op : contrib_ops())
      rows.push_back({kContribDomain, op->name, 1, import_contrib});
    for (const std::string_view op : ml_op_names()) rows.push_back({kMlDomain, op, 1, import_ml});
    std::sort(rows.begin(), rows.end(), before);
    return rows;
  }();
  return sorted;
}

Handler find_handler(std::string_view domain, std::string_view op, int64_t version) {
  const std::span<const HandlerRow> rows = handler_rows();
  const int newest = static_cast<int>(std::min<int64_t>(version, INT_MAX));
  const HandlerRow key{domain, op, newest, nullptr};
  const auto behind = std::upper_bound(rows.begin(), rows.end(), key, before);
  if (behind == rows.begin()) return import_as_is;
  const HandlerRow& row = *(behind - 1);
  return row.domain == domain && row.op == op ? row.import : import_as_is;
}

}  // namespace steep
