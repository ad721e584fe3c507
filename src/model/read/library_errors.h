// Converts exceptions of ONNX's library and of the allocator to Steep's errors.
#pragma once

#include <exception>
#include <new>
#include <string>

#include "model/read/quote.h"
#include "runtime/memory.h"
#include "steep/error.h"

namespace steep {

/// Calls f(). Converts exceptions that are not an Error to OutOfMemoryError, or to a ModelError
/// with `what` and `remedy`.
template <typename F>
auto with_our_errors(const char* what, const char* remedy, const F& f) {
  try {
    return f();
  } catch (const Error&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw_out_of_memory();
  } catch (const std::exception& e) {
    throw ModelError({.what = what, .received = quote(e.what()), .remedy = remedy});
  }
}

}  // namespace steep
