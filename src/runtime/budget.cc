#include "runtime/budget.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <string_view>

#include "runtime/counted.h"
#include "runtime/parse_bytes.h"

namespace steep {
namespace {

std::atomic<bool (*)()> interrupt_check{nullptr};

thread_local const Limits* present = nullptr;
thread_local int uninterrupted = 0;

constexpr size_t kMiB = size_t{1} << 20;  // smaller sizes are printed in bytes

constexpr const char* kRemedy =
    "If this is intended, raise Limits::max_bytes (max_bytes= in Python, --max-bytes, "
    "STEEP_MAX_BYTES); else use smaller shapes.";

/// The limit in a file of the control groups; SIZE_MAX if it is "max" or there is no file.
size_t bound_in(const std::string& path) {
  std::ifstream file(path);
  size_t value = 0;
  return file >> value ? value : SIZE_MAX;
}

/// The limit of this process's control group and of its parents, as far as they are visible.
size_t cgroup_bound() {
  size_t least = std::min(bound_in("/sys/fs/cgroup/memory.max"),
                          bound_in("/sys/fs/cgroup/memory/memory.limit_in_bytes"));
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const bool unified = line.starts_with("0::");
    const size_t at = line.find(":memory:");
    if (!unified && at == std::string::npos) continue;
    std::string path = line.substr(unified ? 3 : at + 8);
    const std::string root = unified ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
    const char* name = unified ? "/memory.max" : "/memory.limit_in_bytes";
    while (!path.empty() && path != "/") {
      least = std::min(least, bound_in(root + path + name));
      path.resize(std::min(path.rfind('/'), path.size()));
    }
  }
  return least;
}

}  // namespace

size_t default_max_bytes() {
  static const size_t bytes = [] {
    if (const char* text = std::getenv("STEEP_MAX_BYTES")) {
      if (const size_t wish = parse_bytes(text); wish > 0) return wish;
      throw DataError(
          {.what = "STEEP_MAX_BYTES cannot be read.",
           .node = "STEEP_MAX_BYTES",
           .expected = "a number of bytes, as in 8G",
           .received = text,
           .remedy = "Correct the variable, or unset it: three quarters of the memory."});
    }
    const auto pages = static_cast<size_t>(std::max(sysconf(_SC_PHYS_PAGES), 1L));
    size_t most = pages * static_cast<size_t>(sysconf(_SC_PAGESIZE));
    most = std::min(most, cgroup_bound());
    for (const auto resource : {RLIMIT_AS, RLIMIT_DATA}) {
      rlimit limit{};
      if (getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        most = std::min<size_t>(most, limit.rlim_cur);
    }
    return most / 4 * 3;
  }();
  return bytes;
}

void set_interrupt_check(bool (*stop)()) { interrupt_check = stop; }

Budget::Budget(const Limits& limits) : before_(present) { present = &limits; }
Budget::~Budget() { present = before_; }

Uninterrupted::Uninterrupted() { ++uninterrupted; }
Uninterrupted::~Uninterrupted() { --uninterrupted; }

const Limits& current_limits() {
  static const Limits defaults;
  return present != nullptr ? *present : defaults;
}

void require_bytes(size_t bytes, const std::string& received) {
  const size_t most = current_limits().max_bytes;
  if (bytes <= most) return;
  throw OutOfMemoryError({.what = "A value exceeds the memory budget.",
                          .expected = "at most " + bytes_text(most),
                          .received = received + ": " + bytes_text(bytes),
                          .remedy = kRemedy});
}

void poll() {
  using Clock = std::chrono::steady_clock;
  constexpr auto kEvery = std::chrono::milliseconds(100);
  thread_local Clock::time_point next = Clock::now() + kEvery;
  if (present == nullptr || uninterrupted > 0) return;
  const Clock::time_point now = Clock::now();
  if (now < next) return;
  next = now + kEvery;
  bool (*stop)() = interrupt_check;
  if (stop != nullptr && stop()) throw InterruptedError({.what = "The call was interrupted."});
}

void throw_no_memory(const std::string& node, const std::string& op) {
  throw OutOfMemoryError({.what = "There is not enough memory for a node.",
                          .node = node,
                          .op = op,
                          .remedy = "Use smaller shapes, or give the process more memory."});
}

void rethrow_at(const OutOfMemoryError& error, const std::string& node, const std::string& op) {
  ErrorParts parts = error.parts();
  if (!parts.op.empty()) throw error;
  parts.node = node;
  parts.op = op;
  throw OutOfMemoryError(std::move(parts));
}

std::string bytes_text(size_t bytes) {
  if (bytes < kMiB) return counted(bytes, "byte");
  const bool large = bytes >= size_t{1} << 30;
  return fmt::format("{:.1f} {}", static_cast<double>(bytes) / (large ? 1 << 30 : 1 << 20),
                     large ? "GiB" : "MiB");
}

std::string exact_bytes_text(size_t bytes) {
  if (bytes < kMiB) return bytes_text(bytes);
  return fmt::format("{} ({} bytes)", bytes_text(bytes), bytes);
}

}  // namespace steep
