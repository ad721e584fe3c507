// Group normalisation of images, optionally with channels last, an added skip before, and SiLU
// after.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "contrib/contrib.h"

namespace steep {
namespace {

/// Adds y, the normalised `x`, in the call's layout.
Results normalized(const ContribCall& c, ContribBody& f, const std::string& x) {
  const int64_t groups = c.integer("groups"), activation = c.integer("activation");
  if (groups < 1 || groups > kFar || activation < 0 || activation > 1) {
    c.fail("An attribute is out of range.", "groups from 1 on; activation 0 or 1",
           fmt::format("groups = {}, activation = {}", groups, activation),
           "Export the model again.");
  }
  const size_t rank = c.rank(0);
  if (rank < 3) {
    c.fail("An input has another rank.", "X of batch, channels and an image",
           to_string(c.inputs[0]), "Export the model again.");
  }
  const bool last = c.flag("channels_last");
  Ints there(rank), back(rank);
  std::iota(there.begin(), there.end(), 0);
  std::rotate(there.begin() + 1, there.end() - 1, there.end());
  for (size_t i = 0; i < rank; ++i) back[static_cast<size_t>(there[i])] = static_cast<int64_t>(i);
  if (last) f.add(fmt::format("front = Transpose <perm = [{}]> ({})", fmt::join(there, ", "), x));
  const DType stash = c.inputs[0].dtype == DType::f64 ? DType::f64 : DType::f32;
  f.add(
      fmt::format("scale = CastLike (gamma, X)  shift = CastLike (beta, X)"
                  "  level = GroupNormalization <num_groups = {}, stash_type = {}> "
                  "({}, scale, shift)",
                  groups, static_cast<int64_t>(stash), last ? "front" : x));
  f.real("epsilon", c.real("epsilon"));
  if (activation == 1) f.add("share = Sigmoid (level)  active = Mul (level, share)");
  const char* y = activation == 1 ? "active" : "level";
  if (last) {
    f.add(fmt::format("y = Transpose <perm = [{}]> ({})", fmt::join(back, ", "), y));
    y = "y";
  }
  return {y};
}

Results group_norm(const ContribCall& c, ContribBody& f) { return normalized(c, f, "X"); }

Results skip_group_norm(const ContribCall& c, ContribBody& f) {
  const size_t rank = c.rank(0);
  const bool last = c.flag("channels_last");
  // A bias and a two-axis skip have one element per channel, and are the same at all positions.
  Ints places(rank < 2 ? 0 : rank - 2);
  std::iota(places.begin(), places.end(), last ? 1 : 2);
  const char* skip = c.rank(3) == 2 ? "spread_skip" : "skip";
  if (c.rank(3) == 2) {
    f.ints("places", places);
    f.add("spread_skip = Unsqueeze (skip, places)");
  } else if (c.rank(3) != rank) {
    c.fail("An input has another rank.", fmt::format("skip of rank {} or 2", rank),
           to_string(c.inputs[3]), "Export the model again.");
  }
  f.add(fmt::format("sum = Add (X, {})", skip));
  const char* total = c.has(4) ? "total" : "sum";
  if (c.has(4)) {
    if (!last) {
      std::iota(places.begin(), places.end(), 1);
      f.ints("behind", places);
      f.add("spread_bias = Unsqueeze (bias, behind)");
    }
    f.add(fmt::format("total = Add (sum, {})", last ? "bias" : "spread_bias"));
  }
  return {normalized(c, f, total)[0], total};
}

}  // namespace

extern const ContribOp kContribGroupNorm = {
    .name = "GroupNorm",
    .inputs = {"X", "gamma", "beta"},
    .attributes = {{"activation", 0}, {"channels_last", 1}, {"epsilon", 1e-5F}, {"groups", 0}},
    .build = group_norm};
extern const ContribOp kContribSkipGroupNorm = {
    .name = "SkipGroupNorm",
    .inputs = {"X", "gamma", "beta", "skip", "bias?"},
    .outputs = 2,
    .attributes = {{"activation", 0}, {"channels_last", 1}, {"epsilon", 1e-5F}, {"groups", 0}},
    .build = skip_group_norm};

}  // namespace steep
