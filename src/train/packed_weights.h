// Weights that are not trained stay packed in memory.
#pragma once

#include "ir/graph.h"

namespace steep {

/// Keeps a state of elements narrower than a byte in the bytes of the file: readers get it through
/// steep.Unpack. Other states stay as they are. Returns the state. REQUIRES: its initial tensor.
Value stay_packed(Value state);

}  // namespace steep
