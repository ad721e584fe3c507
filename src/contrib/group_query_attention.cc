// Attention in which groups of queries share keys and values. Each row of the batch has its own
// length, and keys and values of earlier calls may precede the new ones.
#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "contrib/attention_helpers.h"

namespace steep {
namespace {

enum : size_t {
  kQuery,
  kKey,
  kValue,
  kPastKey,
  kPastValue,
  kCos = 7,
  kSin,
  kPositions,
  kBias,
  kSink,
  kKeyScale,
  kValueScale,
  kQueryNorm,
  kKeyNorm,
  kQueryLengths,
};

struct Groups {
  int64_t heads, groups, size;
  bool past, packed;
};

void refuse_attribute(const ContribCall& c, const char* name, int64_t value) {
  if (c.integer(name) == value) return;
  c.fail("An attribute is not supported.", fmt::format("{} = {}", name, value),
         fmt::format("{} = {}", name, c.integer(name)), "Export the model without it.");
}

void refuse_pair(const ContribCall& c, size_t first, size_t second, const char* pair) {
  if (c.has(first) == c.has(second)) return;
  c.fail("Two inputs must be given together.", fmt::format("{}, or neither", pair),
         c.has(first) ? "the first" : "the second", "Export the model again.");
}

Groups groups_of(const ContribCall& c) {
  constexpr const char* kRemedy = "Export the model with a cache of floats.";
  refuse_input(c, kKeyScale, kRemedy);
  refuse_input(c, kValueScale, kRemedy);
  refuse_input(c, kQueryLengths, "Export the model for whole sequences.");
  refuse_output(c, 3, "Export the model without it.");
  refuse_attribute(c, "qk_output", 0);
  refuse_attribute(c, "sliding_window_cache", 0);
  refuse_attribute(c, "kv_cache_bit_width", 0);
  for (const char* name : {"k_quant_type", "v_quant_type"}) {
    if (c.text(name) == "NONE") continue;
    c.fail("An attribute is not supported.", fmt::format("{} = NONE", name),
           c.text(name).substr(0, 40), kRemedy);
  }
  refuse_pair(c, kKey, kValue, "key and value");
  refuse_pair(c, kPastKey, kPastValue, "past_key and past_value");
  refuse_pair(c, kCos, kSin, "cos_cache and sin_cache");
  refuse_pair(c, kQueryNorm, kKeyNorm, "q_norm_weight and k_norm_weight");
  if (c.flag("do_rotary") && !c.has(kCos)) {
    c.fail("A node lacks an input.", "cos_cache and sin_cache where do_rotary = 1", "none",
           "Export the model again.");
  }
  const bool packed = !c.has(kKey);
  const int64_t heads = c.integer("num_heads"), groups = c.integer("kv_num_heads");
  const bool whole = heads > 0 && heads <= kFar && groups > 0 && groups <= heads &&
                     heads % groups == 0 && c.rank(kQuery) == 3;
  const int64_t columns = whole ? c.extent(kQuery, 2) : 0;
  const int64_t all = whole ? (packed ? heads + 2 * groups : heads) : 1;
  const int64_t size = columns / all;
  const bool fits =
      whole && columns > 0 && columns % all == 0 &&
      (packed || (c.rank(kKey) == 3 && c.rank(kValue) == 3 && c.extent(kKey, 2) == groups * size &&
                  c.extent(kValue, 2) == groups * size));
  if (!fits) {
    c.fail("Queries, keys and values do not fit.",
           "[batch, rows, columns] of num_heads and kv_num_heads whole heads of one size, or all "
           "side by side as query",
           fmt::format("num_heads = {}, kv_num_heads = {}, query {}, key {}", heads, groups,
                       to_string(c.inputs[kQuery]), packed ? "none" : to_string(c.inputs[kKey])),
           "Export the model again.");
  }
  for (const size_t cache : {kCos, kSin}) {
    if (!c.flag("do_rotary")) break;
    const int64_t rotary_size = 2 * c.extent(cache, 1);
    if (rotary_size <= size && rotary_size == 2 * c.extent(kCos, 1)) continue;
    c.fail("Caches do not fit the heads.",
           fmt::format("cos_cache and sin_cache of one width, at most {}", size / 2),
           fmt::format("cos_cache {}, sin_cache {}", to_string(c.inputs[kCos]),
                       to_string(c.inputs[kSin])),
           "Export the model again.");
  }
  return {heads, groups, size, c.has(kPastKey), packed};
}

/// Adds "before" [B, 1], the number of keys per row from earlier calls; "now" [B, S], the positions
/// of the queries; "final" [B, 1], the position of the last query; scalars "zero", "one", "count"
/// (number of queries), and "keys" (number of keys that attention sees).
void add_places(const Groups& g, ContribBody& f) {
  f.ints("column", {1});
  f.ints("open", {-1});
  f.add(
      "zero = Constant <value_int = 0> ()  one = Constant <value_int = 1> ()"
      "  rows = Shape <start = 1, end = 2> (query)  count = Squeeze (rows)"
      "  wide_lengths = Cast <to = 7> (seqlens_k)  flat_lengths = Reshape (wide_lengths, open)"
      "  final = Unsqueeze (flat_lengths, column)  lengths = Add (final, one)"
      "  steps = Range (zero, count, one)  early = Sub (lengths, count)"
      "  before = Max (early, zero)  now = Add (before, steps)");
  f.add(g.past ? "most = Cast <to = 7> (total_sequence_length)  keys = Squeeze (most)"
               : "keys = Identity (count)");
}

/// Adds "each_q", "each_k", "each_v": [B, heads or groups, S, size], normalised and rotated.
void add_operands(const ContribCall& c, const Groups& g, ContribBody& f) {
  f.add("outside = Shape <start = 0, end = 2> (query)");
  std::string wide[] = {"query", "key", "value"};
  if (g.packed) {
    f.ints("parts", {g.heads * g.size, g.groups * g.size, g.groups * g.size});
    f.add("wide_q, wide_k, wide_v = Split <axis = 2> (query, parts)");
    for (int i = 0; i < 3; ++i) wide[i] = fmt::format("wide_{}", "qkv"[i]);
  }
  std::string positions = "now";
  if (c.flag("do_rotary") && c.has(kPositions)) {
    // In a first call, positions count from the first position id.
    f.ints("origin", {0});
    f.ints("end", {1});
    f.add(
        "listed = Reshape (position_ids, open)  start = Slice (listed, origin, end)"
        "  counted = Add (start, steps)  square = Expand (counted, outside)");
    positions = "square";
    if (g.past) {
      f.add("whole = Equal (keys, count)  places = Where (whole, square, position_ids)");
      positions = "places";
    }
  }
  const bool norm = c.has(kQueryNorm);
  const DType stash = c.inputs[kQuery].dtype == DType::f64 ? DType::f64 : DType::f32;
  for (int i = 0; i < 3; ++i) {
    const std::string name(1, "qkv"[i]);
    std::string ready = name;
    add_heads(f, norm || c.flag("do_rotary") ? "raw_" + name : name, wide[i], "outside",
              i == 0 ? g.heads : g.groups, g.size);
    if (!norm && !c.flag("do_rotary")) continue;
    ready = "each_raw_" + name;
    if (norm && i < 2) {
      const char* epsilon = i == 0 ? "q_norm_epsilon" : "k_norm_epsilon";
      f.add(fmt::format(
          "level_{0} = RMSNormalization <axis = -1, stash_type = {2}> ({1}, {0}_norm_weight)", name,
          ready, static_cast<int64_t>(stash)));
      f.real("epsilon", c.real(c.attrs.has(epsilon) ? epsilon : "qk_norm_epsilon"));
      ready = "level_" + name;
    }
    if (c.flag("do_rotary") && i < 2) {
      const int64_t rotary_size = 2 * c.extent(kCos, 1);
      f.add(
          fmt::format("turned_{0} = RotaryEmbedding <interleaved = {1}, rotary_embedding_dim = "
                      "{2}> ({3}, cos_cache, sin_cache, {4})",
                      name, (c.flag("rotary_interleaved") ? 1 : 0),
                      rotary_size == g.size ? 0 : rotary_size, ready, positions));
      ready = "turned_" + name;
    }
    f.add(fmt::format("each_{} = Identity ({})", name, ready));
  }
}

/// Adds "all_k" and "all_v", the cache after the call, and "seen_k" and "seen_v", the part that
/// attention sees: [B, groups, T, size]. A row's new keys directly follow its old ones, however
/// long the buffer is.
void add_held(const Groups& g, ContribBody& f) {
  if (!g.past) {
    f.add(
        "all_k = Identity (each_k)  all_v = Identity (each_v)"
        "  seen_k = Identity (each_k)  seen_v = Identity (each_v)");
    return;
  }
  f.ints("origins", {0});
  f.ints("third", {2});
  f.ints("around", {1, 3});
  f.ints("group_count", {g.groups});
  f.ints("columns", {g.size});
  f.add(
      "room = Shape <start = 2, end = 3> (past_key)  old = Squeeze (room)"
      "  held = Max (keys, old)  slots = Range (zero, held, one)"
      "  behind = Sub (slots, before)  moved = Add (behind, old)"
      "  sum = Add (old, count)  limit = Sub (sum, one)  kept = Min (moved, limit)"
      "  blank = Greater (moved, limit)  fresh = GreaterOrEqual (behind, zero)"
      "  held_before = Less (slots, old)"
      "  earlier = Where (held_before, slots, sum)  source = Where (fresh, kept, earlier)"
      "  wide_source = Unsqueeze (source, around)  wide_blank = Unsqueeze (blank, around)"
      "  batch = Shape <start = 0, end = 1> (query)"
      "  longest = Unsqueeze (held, origins)"
      "  held_shape = Concat <axis = 0> (batch, group_count, longest, columns)"
      "  index = Expand (wide_source, held_shape)  end_of_keys = Unsqueeze (keys, origins)");
  f.scalar("nothing", 0, "each_k");
  for (const char* name : {"k", "v"}) {
    f.add(
        fmt::format("both_{0} = Concat <axis = 2> (past_{1}, each_{0})"
                    "  found_{0} = GatherElements <axis = 2> (both_{0}, index)"
                    "  all_{0} = Where (wide_blank, nothing, found_{0})"
                    "  seen_{0} = Slice (all_{0}, origins, end_of_keys, third)",
                    name, name[0] == 'k' ? "key" : "value"));
  }
}

/// Adds "every_<name>" [B, heads, T, size] from "seen_<name>" [B, groups, T, size].
void add_repeats(const Groups& g, ContribBody& f, const char* name) {
  if (g.heads == g.groups) {
    f.add(fmt::format("every_{0} = Identity (seen_{0})", name));
    return;
  }
  f.add(
      fmt::format("many_{0} = Shape <start = 0, end = 1> (seen_{0})"
                  "  long_{0} = Shape <start = 2, end = 3> (seen_{0})",
                  name));
  f.ints(fmt::format("grouped_{}", name), {g.groups, g.heads / g.groups});
  f.ints(fmt::format("single_{}", name), {g.heads});
  f.ints(fmt::format("size_{}", name), {g.size});
  f.ints(fmt::format("place_{}", name), {2});
  f.add(
      fmt::format("five_{0} = Concat <axis = 0> (many_{0}, grouped_{0}, long_{0}, size_{0})"
                  "  four_{0} = Concat <axis = 0> (many_{0}, single_{0}, long_{0}, size_{0})"
                  "  one_{0} = Unsqueeze (seen_{0}, place_{0})"
                  "  repeated_{0} = Expand (one_{0}, five_{0})"
                  "  every_{0} = Reshape <allowzero = 1> (repeated_{0}, four_{0})",
                  name));
}

/// Throws ModelError unless the attributes are in range.
void check_attributes(const ContribCall& c) {
  const int64_t window = c.integer("local_window_size"), smooth = c.integer("smooth_softmax");
  if (window < -1 || window == 0 || window > kFar || (window > 0 && !c.flag("causal"))) {
    c.fail("An attribute is out of range.", "local_window_size of -1, or at least 1 where causal",
           fmt::format("local_window_size = {}, causal = {}", window, c.integer("causal")),
           "Export the model again.");
  }
  if (smooth < -1 || smooth > 1) {
    c.fail("An attribute is out of range.", "smooth_softmax of -1, 0 or 1",
           fmt::format("smooth_softmax = {}", smooth), "Export the model again.");
  }
}

/// Adds the scaled and capped products of queries and keys; returns their name.
std::string add_products(const ContribCall& c, const Groups& g, ContribBody& f) {
  const double scale = c.real("scale"), cap = c.real("softcap");
  f.scalar("factor", scale != 0 ? scale : 1 / std::sqrt(static_cast<double>(g.size)), "each_q");
  f.add(
      "turned = Transpose <perm = [0, 1, 3, 2]> (every_k)  products = MatMul (each_q, turned)"
      "  raw = Mul (products, factor)");
  if (!(cap > 0)) return "raw";
  f.scalar("cap", cap, "each_q");
  f.add("share = Div (raw, cap)  bent = Tanh (share)  capped = Mul (bent, cap)");
  return "capped";
}

/// Masks the keys that a query does not see; returns the name of the scores.
std::string add_masks(const ContribCall& c, const std::string& scores, ContribBody& f) {
  const int64_t window = c.integer("local_window_size");
  f.ints("inner", {2});
  f.ints("head_axis", {1});
  f.add(
      "times = Range (zero, keys, one)  here = Min (now, final)  at = Unsqueeze (here, inner)"
      "  ends = Unsqueeze (final, inner)");
  f.add(fmt::format("until = LessOrEqual (times, {})", c.flag("causal") ? "at" : "ends"));
  if (window > 0) {  // a query behind the end of its row may see no key
    f.ints("window", {window});
    f.add(
        "place = Unsqueeze (now, inner)  edge = Sub (place, window)  after = Greater (times, edge) "
        " visible = And (until, after)");
  }
  f.scalar("never", -std::numeric_limits<double>::infinity(), "each_q");
  f.add(fmt::format("mask = Unsqueeze ({}, head_axis)  causal = Where (mask, {}, never)",
                    window > 0 ? "visible" : "until", scores));
  if (!c.has(kBias)) return "causal";
  f.add("masked = Add (causal, attention_bias)");
  return "masked";
}

/// Adds the probabilities with one more key, whose value is zero.
void add_probabilities_with_sink(const ContribCall& c, const Groups& g, const std::string& scores,
                                 ContribBody& f) {
  f.ints("last", {-1});
  f.ints("begin", {0});
  if (c.has(kSink)) {
    f.ints("of_heads", {1, g.heads, 1, 1});
    f.add("sink = Reshape (head_sink, of_heads)");
  } else {
    f.scalar("sink", 0, "each_q");
  }
  f.ints("single", {1});
  f.add("rows_of_all = Shape <start = 0, end = 1> (query)");
  f.ints("head_count", {g.heads});
  f.add(
      fmt::format("sinks_shape = Concat <axis = 0> (rows_of_all, head_count, rows, single)"
                  "  sinks = Expand (sink, sinks_shape)"
                  "  with_sink = Concat <axis = -1> ({}, sinks)"
                  "  shares = Softmax <axis = -1> (with_sink)"
                  "  probabilities = Slice (shares, begin, last, last)",
                  scores));
}

Results group_query_attention(const ContribCall& c, ContribBody& f) {
  const Groups g = groups_of(c);
  check_attributes(c);
  add_places(g, f);
  add_operands(c, g, f);
  add_held(g, f);
  add_repeats(g, f, "k");
  add_repeats(g, f, "v");
  const std::string scores = add_masks(c, add_products(c, g, f), f);
  if (c.integer("smooth_softmax") == 1 || c.has(kSink)) {
    add_probabilities_with_sink(c, g, scores, f);
  } else {
    const bool window = c.integer("local_window_size") > 0;
    f.add(fmt::format("probabilities = {} <axis = -1> ({})",
                      window ? "steep.SafeSoftmax" : "Softmax", scores));
  }
  f.ints("width", {g.heads * g.size});
  f.add(
      "each = MatMul (probabilities, every_v)"
      "  side_by_side = Transpose <perm = [0, 2, 1, 3]> (each)"
      "  flat = Concat <axis = 0> (outside, width)"
      "  y = Reshape <allowzero = 1> (side_by_side, flat)");
  return {"y", "all_k", "all_v", ""};
}

}  // namespace

extern const ContribOp kContribGroupQueryAttention = {
    .name = "GroupQueryAttention",
    .inputs = {"query", "key?", "value?", "past_key?", "past_value?", "seqlens_k",
               "total_sequence_length", "cos_cache?", "sin_cache?", "position_ids?",
               "attention_bias?", "head_sink?", "k_scale?", "v_scale?", "q_norm_weight?",
               "k_norm_weight?", "query_seqlens?"},
    .outputs = 4,
    .attributes = {{"causal", 1},
                   {"do_rotary", 0},
                   {"k_norm_epsilon", 1e-6F},
                   {"k_quant_type", "NONE"},
                   {"kv_cache_bit_width", 0},
                   {"kv_num_heads", 0},
                   {"local_window_size", -1},
                   {"num_heads", 0},
                   {"q_norm_epsilon", 1e-6F},
                   {"qk_norm_epsilon", 1e-6F},
                   {"qk_output", 0},
                   {"rotary_interleaved", 0},
                   {"scale", 0.0},
                   {"sliding_window_cache", 0},
                   {"smooth_softmax", -1},
                   {"softcap", 0.0},
                   {"v_quant_type", "NONE"}},
    .build = group_query_attention};

}  // namespace steep
