#include "contrib/attention_helpers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

namespace steep {
namespace {

/// The content of a mask with one axis.
enum class Lengths : uint8_t {
  ends,             ///< [B]
  ends_and_starts,  ///< [2 · B]
  ends_and_sums,    ///< [3 · B + 2]: lengths, then cumulative sums
  told_by_length,   ///< one of these; known only at run time
};

/// Adds "seen", bool [B, T]: the keys from the start to before the end that the mask gives for each
/// row.
void add_seen_of_lengths(ContribBody& f, const std::string& mask, Lengths form) {
  f.ints("column", {1});
  f.add(
      "zero = Constant <value_int = 0> ()  one = Constant <value_int = 1> ()"
      "  all = Shape <start = 2, end = 3> (k)  total = Squeeze (all)"
      "  keys = Range (zero, total, one)");
  f.add(fmt::format("numbers = Cast <to = 7> ({})", mask));
  switch (form) {
    case Lengths::ends: f.add("first = Identity (numbers)"); break;
    case Lengths::ends_and_starts:
      f.add("first, second = Split <axis = 0, num_outputs = 2> (numbers)");
      break;
    default:
      // If the length of the mask is unknown and matches no form, the indices are out of range on
      // purpose, so that Gather fails at run time.
      f.add(
          "rows_of_q = Shape <start = 0, end = 1> (q)  batch_size = Squeeze (rows_of_q)"
          "  row_places = Range (zero, batch_size, one)  extent = Shape (numbers)"
          "  mask_length = Squeeze (extent)  pairs = Add (batch_size, batch_size)"
          "  triples = Add (pairs, batch_size)  two = Add (one, one)  most = Add (triples, two)"
          "  alone = Equal (mask_length, batch_size)  in_pairs = Equal (mask_length, pairs)"
          "  with_sums = Equal (mask_length, most)  either = Or (alone, in_pairs)"
          "  fits = Or (either, with_sums)  first_places = Where (fits, row_places, mask_length)"
          "  first = Gather (numbers, first_places)  shifted = Add (first_places, batch_size)"
          "  second_places = Where (in_pairs, shifted, first_places)"
          "  found = Gather (numbers, second_places)  second = Where (in_pairs, found, zero)");
  }
  f.add("ends = Unsqueeze (first, column)");
  if (form == Lengths::ends) {
    f.add("seen = Less (keys, ends)");
    return;
  }
  f.add(
      "starts = Unsqueeze (second, column)"
      "  before = Less (keys, ends)  behind = GreaterOrEqual (keys, starts)"
      "  seen = And (before, behind)");
}

/// nullopt when the length matches no form.
std::optional<Lengths> lengths_of(const Dim& numbers, const Dim& batch) {
  if (provably_equal(numbers, batch)) return Lengths::ends;
  if (!numbers.known() || !batch.known()) return Lengths::told_by_length;
  const int64_t n = numbers.value(), rows = batch.value();
  if (n % 2 == 0 && n / 2 == rows) return Lengths::ends_and_starts;
  if (n >= 2 && (n - 2) % 3 == 0 && (n - 2) / 3 == rows) return Lengths::ends_and_sums;
  return std::nullopt;
}

/// Adds "padding", which is added to the scores. Returns false when all keys count.
bool add_padding(const ContribCall& c, ContribBody& f, const MaskInputs& masks, const Dim& batch) {
  const int input = masks.padding;
  if (input < 0 || !c.has(static_cast<size_t>(input))) return false;
  const auto at = static_cast<size_t>(input);
  const size_t rank = c.rank(at);
  const std::string name(c.op.inputs[at].substr(0, c.op.inputs[at].size() - 1));
  auto refuse = [&] {
    c.fail("The shape of a mask is not supported.",
           fmt::format("{} of shape [batch], [2 · batch], [3 · batch + 2], [batch, keys], [batch, "
                       "queries, keys] or [batch, 1, most, most]",
                       name),
           to_string(c.inputs[at]), "Give the mask as [batch, keys], 1 where a key counts.");
  };
  if (rank == 1) {
    const auto form = lengths_of((*c.inputs[at].shape)[0], batch);
    if (!form) refuse();
    add_seen_of_lengths(f, name, *form);
  } else if (rank >= 2 && rank <= 4) {
    // ONNX Runtime's Attention treats a mask with one column as no mask.
    if (const Dim& keys = (*c.inputs[at].shape)[1];
        rank == 2 && keys.known() && keys.value() == 1) {
      if (!masks.keys) return false;
      if (!masks.keys->known() || masks.keys->value() != 1) refuse();
    }
    std::string mask = name;
    if (rank == 4) {  // for the maximal sequence: use the rows of the last queries
      f.ints("square", {2, 3});
      f.add(fmt::format(
          "asked = Shape <start = 2, end = 3> (q)  held = Shape <start = 2, end = 3> (k)"
          "  passed = Sub (held, asked)  none = Sub (held, held)"
          "  top = Concat <axis = 0> (passed, none)"
          "  bottom = Concat <axis = 0> (held, held)"
          "  part = Slice ({}, top, bottom, square)",
          name));
      mask = "part";
    }
    f.add(
        fmt::format("nothing = Constant <value_int = 0> ()  marks = Cast <to = 7> ({})"
                    "  seen = Greater (marks, nothing)",
                    mask));
  } else {
    refuse();
  }
  f.scalar("open", 0, "q");
  f.scalar("shut", c.real("mask_filter_value"), "q");
  if (rank < 4) {
    f.ints("places", rank == 3 ? Ints{1} : Ints{1, 2});
    f.add("spread = Unsqueeze (seen, places)");
  }
  f.add(fmt::format("padding = Where ({}, open, shut)", rank < 4 ? "spread" : "seen"));
  return true;
}

}  // namespace

void add_heads(ContribBody& f, const std::string& name, const std::string& matrix,
               const std::string& outside, int64_t heads, int64_t size) {
  f.ints(fmt::format("{}_heads", name), {heads, size});
  f.add(
      fmt::format("{0}_shape = Concat <axis = 0> ({2}, {0}_heads)"
                  "  apart_{0} = Reshape <allowzero = 1> ({1}, {0}_shape)"
                  "  each_{0} = Transpose <perm = [0, 2, 1, 3]> (apart_{0})",
                  name, matrix, outside));
}

std::string add_attention(const ContribCall& c, ContribBody& f, const Heads& heads, int64_t size,
                          const Dim& batch, const MaskInputs& masks) {
  f.add(fmt::format("q = Identity ({})  k = Identity ({})  v = Identity ({})", heads.q, heads.k,
                    heads.v));
  const double attribute = c.real("scale");
  f.scalar(
      "factor",
      attribute != 0 ? attribute : 1 / std::sqrt(static_cast<double>(std::max<int64_t>(size, 1))),
      "q");
  f.add(
      "turned = Transpose <perm = [0, 1, 3, 2]> (k)  products = MatMul (q, turned)"
      "  raw = Mul (products, factor)");
  std::string scores = "raw", addend;
  if (c.flag("unidirectional")) {
    f.ints("last", {1});
    f.add(
        "from = Constant <value_int = 0> ()  step = Constant <value_int = 1> ()"
        "  rows = Shape <start = 2, end = 3> (q)  columns = Shape <start = 2, end = 3> (k)"
        "  row_count = Squeeze (rows)  column_count = Squeeze (columns)"
        "  queries = Range (from, row_count, step)  times = Range (from, column_count, step)");
    if (masks.past) f.add("ahead = Sub (column_count, row_count)  moved = Add (queries, ahead)");
    f.add(fmt::format("now = Unsqueeze ({}, last)  known = LessOrEqual (times, now)",
                      masks.past ? "moved" : "queries"));
    f.scalar("never", -std::numeric_limits<double>::infinity(), "q");
    f.add("causal = Where (known, raw, never)");
    scores = "causal";
  }
  if (add_padding(c, f, masks, batch)) addend = "padding";
  if (masks.bias >= 0 && c.has(static_cast<size_t>(masks.bias))) {
    if (!addend.empty()) f.add("both = Add (padding, attention_bias)");
    addend = addend.empty() ? "attention_bias" : "both";
  }
  if (!addend.empty()) {
    f.add(fmt::format("masked = Add ({}, {})", scores, addend));
    scores = "masked";
  }
  f.add(
      fmt::format("probabilities = Softmax <axis = -1> ({})"
                  "  each = MatMul (probabilities, v)"
                  "  side_by_side = Transpose <perm = [0, 2, 1, 3]> (each)"
                  "  outer = Shape <start = 0, end = 2> (side_by_side)"
                  "  inner = Shape <start = 2> (side_by_side)",
                  scores));
  f.add(
      "width = ReduceProd (inner)  flat = Concat <axis = 0> (outer, width)"
      "  y = Reshape <allowzero = 1> (side_by_side, flat)");
  return scores;
}

void refuse_input(const ContribCall& c, size_t input, const char* remedy) {
  if (!c.has(input)) return;
  const std::string_view name = c.op.inputs.at(input);
  c.fail("An input is not supported.", "no such input",
         std::string(name.substr(0, name.size() - (name.ends_with('?') ? 1 : 0))), remedy);
}

void refuse_output(const ContribCall& c, size_t output, const char* remedy) {
  if (!c.wants(output)) return;
  c.fail("An output is not supported.", fmt::format("that output {} is not read", output),
         "a reader", remedy);
}

}  // namespace steep
