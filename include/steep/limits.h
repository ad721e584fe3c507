// Limits on memory and time that every stage respects, so that a small file cannot exhaust the
// machine.
#pragma once

#include <cstddef>
#include <cstdint>

namespace steep {

/// STEEP_MAX_BYTES ("8G"; K, M, G, T are powers of 1024), or three quarters of the memory that this
/// process may use: the smallest of physical memory, the cgroup's limit and ulimit. Computed once.
size_t default_max_bytes();

/// Limits of one session and of one file. Real models are far below the defaults. If a limit would
/// be exceeded, an error names it before the memory or the time is used.
struct Limits {
  /// The greatest size of each of these: a model file with its tensors; a step's parameters,
  /// constants, intermediate values and results together; any one value; the values of one loop or
  /// sequence; the uncompressed arrays of a data file.
  size_t max_bytes = default_max_bytes();
  size_t max_nodes = 1'000'000;  ///< of a file, and of each graph made from it
  /// Nodes that the inlining of function calls adds in all; a branch or loop body counts as 16.
  size_t max_inlined = 100'000;
  int max_depth = 100;                  ///< of nested graphs and function calls
  int64_t max_iterations = 10'000'000;  ///< of one loop
  size_t max_arrays = 1'000'000;        ///< in a data file

  bool operator==(const Limits&) const = default;
};

/// The calling thread calls `stop` ten times a second during long work: import, differentiation,
/// planning, between and within nodes, between iterations of loops, while it reads files. If it
/// returns true, the call ends with an InterruptedError; a training step does so only before the
/// first weight has changed. Null: no check. Holds for the whole process; thread-safe.
void set_interrupt_check(bool (*stop)());

}  // namespace steep
