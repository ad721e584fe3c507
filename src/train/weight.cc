#include "train/weight.h"

#include "ir/seed.h"
#include "ops/build.h"
#include "ops/wide.h"

namespace steep {
namespace {

/// x, a float32, rounded at random up or down to bfloat16; the nearer value is more probable, in
/// proportion to the distance. bfloat16 keeps the upper 16 bits of a float32. Adding a random
/// number to the lower 16 bits carries into the upper ones with the right probability.
Value rounded_at_random(Value x, int64_t stream) {
  Graph& g = x.graph();
  const Attrs attrs{{"low", 0.0},
                    {"high", 65536.0},
                    {"stream", stream},
                    {"dtype", static_cast<int64_t>(DType::f32)}};
  const Value noise =
      cast(apply("steep.RandomUniform", {seed_of(g), shape_of(x)}, attrs), DType::i32);
  const Attrs as_integer{{"to", static_cast<int64_t>(DType::i32)}},
      as_float{{"to", static_cast<int64_t>(DType::f32)}};
  const Value bits = apply("BitCast", {x}, as_integer) + noise;
  const Value upper = apply("BitwiseAnd", {bits, scalar(g, -65536, DType::i32)});
  const Value rounded = apply("BitCast", {upper}, as_float);
  // The sum of NaN's bits and a random number may be a number.
  return cast(where(apply("IsNaN", {x}), x, rounded), DType::bf16);
}

}  // namespace

DType update_dtype(const Type& weight) {
  return weight.dtype == DType::f64 ? DType::f64 : DType::f32;
}

Weight::Weight(Value state, const Halves& halves)
    : state_(state), now_(cast(state, update_dtype(state.type()))), halves_(halves) {
  if (!is_half() || !halves.masters) return;
  master_ = add_optimizer_state(state.graph(), moment_name(kMaster, state.name()),
                                {DType::f32, state.type().shape});
  const Value rounded = cast(cast_like(master_, state), DType::f32);
  now_ = where(equal(rounded, now_), master_, now_);
}

bool Weight::is_half() const { return steep::is_half(state_.dtype()); }

void Weight::write(Value value) const {
  Graph& g = state_.graph();
  const bool at_random = !master_ && halves_.stochastic && state_.dtype() == DType::bf16;
  const Value narrow =
      at_random ? rounded_at_random(value, halves_.stream) : cast_like(value, state_);
  if (master_) g.add_update(master_, apply("steep.Assign", {master_, value}));
  g.add_update(state_, apply("steep.Assign", {state_, narrow}));
}

}  // namespace steep
