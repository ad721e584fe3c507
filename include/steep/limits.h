// What one call may take: bounds that every stage keeps, so that a small file cannot take the
// machine.
#pragma once

#include <cstddef>
#include <cstdint>

namespace steep {

/// Three quarters of what this process may have: the least of physical memory, its cgroup's and
/// ulimit's bounds; or what STEEP_MAX_BYTES says ("8G"; K, M, G, T are powers of 1024). Found once.
size_t default_max_bytes();

/// Of one session, and of one file. Real models stay far below the defaults. What exceeds one is an
/// error that names it, and comes before the memory or the time is taken.
struct Limits {
  /// Of a model file with its tensors; of a step's parameters, constants, intermediate values and
  /// results together; of any one value; of what one loop or sequence holds; of a data file's
  /// arrays, unpacked.
  size_t max_bytes = default_max_bytes();
  size_t max_nodes = 1'000'000;  ///< of a file, and of every graph made of it
  /// Nodes that calls of functions add, over all; a branch or a loop's body counts for 16.
  size_t max_inlined = 100'000;
  int max_depth = 100;                  ///< of graphs and function calls within one another
  int64_t max_iterations = 10'000'000;  ///< of one loop
  size_t max_arrays = 1'000'000;        ///< in a data file

  bool operator==(const Limits&) const = default;
};

/// `stop` is asked ten times a second by the thread that called, wherever it may take long:
/// import, differentiation, planning, between and within nodes, between turns of loops, while files
/// are read. True ends the call with an InterruptedError; a training step only before any weight
/// has changed. Null: nobody is asked. Of the whole process; thread-safe.
void set_interrupt_check(bool (*stop)());

}  // namespace steep
