// The sum of word, position and segment embeddings, normalised; and the number of words per row.
#include <fmt/format.h>

#include "contrib/contrib.h"

namespace steep {
namespace {

Results embed_layer_normalization(const ContribCall& c, ContribBody& f) {
  const bool segments = c.has(1), mask = c.has(7), positions = c.has(8);
  if (segments != c.has(4)) {
    c.fail("Only one of segment_ids and segment_embedding is present.",
           "segment_ids and segment_embedding, or neither",
           segments ? "no segment_embedding" : "no segment_ids", "Export the model again.");
  }
  // A position table with a single row must not be broadcast to every position.
  const auto& rows = c.inputs[3].shape;
  const bool one = rows && !rows->empty() && (*rows)[0].known() && (*rows)[0].value() == 1;
  if (!positions && one) {
    f.add(
        "extent = Shape <start = 1, end = 2> (input_ids)  length = Squeeze (extent)"
        "  zero = Constant <value_int = 0> ()  step = Constant <value_int = 1> ()"
        "  range = Range (zero, length, step)  places = Gather (position_embedding, range)");
  } else if (positions) {
    f.add("places = Gather (position_embedding, position_ids)");
  } else {
    f.ints("begin", {0});
    f.add(
        "length = Shape <start = 1, end = 2> (input_ids)"
        "  places = Slice (position_embedding, begin, length, begin)");
  }
  f.add("words = Gather (word_embedding, input_ids)  placed = Add (words, places)");
  if (segments) {
    f.add("kinds = Gather (segment_embedding, segment_ids)  total = Add (placed, kinds)");
  }
  const std::string total = segments ? "total" : "placed";
  f.add(fmt::format("y = LayerNormalization <axis = -1> ({}, gamma, beta)", total));
  f.real("epsilon", c.real("epsilon"));
  if (mask) {
    f.ints("axis", {1});
    f.add(
        "one = Constant <value_int = 1> ()  marks = Cast <to = 7> (mask)"
        "  there = Equal (marks, one)  each = Cast <to = 6> (there)"
        "  count = ReduceSum <keepdims = 0> (each, axis)");
  } else {
    f.add(
        "rows = Shape <start = 0, end = 1> (input_ids)"
        "  count = ConstantOfShape <value = int32[1] {0}> (rows)");
  }
  return {"y", "count", total};
}

}  // namespace

extern const ContribOp kContribEmbedLayerNormalization = {
    .name = "EmbedLayerNormalization",
    .inputs = {"input_ids", "segment_ids?", "word_embedding", "position_embedding",
               "segment_embedding?", "gamma", "beta", "mask?", "position_ids?"},
    .outputs = 3,
    .attributes = {{"epsilon", 1e-12}, {"mask_index_type", 0}},
    .build = embed_layer_normalization};

}  // namespace steep
