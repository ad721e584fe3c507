#include "c_api/handles.h"

#include <fmt/format.h>

#include <mutex>
#include <shared_mutex>
#include <unordered_map>

#include "runtime/address_space.h"

namespace steep::c_api {
namespace {

/// The high bits of every handle. No address of a process has them, so no pointer can be mistaken
/// for a handle, and dereferencing a handle fails at once. In WebAssembly memory ends at 2 GiB
/// (cmake/wasm.cmake).
constexpr auto kMark =
    static_cast<uintptr_t>(kNarrowAddresses ? 0x8000'0000 : 0x57EE'0000'0000'0000);

struct Table {
  std::shared_mutex mutex;
  std::unordered_map<uintptr_t, std::shared_ptr<Object>> objects;
  uintptr_t last = kMark;
};

/// Never destroyed, because other threads and destructors of other libraries may still call the API
/// at exit.
Table& table() {
  static auto* const all = new Table;
  return *all;
}

uintptr_t number_of(const void* handle) { return reinterpret_cast<uintptr_t>(handle); }

}  // namespace

void* add_handle(std::shared_ptr<Object> object) {
  Table& t = table();
  const std::unique_lock lock(t.mutex);
  if (t.last == UINTPTR_MAX) {  // a number is never used twice
    throw OutOfMemoryError({.what = "There are no more handles.",
                            .expected = "at most 2^31 in a process",
                            .remedy = "Start a new process."});
  }
  t.objects.emplace(t.last + 1, std::move(object));
  return reinterpret_cast<void*>(++t.last);
}

std::shared_ptr<Object> find_handle(const void* handle) {
  Table& t = table();
  const std::shared_lock lock(t.mutex);
  const auto found = t.objects.find(number_of(handle));
  return found == t.objects.end() ? nullptr : found->second;
}

bool remove_handle(const void* handle, std::string_view kind) {
  Table& t = table();
  std::shared_ptr<Object> object;  // destroyed without the lock: that may take long
  const std::unique_lock lock(t.mutex);
  const auto found = t.objects.find(number_of(handle));
  if (found == t.objects.end() || found->second->kind() != kind) return false;
  object = std::move(found->second);
  t.objects.erase(found);
  return true;
}

void throw_wrong_handle(const void* handle, std::string_view kind) {
  std::string received = "NULL";
  if (handle != nullptr) {
    Table& t = table();
    const std::shared_lock lock(t.mutex);
    const uintptr_t number = number_of(handle);
    const auto found = t.objects.find(number);
    if (found != t.objects.end()) {
      received = fmt::format("a {}", found->second->kind());
    } else if (number > kMark && number <= t.last) {
      received = "a handle that was freed";
    } else {
      received = "an address that is not a handle";
    }
  }
  throw ArgumentError({.what = "A handle is not valid.",
                       .expected = fmt::format("a {}", kind),
                       .received = std::move(received)});
}

}  // namespace steep::c_api
