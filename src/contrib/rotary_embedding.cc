// ONNX's RotaryEmbedding, but positions may be an offset, and the number of heads may be absent.
#include <fmt/format.h>

#include "contrib/contrib.h"

namespace steep {
namespace {

Results rotary_embedding(const ContribCall& c, ContribBody& f) {
  const size_t rank = c.rank(0);
  int64_t heads = c.integer("num_heads");
  const int64_t rotated = c.integer("rotary_embedding_dim");
  if (c.real("scale") != 1) {
    c.fail("An attribute is not supported.", "scale = 1",
           fmt::format("scale = {}", c.real("scale")),
           "Scale the operator's result by a Mul in the model.");
  }
  if (rank == 3 && heads == 0) {
    // Without num_heads the whole head is rotated, and a cache row has half the head size.
    const int64_t size = 2 * c.extent(2, -1), hidden = c.extent(0, 2);
    if (rotated != 0 || size == 0 || hidden % size != 0) {
      c.fail("The number of heads is not known.",
             "num_heads, or a last axis of whole heads of twice the size of cos_cache's rows",
             to_string(c.inputs[0]), "Give the node num_heads.");
    }
    heads = hidden / size;
  }
  // ONNX's operator would broadcast caches of other widths.
  const int64_t hidden = rank == 3 ? c.extent(0, 2) : c.extent(0, 3);
  const int64_t size = rank == 4 ? hidden : heads > 0 ? hidden / heads : 0;
  const int64_t rotary_size = rotated != 0 ? rotated : size;
  for (const size_t cache : {2, 3}) {
    if (rotary_size >= 0 && rotary_size <= size && rotary_size % 2 == 0 &&
        c.extent(cache, 1) == rotary_size / 2 && (rank == 4 || hidden == heads * size))
      continue;
    c.fail("Caches do not fit the heads.",
           "half as many columns of cos_cache and sin_cache as rotary_embedding_dim, or as a head",
           fmt::format("input {}, cos_cache {}, sin_cache {}, num_heads = {}, "
                       "rotary_embedding_dim = {}",
                       to_string(c.inputs[0]), to_string(c.inputs[2]), to_string(c.inputs[3]),
                       heads, rotated),
           "Export the model again.");
  }
  std::string positions = "position_ids";
  if (c.rank(1) == 1) {
    positions = "positions";
    f.add(fmt::format(
        "rows = Shape <start = 0, end = 1> (input)  all = Shape <start = {0}, end = {1}> (input)"
        "  zero = Constant <value_int = 0> ()  one = Constant <value_int = 1> ()"
        "  length = Squeeze (all)  steps = Range (zero, length, one)"
        "  places = Add (steps, position_ids)  shape = Concat <axis = 0> (rows, all)"
        "  positions = Expand (places, shape)",
        rank == 3 ? 1 : 2, rank == 3 ? 2 : 3));
  }
  f.add(
      fmt::format("y = RotaryEmbedding <interleaved = {}, num_heads = {}, "
                  "rotary_embedding_dim = {}> (input, cos_cache, sin_cache, {})",
                  (c.flag("interleaved") ? 1 : 0), heads, rotated, positions));
  return {"y"};
}

}  // namespace

extern const ContribOp kContribRotaryEmbedding = {
    .name = "RotaryEmbedding",
    .inputs = {"input", "position_ids", "cos_cache", "sin_cache"},
    .attributes = {{"interleaved", 0},
                   {"is_packed_batching", 0},  // only relaxes ONNX Runtime's checks of lengths
                   {"num_heads", 0},
                   {"rotary_embedding_dim", 0},
                   {"scale", 1.0}},
    .build = rotary_embedding};

}  // namespace steep
