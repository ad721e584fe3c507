// Calls functions of providers. A mistake of a plug-in becomes an error that names it.
#pragma once

#include <exception>
#include <new>
#include <string>
#include <string_view>

#include "device/device.h"
#include "runtime/counted.h"
#include "runtime/utf8.h"
#include "steep/error.h"

namespace steep {

[[noreturn]] inline void blame(std::string_view provider, std::string what, std::string expected,
                               std::string_view received) {
  throw ProviderError({.what = std::move(what),
                       .node = std::string(provider),
                       .expected = std::move(expected),
                       .received = as_utf8(received),
                       .remedy = "Ask the plug-in's author."});
}

/// Calls f(), which calls the provider's function `function`. That may be C++: its exceptions
/// become a ProviderError, except the engine's own errors and std::bad_alloc.
template <typename F>
decltype(auto) call_provider(std::string_view provider, const char* function, F&& f) {
  std::string text;
  try {
    return f();
  } catch (const Error&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& e) {
    text = e.what();
  } catch (...) {
    text = "an exception";
  }
  blame(provider, "A provider threw an exception.", std::string("a SteepError of ") + function,
        text);
}

/// Calls f(), which releases something and must not fail: exceptions are ignored.
template <typename F>
void end_quietly(F&& f) noexcept {
  try {
    f();
  } catch (...) {
    // The engine does not use the resource any more, and no caller could handle the error.
  }
}

/// The number of bytes from one entry of a provider's table to the next. Throws ProviderError if
/// the table is not valid.
inline size_t table_stride(std::string_view provider, const char* table, size_t size, size_t least,
                           size_t count) {
  constexpr size_t kLongest = 4096;  // of an entry, or of a table
  if (size < least || size > kLongest || count > kLongest) {
    blame(provider, std::string("A provider's table of ") + table + " is not valid.",
          "at most 4096 entries, each of " + std::to_string(least) + " to 4096 bytes",
          std::to_string(count) + " of " + counted(size, "byte"));
  }
  return size;
}

}  // namespace steep
