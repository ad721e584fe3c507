// Attention of given queries, keys and values, separate or packed into one tensor.
#include <fmt/format.h>

#include "contrib/attention_helpers.h"

namespace steep {
namespace {

enum : size_t {
  kQuery,
  kKey,
  kValue,
  kBias,
  kPadding,
  kAttentionBias,
  kPastKey,
  kPastValue,
  kPastLength,
  kIndirection
};

/// The layout of an operand.
enum class Form : uint8_t {
  flat,    ///< [B, rows, heads · columns]
  heads,   ///< [B, heads, rows, columns]
  packed,  ///< [B, rows, heads, parts, columns]
};

/// The query, key or value operand.
struct Operand {
  const char* name;  ///< of the input
  size_t input;
  Form form;
  int64_t size;  ///< columns per head
};

[[noreturn]] void refuse_shapes(const ContribCall& c) {
  auto text_of = [&](size_t i) { return c.has(i) ? to_string(c.inputs[i]) : std::string("none"); };
  c.fail("Queries, keys and values do not fit.",
         "[batch, rows, columns] each, with keys and values as [batch, heads, rows, columns], or "
         "all three, or the latter two, packed into one of five axes",
         fmt::format("query {}, key {}, value {}", text_of(kQuery), text_of(kKey), text_of(kValue)),
         "Export the model again.");
}

std::vector<Operand> operands(const ContribCall& c, int64_t heads) {
  auto size = [&](size_t input, Form form) {
    if (form != Form::flat) return c.extent(input, -1);
    const int64_t columns = c.extent(input, 2);
    if (columns % heads != 0) refuse_shapes(c);
    return columns / heads;
  };
  auto alone = [&](const char* name, size_t input) {
    const size_t rank = c.rank(input);
    if (rank != 3 && (rank != 4 || input == kQuery)) refuse_shapes(c);
    const Form form = rank == 3 ? Form::flat : Form::heads;
    return Operand{name, input, form, size(input, form)};
  };
  auto packed = [&](size_t input, int64_t parts) {
    if (c.rank(input) != 5 || c.extent(input, 3) != parts) refuse_shapes(c);
    return size(input, Form::packed);
  };
  if (!c.has(kKey) && !c.has(kValue)) {
    const int64_t columns = packed(kQuery, 3);
    return {{"query", kQuery, Form::packed, columns},
            {"query", kQuery, Form::packed, columns},
            {"query", kQuery, Form::packed, columns}};
  }
  if (c.has(kKey) && !c.has(kValue)) {
    const int64_t columns = packed(kKey, 2);
    return {alone("query", kQuery),
            {"key", kKey, Form::packed, columns},
            {"key", kKey, Form::packed, columns}};
  }
  if (!c.has(kKey)) refuse_shapes(c);
  return {alone("query", kQuery), alone("key", kKey), alone("value", kValue)};
}

Results multi_head_attention(const ContribCall& c, ContribBody& f) {
  refuse_input(c, kPastLength, "Export without a buffer of fixed length.");
  refuse_input(c, kIndirection, "Export without beam search.");
  const bool past = c.has(kPastKey);
  if (past != c.has(kPastValue)) {
    c.fail("Only one of past_key and past_value is present.", "past_key and past_value, or neither",
           past ? "no past_value" : "no past_key", "Export the model again.");
  }
  const int64_t heads = c.integer("num_heads");
  if (heads <= 0 || heads > kFar) {
    c.fail("An attribute is out of range.", fmt::format("num_heads of 1 to {}", kFar),
           fmt::format("{}", heads), "Export the model again.");
  }
  const std::vector<Operand> parts = operands(c, heads);
  if (parts[0].size != parts[1].size) refuse_shapes(c);
  if (past && (parts[1].form == Form::heads || parts[2].form == Form::heads)) refuse_shapes(c);
  if (parts[0].form == Form::packed) {
    f.add("three_q, three_k, three_v = Split <axis = 3, num_outputs = 3> (query)");
  } else if (parts[1].form == Form::packed) {
    f.add("three_k, three_v = Split <axis = 3, num_outputs = 2> (key)");
  }
  if (c.has(kBias)) {
    f.ints("widths", {heads * parts[0].size, heads * parts[1].size, heads * parts[2].size});
    f.add("bias_q, bias_k, bias_v = Split <axis = 0> (bias, widths)");
  }
  f.ints("part_axis", {3});
  const char* names[] = {"q", "k", "v"};
  for (size_t i = 0; i < 3; ++i) {
    const Operand& part = parts[i];
    const char* name = names[i];
    if (part.form == Form::heads) {  // such keys already contain their bias
      f.add(fmt::format("each_{} = Identity ({})", name, part.name));
      continue;
    }
    f.ints(fmt::format("{}_heads", name), {heads, part.size});
    if (part.form == Form::packed) {
      f.add(fmt::format("apart_{0} = Squeeze (three_{0}, part_axis)", name));
    } else {
      f.add(
          fmt::format("{0}_outside = Shape <start = 0, end = 2> ({1})"
                      "  {0}_shape = Concat <axis = 0> ({0}_outside, {0}_heads)"
                      "  apart_{0} = Reshape <allowzero = 1> ({1}, {0}_shape)",
                      name, part.name));
    }
    if (c.has(kBias)) {
      f.add(
          fmt::format("{0}_bias = Reshape (bias_{0}, {0}_heads)"
                      "  biased_{0} = Add (apart_{0}, {0}_bias)",
                      name));
    }
    f.add(fmt::format("each_{0} = Transpose <perm = [0, 2, 1, 3]> ({1}_{0})", name,
                      c.has(kBias) ? "biased" : "apart"));
  }
  const Operand& key = parts[1];
  const Dim keys = past ? Dim() : (*c.inputs[key.input].shape)[key.form == Form::heads ? 2 : 1];
  Heads all = {"each_q", "each_k", "each_v"};
  if (past) {
    f.add(
        "all_k = Concat <axis = 2> (past_key, each_k)"
        "  all_v = Concat <axis = 2> (past_value, each_v)");
    all = {"each_q", "all_k", "all_v"};
  }
  const std::string scores =
      add_attention(c, f, all, parts[0].size, (*c.inputs[kQuery].shape)[0],
                    {.padding = kPadding, .bias = kAttentionBias, .past = past, .keys = keys});
  return {"y", all.k, all.v, scores};
}

}  // namespace

extern const ContribOp kContribMultiHeadAttention = {
    .name = "MultiHeadAttention",
    .inputs = {"query", "key?", "value?", "bias?", "key_padding_mask?", "attention_bias?",
               "past_key?", "past_value?", "past_sequence_length?", "cache_indirection?"},
    .outputs = 4,
    .attributes = {{"mask_filter_value", -10000.0},
                   {"num_heads", 0},
                   {"scale", 0.0},
                   {"unidirectional", 0}},
    .build = multi_head_attention};

}  // namespace steep
