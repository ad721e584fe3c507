#include "runtime/logs.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>

#include "steep/error.h"

namespace steep {
namespace {

constexpr std::array<LogKind, 9> kKinds{{
    {"graphs", "each graph, as it was captured or read, before shapes are bound"},
    {"breaks", "the parts of a module that PyTorch runs, and why (ORTModule)"},
    {"recompiles", "why a module is captured, or a graph planned, again"},
    {"passes", "each pass over a graph: nodes before and after, milliseconds"},
    {"patterns", "each row of a pass that matches, and at which node"},
    {"plan", "each planned graph: its steps with their kernels and memory"},
    {"memory", "bytes of each plan: arena, results, constants"},
    {"kernels", "how often a plan runs each kernel, and the nodes that a device left to others"},
    {"rows", "whether tokens that masks hide are left out, or who reads them"},
}};

constexpr uint32_t kUnread = uint32_t{1} << 31;
std::atomic<uint32_t> requests = kUnread;  // one bit per kind

std::string known() {
  std::string names;
  for (const LogKind& kind : kKinds) names += fmt::format("{}, ", kind.name);
  return names + "help";
}

uint32_t bit_of(std::string_view name) {
  for (size_t i = 0; i < kKinds.size(); ++i) {
    if (kKinds[i].name == name) return uint32_t{1} << i;
  }
  throw DataError({.what = "There is no log of this name.",
                   .node = "STEEP_LOGS",
                   .expected = known(),
                   .received = std::string(name),
                   .remedy = "Join names by commas: STEEP_LOGS=passes,plan."});
}

}  // namespace

std::span<const LogKind> log_kinds() { return kKinds; }

std::string logs_help() {
  std::string text = "STEEP_LOGS=NAME[,NAME…] writes to standard error:\n";
  for (const LogKind& kind : kKinds) text += fmt::format("  {:<11} {}\n", kind.name, kind.help);
  return text;
}

void set_logs(std::string_view names) {
  uint32_t bits = 0;
  if (names == "help") {
    std::fputs(logs_help().c_str(), stderr);
    names = "";
  }
  for (size_t at = 0; at < names.size();) {
    const size_t end = std::min(names.find(',', at), names.size());
    bits |= bit_of(names.substr(at, end - at));
    at = end + 1;
  }
  requests = bits;
}

bool logs(Log kind) {
  uint32_t now = requests.load(std::memory_order_relaxed);
  if (now == kUnread) {
    const char* names = std::getenv("STEEP_LOGS");
    set_logs(names == nullptr ? "" : names);
    now = requests;
  }
  return (now >> static_cast<unsigned>(kind) & 1U) != 0;
}

void log(Log kind, std::string_view text) {
  const std::string_view name = kKinds.at(static_cast<size_t>(kind)).name;
  std::string lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    lines += fmt::format("[{}] {}\n", name, text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  std::fputs(lines.c_str(), stderr);
}

}  // namespace steep
