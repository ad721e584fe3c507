// A weight during its update. Weights of float16 and bfloat16 are updated in float32, in one of two
// ways: through a float32 copy that keeps the bits that rounding drops (a master weight;
// Micikevicius et al. 2018), or directly, with the new value rounded to nearest or at random (Gupta
// et al. 2015).
#pragma once

#include "train/optimizer.h"

namespace steep {

/// The dtype of a weight's update and of its moments: float64 for a float64 weight, else float32.
DType update_dtype(const Type& weight);

class Weight {
 public:
  /// `state`: the weight, a state of the graph. Adds the state of the master weight, if there is
  /// one.
  Weight(Value state, const Halves& halves);

  /// The weight in update_dtype(): the operand of the update.
  Value now() const { return now_; }
  Value state() const { return state_; }
  /// Whether the weight has 16 bits; then only write() may update it.
  bool is_half() const;
  /// Adds the updates of the weight and of its master weight. `value` has update_dtype().
  void write(Value value) const;

 private:
  Value state_, master_, now_;
  Halves halves_;
};

}  // namespace steep
