// The objects behind the C API's handles. A handle is the number of an object in a table, dressed
// as a pointer: it is looked up, never followed, and never given twice. So a null, freed or wrong
// handle is an error whatever the caller does, and an object lives for as long as a call uses it,
// even when another thread frees its handle meanwhile.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "steep/error.h"

namespace steep::c_api {

/// The caller got the call itself wrong: a null pointer, a wrong handle, an unknown option.
class ArgumentError : public Error {
 public:
  using Error::Error;
};

/// What a handle can stand for. Each has kKind, the name of its type in steep_c.h.
class Object {
 public:
  Object() = default;
  virtual ~Object() = default;
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;
  virtual std::string_view kind() const = 0;
};

/// Thread-safe, as all of these.
void* add_handle(std::shared_ptr<Object> object);
/// Null for what is no handle (any more).
std::shared_ptr<Object> find_handle(const void* handle);
/// False, and nothing happens, unless it is a handle of this kind.
bool remove_handle(const void* handle, std::string_view kind);
/// Throws ArgumentError: `handle` stands for no object of the kind; says what it is instead.
[[noreturn]] void throw_wrong_handle(const void* handle, std::string_view kind);

/// Of C++'s type T behind a handle of C's; null when it is none.
template <typename T>
std::shared_ptr<T> find_object(const void* handle) {
  const std::shared_ptr<Object> found = find_handle(handle);
  if (!found || found->kind() != T::kKind) return nullptr;
  return std::static_pointer_cast<T>(found);
}

/// The same; throws ArgumentError when it is none.
template <typename T>
std::shared_ptr<T> object(const void* handle) {
  std::shared_ptr<T> found = find_object<T>(handle);
  if (!found) throw_wrong_handle(handle, T::kKind);
  return found;
}

/// Gives an object to the caller: *result is its handle, of C's type H.
template <typename H, typename T>
void give(H** result, std::shared_ptr<T> object) {
  *result = static_cast<H*>(add_handle(std::move(object)));
}

}  // namespace steep::c_api
