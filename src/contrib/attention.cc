// Self-attention with its projection: one matrix product computes queries, keys and values.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "contrib/attention_helpers.h"
#include "runtime/counted.h"

namespace steep {
namespace {

enum : size_t { kInput, kWeights, kBias, kMask, kPast, kAttentionBias, kPastLength };

/// The numbers of columns of queries, keys and values.
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
  c.fail("The columns of the weights do not divide into whole heads of queries, keys and values.",
         "three parts, of which the first two are equal, each of num_heads heads",
         fmt::format("{}, num_heads = {}, qkv_hidden_sizes = [{}]", counted(columns, "column"),
                     heads, fmt::join(c.attrs.ints("qkv_hidden_sizes"), ", ")),
         "Export the model again.");
}

Results attention(const ContribCall& c, ContribBody& f) {
  if (c.flag("past_present_share_buffer")) {
    c.fail("An attribute is not supported.", "past_present_share_buffer = 0",
           "past_present_share_buffer = 1", "Export without a buffer of fixed length.");
  }
  refuse_input(c, kPastLength, "Export without a buffer of fixed length.");
  if (c.flag("do_rotary")) {
    c.fail("An attribute is not supported.", "do_rotary = 0", "do_rotary = 1",
           "Export with RotaryEmbedding nodes of their own.");
  }
  if (c.rank(kInput) != 3) {
    c.fail("An input has another rank.", "input of shape [batch, rows, columns]",
           to_string(c.inputs[kInput]), "Export the model again.");
  }
  const int64_t heads = c.integer("num_heads");
  const Ints parts = sizes(c);
  const bool past = c.has(kPast);
  if ((past || c.wants(1)) && parts[0] != parts[2]) {
    c.fail("Keys and values of earlier calls do not fit those of this one.",
           "as many columns of values as of keys, where there is past or present",
           fmt::format("{} and {}", parts[2], parts[0]), "Export the model without a cache.");
  }
  f.add("projected = MatMul (input, weights)");
  if (c.has(kBias)) f.add("biased = Add (projected, bias)");
  f.ints("parts", parts);
  f.add(fmt::format("wide_q, wide_k, wide_v = Split <axis = 2> ({}, parts)",
                    c.has(kBias) ? "biased" : "projected"));
  f.add("outside = Shape <start = 0, end = 2> (input)");
  const char* names[] = {"q", "k", "v"};
  for (size_t i = 0; i < 3; ++i) {
    add_heads(f, names[i], fmt::format("wide_{}", names[i]), "outside", heads, parts[i] / heads);
  }
  Heads all = {"each_q", "each_k", "each_v"};
  f.ints("pair_axis", {0});
  if (past) {
    f.add(
        "past_k, past_v = Split <axis = 0, num_outputs = 2> (past)"
        "  old_k = Squeeze (past_k, pair_axis)  old_v = Squeeze (past_v, pair_axis)"
        "  all_k = Concat <axis = 2> (old_k, each_k)  all_v = Concat <axis = 2> (old_v, each_v)");
    all = {"each_q", "all_k", "all_v"};
  }
  if (c.wants(1)) {
    f.add(
        fmt::format("one_k = Unsqueeze ({}, pair_axis)  one_v = Unsqueeze ({}, pair_axis)"
                    "  present = Concat <axis = 0> (one_k, one_v)",
                    all.k, all.v));
  }
  add_attention(c, f, all, parts[0] / heads, (*c.inputs[kInput].shape)[0],
                {.padding = kMask, .bias = kAttentionBias, .past = past});
  return {"y", c.wants(1) ? "present" : ""};
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
