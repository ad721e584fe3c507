// The frame of every function of the C API: it turns exceptions into codes, and checks pointers.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "c_api/handles.h"
#include "steep_c.h"

namespace steep::c_api {

/// For a catch clause: returns the code of the current exception, and sets *error to it unless
/// `error` is null. All exceptions end here.
steep_code caught(steep_error** error) noexcept;

/// Runs the body of one function.
template <typename Work>
steep_code call(steep_error** error, Work&& work) noexcept {
  if (error != nullptr) *error = nullptr;
  try {
    work();
    return STEEP_OK;
  } catch (...) {
    return caught(error);
  }
}

/// For the functions that free: does nothing for null, and returns an error code for an invalid
/// handle.
template <typename T>
steep_code release(const void* handle) noexcept {
  return call(nullptr, [&] {
    if (handle != nullptr && !remove_handle(handle, T::kKind)) {
      throw_wrong_handle(handle, T::kKind);
    }
  });
}

/// Throws ArgumentError, which names the argument, if the pointer is null.
void require(const void* pointer, const char* argument);
/// The caller's string. Throws as require().
std::string text(const char* value, const char* argument);
/// A serialised model in the caller's memory. Throws as require().
std::span<const std::byte> bytes_of(const void* model, size_t size);
/// `count` strings. Throws as require() if one of them is null.
std::vector<std::string> texts(const char* const* values, size_t count, const char* argument);

}  // namespace steep::c_api
