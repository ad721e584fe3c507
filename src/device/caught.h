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

/// The exception that is being handled, as text. `failed` ("A kernel failed.") describes exceptions
/// that are not Steep's. REQUIRES: called inside a catch block.
CaughtError caught_error(const char* failed);

}  // namespace steep
