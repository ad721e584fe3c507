// Weights that are not trained stay packed in memory, or in the file.
#pragma once

#include "ir/graph.h"

namespace steep {

/// Keeps a state of elements narrower than a byte in the bytes of the file: readers get it through
/// steep.Unpack. Other states stay as they are. Returns the state. REQUIRES: its initial tensor.
Value stay_packed(Value state);

/// Makes a state of a place in a file (data/file_places.h): each reader of the weight reads the
/// file anew, by steep.ReadFile. Returns the state, which holds the place. The state's tensor has a
/// type, but no bytes.
Value stay_on_disk(Value state);

}  // namespace steep
