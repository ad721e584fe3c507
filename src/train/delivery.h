// Gradients that leave the graph while backward runs.
#pragma once

#include <cstdint>
#include <string>

#include "ir/graph.h"

namespace steep {

/// Who gets the gradient of each parameter as soon as it is there.
struct Delivery {
  int64_t receiver = 0;  ///< the number of a Receiver (runtime/receiver.h); 0: nobody
  bool sums = true;      ///< it gets the new sums; else the gradients, and there are no sums
};

/// Hands `value` to the receiver, if there is one, as that of the parameter with this index.
void deliver(Value value, const Delivery& to, const std::string& parameter, size_t index);

}  // namespace steep
