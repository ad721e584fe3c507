// Operators of the domain that Steep refuses, with their purpose: they occur in files for
// inference, or only another runtime has them.
#include <algorithm>
#include <array>

#include "contrib/contrib.h"

namespace steep {
namespace {

constexpr std::string_view kQuantised =
    "quantised: train the model of floats, and quantise it then";
constexpr std::string_view kTraining =
    "of a training graph of ONNX Runtime: train the file for inference that it was made of";
constexpr std::string_view kGenerates =
    "of generation: train the model that it calls, without caches and search";
constexpr std::string_view kSparse = "of sparse tensors: export it with dense ones";
constexpr std::string_view kText = "of text: feed the model what it makes";
constexpr std::string_view kPacked = "of rows without padding: train the file from before packing";

constexpr std::array kQuantisedOps = {
    "GatherBlockQuantized", "GemmFloat8",          "MatMulBnb4",       "MatMulFpQ4",
    "MatMulIntegerToFloat", "MatMulInteger16",     "MulInteger",       "NhwcMaxPool",
    "ReduceSumInteger",     "DequantizeWithOrder", "QuantizeWithOrder"};
constexpr std::array kQuantisedFamilies = {
    "QLinear",  "QOrdered",   "DynamicQuantize",     "MatMulNBits",
    "Quantize", "Dequantize", "MatMulBlockQuantized"};
constexpr std::array kQuantisedKernels = {"QAttention", "QEmbedLayerNormalization", "QGemm",
                                          "QMoE"};
constexpr std::array kGeneratingOps = {"BeamSearch",       "BifurcationDetector",
                                       "DecoderAttention", "DecoderMaskedMultiHeadAttention",
                                       "GreedySearch",     "DecoderMaskedSelfAttention",
                                       "NGramRepeatBlock", "PagedAttention",
                                       "Sampling",         "SparsePagedAttention",
                                       "WhisperBeamSearch"};
constexpr std::array kPackedOps = {"PackedAttention", "PackedMultiHeadAttention", "RemovePadding",
                                   "RestorePadding"};
constexpr std::array kTrainingOps = {"ATen",
                                     "AdamOptimizer",
                                     "AdamWOptimizer",
                                     "All",
                                     "BatchNormInternal",
                                     "BatchScale",
                                     "BiasFastGeluGrad_dX",
                                     "BiasGeluGrad_dX",
                                     "BiasSoftmaxDropout",
                                     "BroadcastGradientArgs",
                                     "ConcatTraining",
                                     "FakeQuant",
                                     "FlattenAndUnpad",
                                     "Group",
                                     "InPlaceAccumulator",
                                     "InPlaceAccumulatorV2",
                                     "InplaceClipGradNorm",
                                     "IsAllFinite",
                                     "IsFinite",
                                     "LambOptimizer",
                                     "LogSoftmaxGrad_13",
                                     "MixedPrecisionScale",
                                     "NegativeLogLikelihoodLossInternal",
                                     "NegativeLogLikelihoodLossInternal2",
                                     "PadAndUnflatten",
                                     "PassThrough",
                                     "PythonOp",
                                     "ReduceAllL2",
                                     "ReduceSumTraining",
                                     "SGDOptimizer",
                                     "SGDOptimizerV2",
                                     "Scale",
                                     "ScaledSum",
                                     "ShrunkenGather",
                                     "SoftmaxCrossEntropy",
                                     "SoftmaxGrad_13",
                                     "SparseSoftmaxCrossEntropy",
                                     "SplitTraining",
                                     "TritonOp",
                                     "View",
                                     "YieldOp",
                                     "ZeroGradient"};

template <typename Names>
bool among(const Names& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

std::string_view why_contrib_is_refused(std::string_view name) {
  const bool family = std::any_of(kQuantisedFamilies.begin(), kQuantisedFamilies.end(),
                                  [&](std::string_view start) { return name.starts_with(start); });
  if (family || among(kQuantisedOps, name) || among(kQuantisedKernels, name)) return kQuantised;
  if (name.ends_with("Grad") || among(kTrainingOps, name)) return kTraining;
  if (among(kGeneratingOps, name)) return kGenerates;
  if (among(kPackedOps, name)) return kPacked;
  if (name == "SparseToDenseMatMul") return kSparse;
  if (name == "Tokenizer" || name == "MurmurHash3") return kText;
  return {};
}

}  // namespace steep
