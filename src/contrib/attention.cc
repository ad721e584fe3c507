// Self-attention with its projection: one matrix makes queries, keys and values of the input.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "contrib/heads.h"

namespace steep {
namespace {

enum : size_t { kInput, kWeights, kBias, kMask, kPast, kAttentionBias, kPastLength };

/// The columns of queries, keys and values.
Ints sizes(const ContribCall& c) {
  const int64_t heads = c.integer("num_heads"), columns = c.extent(kWeights, 1);
  Ints sizes = c.attrs.ints("qkv_hidden_sizes");
  if (sizes.empty()) sizes = Ints(3, columns / 3);
  const bool whole = heads > 0 && std::all_of(sizes.begin(), sizes.end(), [&](int64_t size) {
                       return size > 0 && size <= columns && size % heads == 0;
                     });
  if (sizes.size() == 3 && whole && sizes[0] == sizes[1] &&
      std::accumulate(sizes.begin(), sizes.end(), int64_t{0}) == columns) {
    return sizes;
  }
  c.fail("Columns of weights do not make whole heads of queries, keys and values.",
         "three parts, of which the first two are equal, each of num_heads heads",
         fmt::format("{} columns, num_heads = {}, qkv_hidden_sizes = [{}]", columns, heads,
                     fmt::join(c.attrs.ints("qkv_hidden_sizes"), ", ")),
         "Export the model again.");
}

Results attention(const ContribCall& c, ContribBody& f) {
  refuse_past(c, kPast, kPast, 1);
  refuse_past(c, kPastLength, kPastLength, 1);
  if (c.integer("do_rotary") != 0) {
    c.fail("An attribute is not supported.", "do_rotary = 0", "do_rotary = 1",
           "Export with RotaryEmbedding nodes of their own.");
  }
  if (c.rank(kInput) != 3) {
    c.fail("An input has another rank.", "input of shape [batch, rows, columns]",
           to_string(c.inputs[kInput]), "Export the model again.");
  }
  const int64_t heads = c.integer("num_heads");
  const Ints parts = sizes(c);
  f.add("projected = MatMul (input, weights)");
  if (c.has(kBias)) f.add("biased = Add (projected, bias)");
  f.ints("parts", parts);
  f.add(fmt::format("wide_q, wide_k, wide_v = Split <axis = 2> ({}, parts)",
                    c.has(kBias) ? "biased" : "projected"));
  f.add("outside = Shape <start = 0, end = 2> (input)");
  const char* names[] = {"q", "k", "v"};
  for (size_t i = 0; i < 3; ++i) {
    f.ints(fmt::format("{}_heads", names[i]), {heads, parts[i] / heads});
    f.add(
        fmt::format("{0}_shape = Concat <axis = 0> (outside, {0}_heads)"
                    "  apart_{0} = Reshape <allowzero = 1> (wide_{0}, {0}_shape)"
                    "  each_{0} = Transpose <perm = [0, 2, 1, 3]> (apart_{0})",
                    names[i]));
  }
  add_attention(c, f, {"each_q", "each_k", "each_v"}, parts[0] / heads,
                (*c.inputs[kInput].shape)[0], {.padding = kMask, .bias = kAttentionBias});
  return {"y"};
}

}  // namespace

extern const ContribOp kContribAttention = {
    .name = "Attention",
    .inputs = {"input", "weights", "bias?", "mask_index?", "past?", "attention_bias?",
               "past_sequence_length?"},
    .outputs = 2,
    .attributes = {{"do_rotary", 0},
                   {"mask_filter_value", -10000.0},
                   {"num_heads", 0},
                   {"past_present_share_buffer", 0},
                   {"rotary_embedding_dim", 0},
                   {"scale", 0.0},
                   {"unidirectional", 0}},
    .lists = {"qkv_hidden_sizes"},
    .build = attention};

}  // namespace steep
