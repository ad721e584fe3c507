// What ONNX's library and the allocator throw becomes ours.
#pragma once

#include <exception>
#include <new>
#include <string>

#include "model/read/quote.h"
#include "runtime/memory.h"
#include "steep/error.h"

namespace steep {

/// f(); whatever it throws that is no Error becomes OutOfMemoryError, or a ModelError that says
/// `what` and `remedy`.
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
