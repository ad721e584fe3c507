// The objects behind the C API's handles. A handle is the number of an object in a table, cast to a
// pointer. It is looked up and never dereferenced, and a number is never used twice. So a null,
// freed or wrong handle is always detected. An object lives as long as a call uses it, even if
// another thread frees its handle meanwhile.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "steep/error.h"

namespace steep::c_api {

/// The call itself is wrong: a null pointer, a wrong handle, an unknown option.
class ArgumentError : public Error {
 public:
  using Error::Error;
};

/// Base class of the objects behind handles. Each class has kKind, the name of its type in
/// steep_c.h.
class Object {
 public:
  Object() = default;
  virtual ~Object() = default;
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;
  virtual std::string_view kind() const = 0;
};

/// All functions on the table are thread-safe.
void* add_handle(std::shared_ptr<Object> object);
/// Null if it is not a handle, or was freed.
std::shared_ptr<Object> find_handle(const void* handle);
/// Frees a handle of this kind. Returns false, and does nothing, for anything else.
bool remove_handle(const void* handle, std::string_view kind);
/// Throws ArgumentError: `handle` is not a handle of this kind. The error says what it is.
[[noreturn]] void throw_wrong_handle(const void* handle, std::string_view kind);

/// The object of C++ type T behind a handle; null if it is not a handle of T.
template <typename T>
std::shared_ptr<T> find_object(const void* handle) {
  const std::shared_ptr<Object> found = find_handle(handle);
  if (!found || found->kind() != T::kKind) return nullptr;
  return std::static_pointer_cast<T>(found);
}

/// The same; throws ArgumentError if it is not a handle of T.
template <typename T>
std::shared_ptr<T> object(const void* handle) {
  std::shared_ptr<T> found = find_object<T>(handle);
  if (!found) throw_wrong_handle(handle, T::kKind);
  return found;
}

/// Adds an object to the table and sets *result to its handle, of the C type H.
template <typename H, typename T>
void give(H** result, std::shared_ptr<T> object) {
  *result = static_cast<H*>(add_handle(std::move(object)));
}

}  // namespace steep::c_api
