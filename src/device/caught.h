// Exceptions on their way to a boundary that they may not cross.
#pragma once

#include "steep/error.h"
#include "steep/provider.h"

namespace steep {

/// What include/steep/provider.h has in place of an exception.
struct CaughtError {
  SteepErrorKind kind;
  ErrorParts parts;
};

/// What is being caught. `failed` says what failed ("A kernel failed.") where the exception is none
/// of ours. REQUIRES: a catch under way.
CaughtError caught_error(const char* failed);

}  // namespace steep
