// The CPU provider: oneDNN, our own run-time-dispatched kernels, and reference loops for everything
// else.
#pragma once

#include "runtime/kernel.h"

namespace steep::cpu {

/// The one instance. Thread-safe.
const Provider& provider();

/// Each kernel file defines one of these functions; cpu.cc lists them. Adds its candidates, fastest
/// first.
using Register = void (*)(std::vector<Candidate>& list);

}  // namespace steep::cpu
