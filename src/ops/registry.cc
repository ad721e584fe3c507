#include <algorithm>
#include <unordered_map>

#include "ops/offered.h"
#include "ops/op_def.h"

namespace steep {

// One line per op. The list is explicit because linkers drop static initialisers from static
// libraries.
// clang-format off
#define STEEP_OPS(X) \
  X(Abs) \
  X(Acos) \
  X(Acosh) \
  X(Add) \
  X(AffineGrid) \
  X(And) \
  X(ArgMax) \
  X(ArgMin) \
  X(Asin) \
  X(Asinh) \
  X(Atan) \
  X(Atanh) \
  X(AveragePool) \
  X(BatchNormalization) \
  X(BitCast) \
  X(BitShift) \
  X(BitwiseAnd) \
  X(BitwiseNot) \
  X(BitwiseOr) \
  X(BitwiseXor) \
  X(Cast) \
  X(CastLike) \
  X(Ceil) \
  X(Celu) \
  X(Clip) \
  X(Col2Im) \
  X(Compress) \
  X(Concat) \
  X(ConcatFromSequence) \
  X(ConstantOfShape) \
  X(Conv) \
  X(ConvInteger) \
  X(ConvTranspose) \
  X(Cos) \
  X(Cosh) \
  X(CumProd) \
  X(CumSum) \
  X(DeformConv) \
  X(DepthToSpace) \
  X(DequantizeLinear) \
  X(Det) \
  X(DFT) \
  X(Div) \
  X(DynamicQuantizeLinear) \
  X(Einsum) \
  X(Elu) \
  X(Equal) \
  X(Erf) \
  X(Exp) \
  X(Expand) \
  X(EyeLike) \
  X(Flatten) \
  X(Floor) \
  X(Gather) \
  X(GatherElements) \
  X(GatherND) \
  X(Gelu) \
  X(GlobalAveragePool) \
  X(GlobalLpPool) \
  X(GlobalMaxPool) \
  X(Greater) \
  X(GreaterOrEqual) \
  X(GridSample) \
  X(GroupNormalization) \
  X(GRU) \
  X(HardSigmoid) \
  X(HardSwish) \
  X(Hardmax) \
  X(Identity) \
  X(If) \
  X(InstanceNormalization) \
  X(IsInf) \
  X(IsNaN) \
  X(LayerNormalization) \
  X(LeakyRelu) \
  X(Less) \
  X(LessOrEqual) \
  X(Log) \
  X(LogSoftmax) \
  X(LpNormalization) \
  X(LpPool) \
  X(LRN) \
  X(LSTM) \
  X(MatMul) \
  X(MatMulInteger) \
  X(Max) \
  X(MaxPool) \
  X(MaxRoiPool) \
  X(MaxUnpool) \
  X(Mean) \
  X(MeanVarianceNormalization) \
  X(MelWeightMatrix) \
  X(Min) \
  X(Mish) \
  X(Mod) \
  X(Mul) \
  X(Neg) \
  X(NegativeLogLikelihoodLoss) \
  X(NonMaxSuppression) \
  X(NonZero) \
  X(Not) \
  X(OneHot) \
  X(Optional) \
  X(OptionalGetElement) \
  X(OptionalHasElement) \
  X(Or) \
  X(Pad) \
  X(Pow) \
  X(PRelu) \
  X(QLinearConv) \
  X(QLinearMatMul) \
  X(QuantizeLinear) \
  X(Range) \
  X(Reciprocal) \
  X(ReduceL1) \
  X(ReduceL2) \
  X(ReduceLogSum) \
  X(ReduceLogSumExp) \
  X(ReduceMax) \
  X(ReduceMean) \
  X(ReduceMin) \
  X(ReduceProd) \
  X(ReduceSum) \
  X(ReduceSumSquare) \
  X(Relu) \
  X(Reshape) \
  X(Resize) \
  X(ReverseSequence) \
  X(RNN) \
  X(RoiAlign) \
  X(Round) \
  X(ScatterElements) \
  X(ScatterND) \
  X(Selu) \
  X(SequenceAt) \
  X(SequenceConstruct) \
  X(SequenceEmpty) \
  X(SequenceErase) \
  X(SequenceInsert) \
  X(SequenceLength) \
  X(Shape) \
  X(Sigmoid) \
  X(Sign) \
  X(Sin) \
  X(Sinh) \
  X(Size) \
  X(Slice) \
  X(Softmax) \
  X(SoftmaxCrossEntropyLoss) \
  X(Softplus) \
  X(Softsign) \
  X(SpaceToDepth) \
  X(Split) \
  X(SplitToSequence) \
  X(Sqrt) \
  X(Squeeze) \
  X(STFT) \
  X(Sub) \
  X(Sum) \
  X(Tan) \
  X(Tanh) \
  X(TensorScatter) \
  X(TfIdfVectorizer) \
  X(ThresholdedRelu) \
  X(Tile) \
  X(TopK) \
  X(Transpose) \
  X(Trilu) \
  X(Unique) \
  X(Unsqueeze) \
  X(Where) \
  X(Xor) \
  X(SteepAdadelta) \
  X(SteepAdafactor) \
  X(SteepAdagrad) \
  X(SteepAdam) \
  X(SteepAdamax) \
  X(SteepAssign) \
  X(SteepAttention) \
  X(SteepAttentionGrad) \
  X(SteepAveragePoolGrad) \
  X(SteepBatchNorm) \
  X(SteepBatchNormGrad) \
  X(SteepCholesky) \
  X(SteepCheckedGradient) \
  X(SteepCholeskySolve) \
  X(SteepCofactors) \
  X(SteepConvGradInput) \
  X(SteepConvGradWeight) \
  X(SteepCumProd) \
  X(SteepDeliver) \
  X(SteepDropout) \
  X(SteepDropoutMask) \
  X(SteepDropoutRows) \
  X(SteepFakeQuantize) \
  X(SteepClaimed) \
  X(SteepFused) \
  X(SteepCheckedRows) \
  X(SteepCountedRows) \
  X(SteepGatherGrad) \
  X(SteepGeluGrad) \
  X(SteepGlobalNorm) \
  X(SteepGradientOf) \
  X(SteepGridSampleGrad) \
  X(SteepGroupedMatMul) \
  X(SteepGroupedOuterProduct) \
  X(SteepLU) \
  X(SteepLUSlogDet) \
  X(SteepLUSolve) \
  X(SteepLamb) \
  X(SteepLayerNormalizationGrad) \
  X(SteepLoop) \
  X(SteepMatMul) \
  X(SteepMaxPoolGrad) \
  X(SteepMaxRoiPoolGrad) \
  X(SteepMuon) \
  X(SteepNAdam) \
  X(SteepNarrowAdam) \
  X(SteepNarrowLamb) \
  X(SteepNarrowSGD) \
  X(SteepRAdam) \
  X(SteepRMSprop) \
  X(SteepRandomNormal) \
  X(SteepRandomUniform) \
  X(SteepReadFile) \
  X(SteepRecurrence) \
  X(SteepRecurrentGrad) \
  X(SteepRecurrentWithTrace) \
  X(SteepResizeGrad) \
  X(SteepRoiAlignGrad) \
  X(SteepSGD) \
  X(SteepSafeSoftmax) \
  X(SteepSequenceExtents) \
  X(SteepSetPart) \
  X(SteepSliceGrad) \
  X(SteepSlogDet) \
  X(SteepSoftmaxCrossEntropy) \
  X(SteepSoftmaxCrossEntropyGrad) \
  X(SteepSoftmaxGrad) \
  X(SteepSolve) \
  X(SteepStopGradient) \
  X(SteepSumOf) \
  X(SteepSumPool) \
  X(SteepSumPoolGrad) \
  X(SteepSumTo) \
  X(SteepPutRows) \
  X(SteepTakeRows) \
  X(SteepTopK) \
  X(SteepTriangularSolve) \
  X(SteepUnpack) \
  X(SteepWithGradient) \
  X(SteepZerosLike)
// clang-format on

#define STEEP_DECLARE(Op) extern const OpDef k##Op;
STEEP_OPS(STEEP_DECLARE)
#undef STEEP_DECLARE

std::span<const OpDef* const> all_ops() {
  static const std::vector<const OpDef*> sorted = [] {
#define STEEP_ADDRESS(Op) &k##Op,
    std::vector<const OpDef*> ops{STEEP_OPS(STEEP_ADDRESS)};
#undef STEEP_ADDRESS
    std::sort(ops.begin(), ops.end(),
              [](const OpDef* a, const OpDef* b) { return a->name < b->name; });
    return ops;
  }();
  return sorted;
}

const OpDef* find_op(std::string_view name) {
  static const auto by_name = [] {
    std::unordered_map<std::string_view, const OpDef*> map;
    for (const OpDef* op : all_ops()) map.emplace(op->name, op);
    return map;
  }();
  auto it = by_name.find(name);
  return it == by_name.end() ? find_offered(name) : it->second;
}

}  // namespace steep
