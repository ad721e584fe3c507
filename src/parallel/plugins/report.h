// Exceptions of a library as the text that the interface of plug-ins hands on.
#pragma once

#include <cstddef>
#include <cstdio>
#include <exception>

namespace steep::comm {

/// Calls f. Returns 0, or 1 and the text of an exception.
template <typename F>
int report(char* error, size_t room, F&& f) {
  try {
    f();
    return 0;
  } catch (const std::exception& e) {
    std::snprintf(error, room, "%s", e.what());
  } catch (...) {
    std::snprintf(error, room, "an exception");
  }
  return 1;
}

}  // namespace steep::comm
