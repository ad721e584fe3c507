// Converts exceptions at interfaces that exceptions must not cross.
#pragma once

#include "steep/error.h"
#include "steep/provider.h"

namespace steep {

/// The parts of an error of include/steep/provider.h.
struct CaughtError {
  SteepErrorKind kind;
  ErrorParts parts;
};

/// Converts the current exception. `failure` ("A kernel failed.") is the text for exceptions that
/// are not Steep's. REQUIRES: called inside a catch clause.
CaughtError caught_error(const char* failure);

}  // namespace steep
