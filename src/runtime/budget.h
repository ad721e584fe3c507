// The memory budget of the current call, and whether the call should stop. Kernels and passes are
// reached through tables of functions; the thread that runs them knows whose call it is.
#pragma once

#include <new>
#include <stdexcept>
#include <string>

#include "steep/error.h"
#include "steep/limits.h"

namespace steep {

/// Makes `limits`, which must outlive it, those of this thread's calls. Nests.
class Budget {
 public:
  explicit Budget(const Limits& limits);
  ~Budget();
  Budget(const Budget&) = delete;
  Budget& operator=(const Budget&) = delete;

 private:
  const Limits* before_;
};

/// Of the innermost Budget of this thread; the defaults where there is none.
const Limits& current_limits();

/// Throws OutOfMemoryError when one thing of so many bytes exceeds the budget.
void require_bytes(size_t bytes, const std::string& received);

/// Throws InterruptedError when the process was asked to stop (set_interrupt_check()). Costs a look
/// at the clock; does nothing in threads without a Budget, and under Uninterrupted.
void poll();

/// While it lives, poll() does nothing: something is half written.
class Uninterrupted {
 public:
  Uninterrupted();
  ~Uninterrupted();
  Uninterrupted(const Uninterrupted&) = delete;
  Uninterrupted& operator=(const Uninterrupted&) = delete;
};

/// Throws an OutOfMemoryError that names the node.
[[noreturn]] void throw_no_memory(const std::string& node, const std::string& op);
/// `error` with the node's name where it has none.
[[noreturn]] void rethrow_at(const OutOfMemoryError& error, const std::string& node,
                             const std::string& op);

/// f(), which works on node n: where memory lacks, the error names it.
template <typename N, typename F>
decltype(auto) at_node(const N& n, F&& f) {
  try {
    return f();
  } catch (const OutOfMemoryError& e) {
    rethrow_at(e, n.name(), n.op());
  } catch (const std::bad_alloc&) {
    throw_no_memory(n.name(), n.op());
  } catch (const std::length_error&) {  // a table longer than a vector can be
    throw_no_memory(n.name(), n.op());
  }
}

/// "3.5 GiB", "2048 bytes"
std::string bytes_text(size_t bytes);
/// "3.5 GiB (3758096384 bytes)", "2048 bytes": for numbers that a user may give back as a limit.
std::string exact_bytes_text(size_t bytes);

}  // namespace steep
