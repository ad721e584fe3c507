// The registry of log messages, which STEEP_LOGS enables by kind. The engine, the program and the
// Python package share it.
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

/// A line for each kind: the output of STEEP_LOGS=help.
std::string logs_help();

/// Enables exactly the named kinds, as in "passes,plan"; "" disables all. "help" is not a kind: it
/// prints logs_help() once. Throws DataError, which lists the kinds, for another name; then nothing
/// changes.
void set_logs(std::string_view names);

/// Whether the kind is enabled. The first call reads STEEP_LOGS, unless set_logs() was called
/// before; it throws DataError as set_logs() does.
bool logs(Log kind);

/// Writes "[plan] " and each line of `text` to standard error, in a single write.
void log(Log kind, std::string_view text);

}  // namespace steep
