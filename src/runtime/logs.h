// What STEEP_LOGS asks to be told, and the telling. One registry, for the engine, the program and
// the Python front.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace steep {

/// In the order of log_kinds().
enum class Log : uint8_t {
  graphs,
  breaks,
  recompiles,
  passes,
  patterns,
  plan,
  memory,
  kernels,
  rows
};

struct LogKind {
  std::string_view name;
  std::string_view help;
};

std::span<const LogKind> log_kinds();

/// A line for each kind: what STEEP_LOGS=help prints.
std::string logs_help();

/// From now on tells of the kinds named, as in "passes,plan", and of no others; "" of none. "help"
/// is no kind: it prints logs_help(), once. Throws DataError, listing the kinds, for another name;
/// all is then as before.
void set_logs(std::string_view names);

/// Is it asked for? Reads STEEP_LOGS where neither this nor set_logs() was called before: throws
/// DataError as set_logs() does.
bool logs(Log kind);

/// Writes "[plan] " and each line of `text` to standard error, all at once.
void log(Log kind, std::string_view text);

}  // namespace steep
