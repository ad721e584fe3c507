// ONNX's SoftmaxCrossEntropyLoss, with ignore_index as an input.
#include <fmt/format.h>

#include "contrib/contrib.h"

namespace steep {
namespace {

// In ONNX the ignored label is an attribute. Replaces ignored labels by -1, which is no class.
Results softmax_cross_entropy(const ContribCall& c, ContribBody& f) {
  const std::string reduction = c.text("reduction");
  if (reduction != "mean" && reduction != "sum" && reduction != "none") {
    c.fail("An attribute has a value that the operator does not know.", "mean, sum or none",
           reduction.substr(0, 40), "Export the model again.");
  }
  const int64_t result = c.integer("output_type");
  std::string labels = "labels";
  if (c.has(3)) {
    f.add(
        "minus = Constant <value_int = -1> ()  none = CastLike (minus, labels)"
        "  out = CastLike (ignore_index, labels)  ignored = Equal (labels, out)"
        "  kept = Where (ignored, none, labels)");
    labels = "kept";
  }
  f.add(fmt::format("loss = SoftmaxCrossEntropyLoss <reduction = \"{}\"{}> (scores, {}{})",
                    reduction, c.has(3) ? ", ignore_index = -1" : "", labels,
                    c.has(2) ? ", weights" : ""));
  if (c.wants(1)) f.add("log_prob = LogSoftmax <axis = 1> (scores)");
  std::string loss = "loss", log_prob = c.wants(1) ? "log_prob" : "";
  if (result != 0) {
    f.add(fmt::format("cast_loss = Cast <to = {}> (loss)", result));
    loss = "cast_loss";
  }
  if (result != 0 && c.wants(1)) {
    f.add(fmt::format("cast_log_prob = Cast <to = {}> (log_prob)", result));
    log_prob = "cast_log_prob";
  }
  return {loss, log_prob};
}

}  // namespace

extern const ContribOp kContribSoftmaxCrossEntropyLossInternal = {
    .name = "SoftmaxCrossEntropyLossInternal",
    .inputs = {"scores", "labels", "weights?", "ignore_index?"},
    .outputs = 2,
    .attributes = {{"output_type", 0}, {"reduction", "mean"}},
    .build = softmax_cross_entropy};

}  // namespace steep
