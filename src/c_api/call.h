// What every function of the C API does around its work: errors become codes, pointers are looked
// at.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "c_api/handles.h"
#include "steep_c.h"

namespace steep::c_api {

/// Within a catch clause: what was thrown, as a code, and in *error unless that is null. The one
/// place where exceptions end.
steep_code caught(steep_error** error) noexcept;

/// Runs the work of one call.
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

/// For the functions that free: nothing for null, an error's code for what is no such handle.
template <typename T>
steep_code release(const void* handle) noexcept {
  return call(nullptr, [&] {
    if (handle != nullptr && !remove_handle(handle, T::kKind)) {
      throw_wrong_handle(handle, T::kKind);
    }
  });
}

/// Throws ArgumentError, naming the argument, when it is null.
void require(const void* pointer, const char* argument);
/// The string that the caller gave; throws as require() does.
std::string text(const char* given, const char* argument);
/// A serialised model that the caller lends; throws as require() does.
std::span<const std::byte> bytes_of(const void* model, size_t size);
/// `count` of them; none may be null.
std::vector<std::string> texts(const char* const* given, size_t count, const char* argument);

}  // namespace steep::c_api
