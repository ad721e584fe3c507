#include "contrib/heads.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace steep {
namespace {

/// "seen", bool [B, T]: the keys before the end, and from the start on, that a row's mask tells.
void add_seen_of_lengths(ContribBody& f, const std::string& mask, bool starts) {
  f.ints("column", {1});
  f.add(
      "zero = Constant <value_int = 0> ()  one = Constant <value_int = 1> ()"
      "  all = Shape <start = 2, end = 3> (k)  total = Squeeze (all)"
      "  keys = Range (zero, total, one)");
  f.add(fmt::format("numbers = Cast <to = 7> ({})", mask));
  if (!starts) {
    f.add("ends = Unsqueeze (numbers, column)  seen = Less (keys, ends)");
    return;
  }
  f.add(
      "first, second = Split <axis = 0, num_outputs = 2> (numbers)"
      "  ends = Unsqueeze (first, column)  starts = Unsqueeze (second, column)"
      "  before = Less (keys, ends)  behind = GreaterOrEqual (keys, starts)"
      "  seen = And (before, behind)");
}

/// "padding", which is added to the scores; false where every key counts.
bool add_padding(const ContribCall& c, ContribBody& f, int input, const Dim& batch) {
  if (input < 0 || !c.has(static_cast<size_t>(input))) return false;
  const auto at = static_cast<size_t>(input);
  const size_t rank = c.rank(at);
  const std::string name(c.op.inputs[at].substr(0, c.op.inputs[at].size() - 1));
  auto refuse = [&] {
    c.fail("A mask is of a form that Steep does not know.",
           fmt::format("{} of shape [batch], [2 · batch], [batch, keys] or [batch, queries, keys]",
                       name),
           to_string(c.inputs[at]), "Give the mask as [batch, keys], 1 where a key counts.");
  };
  if (rank == 1) {
    const Dim& numbers = (*c.inputs[at].shape)[0];
    const bool starts = batch.known() && batch.value() > 0 && numbers.known() &&
                        numbers.value() % 2 == 0 && numbers.value() / 2 == batch.value();
    if (!starts && !provably_equal(numbers, batch)) refuse();
    add_seen_of_lengths(f, name, starts);
  } else if (rank == 2 || rank == 3) {
    // ONNX Runtime takes a column for no mask.
    if (const Dim& keys = (*c.inputs[at].shape)[1];
        rank == 2 && keys.known() && keys.value() == 1) {
      return false;
    }
    f.add(
        fmt::format("nothing = Constant <value_int = 0> ()  marks = Cast <to = 7> ({})"
                    "  seen = Greater (marks, nothing)",
                    name));
  } else {
    refuse();
  }
  f.ints("places", rank == 3 ? Ints{1} : Ints{1, 2});
  f.scalar("open", 0, "q");
  f.scalar("shut", c.real("mask_filter_value"), "q");
  f.add("spread = Unsqueeze (seen, places)  padding = Where (spread, open, shut)");
  return true;
}

}  // namespace

void add_attention(const ContribCall& c, ContribBody& f, const Heads& heads, int64_t size,
                   const Dim& batch, const MaskInputs& masks) {
  f.add(fmt::format("q = Identity ({})  k = Identity ({})  v = Identity ({})", heads.q, heads.k,
                    heads.v));
  const double given = c.real("scale");
  f.scalar("factor",
           given != 0 ? given : 1 / std::sqrt(static_cast<double>(std::max<int64_t>(size, 1))),
           "q");
  f.add(
      "turned = Transpose <perm = [0, 1, 3, 2]> (k)  products = MatMul (q, turned)"
      "  raw = Mul (products, factor)");
  std::string scores = "raw", added;
  if (c.integer("unidirectional") != 0) {
    f.ints("last", {1});
    f.add(
        "from = Constant <value_int = 0> ()  step = Constant <value_int = 1> ()"
        "  rows = Shape <start = 2, end = 3> (q)  columns = Shape <start = 2, end = 3> (k)"
        "  row_count = Squeeze (rows)  column_count = Squeeze (columns)"
        "  queries = Range (from, row_count, step)  now = Unsqueeze (queries, last)"
        "  times = Range (from, column_count, step)  known = LessOrEqual (times, now)");
    f.scalar("never", -std::numeric_limits<double>::infinity(), "q");
    f.add("causal = Where (known, raw, never)");
    scores = "causal";
  }
  if (add_padding(c, f, masks.padding, batch)) added = "padding";
  if (masks.bias >= 0 && c.has(static_cast<size_t>(masks.bias))) {
    if (!added.empty()) f.add("both = Add (padding, attention_bias)");
    added = added.empty() ? "attention_bias" : "both";
  }
  if (!added.empty()) {
    f.add(fmt::format("masked = Add ({}, {})", scores, added));
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
}

void refuse_past(const ContribCall& c, int first, int last, int first_output) {
  constexpr const char* kRemedy =
      "Export the model without a cache of keys and values (use_cache=False).";
  for (int i = first; i <= last; ++i) {
    if (!c.has(static_cast<size_t>(i))) continue;
    c.fail("A state of earlier calls is not supported.", "no such input",
           std::string(c.op.inputs[static_cast<size_t>(i)].substr(
               0, c.op.inputs[static_cast<size_t>(i)].size() - 1)),
           kRemedy);
  }
  for (int i = first_output; i < c.op.outputs; ++i) {
    if (!c.wants(static_cast<size_t>(i))) continue;
    c.fail("A state for later calls is not supported.",
           fmt::format("that output {} is not read", i), "a reader", kRemedy);
  }
}

}  // namespace steep
