// A weight during its update. Weights of float16 and bfloat16 are updated in float32: by a copy
// that keeps what the weight's rounding drops (a master weight; Micikevicius et al. 2018), or from
// the weight itself, whose new value is then rounded to nearest, or at random (Gupta et al. 2015).
#pragma once

#include "train/optimizer.h"

namespace steep {

/// The dtype of a weight's update and of its moments: float32, or float64 for a weight of that.
DType update_dtype(const Type& weight);

class Weight {
 public:
  /// `state`: the weight, a state of the graph. Adds the state of its master, if it has one.
  Weight(Value state, const Halves& halves);

  /// The weight of update_dtype(): what an update starts from.
  Value now() const { return now_; }
  Value state() const { return state_; }
  /// Of 16 bits: then write() is the way to update it.
  bool is_half() const;
  /// Adds the updates of the weight, and of its master, by a value of update_dtype().
  void write(Value updated) const;

 private:
  Value state_, master_, now_;
  Halves halves_;
};

}  // namespace steep
