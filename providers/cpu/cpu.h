// The CPU provider: oneDNN, our own run-time-dispatched kernels, and reference loops for everything
// else.
#pragma once

#include "runtime/kernel.h"

namespace steep::cpu {

/// The one instance. Thread-safe.
const Provider& provider();

/// Has this machine matrix products of 16-bit floats of the type? Otherwise they are computed in
/// float32, from operands widened and into results rounded: the same values, but no faster.
bool has_products(DType narrow);

/// Each kernel file defines one of these functions; cpu.cc lists them. Adds its candidates, fastest
/// first.
using Register = void (*)(std::vector<Candidate>& list);

}  // namespace steep::cpu
