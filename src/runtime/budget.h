// The memory budget of the current call, and its interruption. They belong to the thread, because
// kernels and passes are called through tables of functions without such arguments.
#pragma once

#include <new>
#include <stdexcept>
#include <string>

#include "steep/error.h"
#include "steep/limits.h"

namespace steep {

/// Sets the limits of this thread's calls to `limits`, which must outlive it. May be nested.
class Budget {
 public:
  explicit Budget(const Limits& limits);
  ~Budget();
  Budget(const Budget&) = delete;
  Budget& operator=(const Budget&) = delete;

 private:
  const Limits* before_;
};

/// The limits of the innermost Budget of this thread; the defaults if there is none.
const Limits& current_limits();

/// Throws OutOfMemoryError if a single object of this size exceeds the budget.
void require_bytes(size_t bytes, const std::string& received);

/// Throws InterruptedError if the process was asked to stop (set_interrupt_check()). Costs a read
/// of the clock. Does nothing in threads without a Budget, and while an Uninterrupted exists.
void poll();

/// While it exists, poll() does nothing, so that a write is not left half done.
class Uninterrupted {
 public:
  Uninterrupted();
  ~Uninterrupted();
  Uninterrupted(const Uninterrupted&) = delete;
  Uninterrupted& operator=(const Uninterrupted&) = delete;
};

/// Throws an OutOfMemoryError that names the node.
[[noreturn]] void throw_no_memory(const std::string& node, const std::string& op);
/// Throws `error`, with the node's name added if it has none.
[[noreturn]] void rethrow_at(const OutOfMemoryError& error, const std::string& node,
                             const std::string& op);

/// Calls f(), which works on node n. An OutOfMemoryError or std::bad_alloc becomes one that names
/// n.
template <typename N, typename F>
decltype(auto) at_node(const N& n, F&& f) {
  try {
    return f();
  } catch (const OutOfMemoryError& e) {
    rethrow_at(e, n.name(), n.op());
  } catch (const std::bad_alloc&) {
    throw_no_memory(n.name(), n.op());
  } catch (const std::length_error&) {  // longer than a vector can be
    throw_no_memory(n.name(), n.op());
  }
}

/// "3.5 GiB", "2048 bytes"
std::string bytes_text(size_t bytes);
/// "3.5 GiB (3758096384 bytes)", "2048 bytes": for numbers that a user may enter as a limit.
std::string exact_bytes_text(size_t bytes);

}  // namespace steep
