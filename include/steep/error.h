// Typed errors. Kinds of cause, one base class:
//   the user's model or data   ModelError, ShapeError, DataError
//   the environment            ProviderError, CheckpointError, OutOfMemoryError, IoError
//   the caller                 InterruptedError
//   a bug of ours              InternalError
// Every message names, where they exist, the node, the op, what was expected, what came, and the
// remedy.
#pragma once

#include <stdexcept>
#include <string>

namespace steep {

/// The parts of a message. Empty parts are left out of the text.
struct ErrorParts {
  std::string what{};      ///< one sentence: what went wrong
  std::string node{};      ///< name of the node, or of the value or file where there is no node
  std::string op{};        ///< operator of the node, e.g. "MatMul"
  std::string expected{};  ///< what would have been right
  std::string received{};  ///< what was found instead
  std::string remedy{};    ///< what the user can do
};

/// Base of everything that Steep throws. Immutable; safe to copy between threads.
class Error : public std::runtime_error {
 public:
  explicit Error(ErrorParts parts);
  explicit Error(const char* what) : Error(ErrorParts{.what = what}) {}
  const ErrorParts& parts() const noexcept { return parts_; }

 private:
  ErrorParts parts_;
};

#define STEEP_ERROR(Name)     \
  class Name : public Error { \
   public:                    \
    using Error::Error;       \
  }

STEEP_ERROR(ModelError);        // the ONNX model cannot be read, or cannot be trained
STEEP_ERROR(ShapeError);        // a shape or dtype disagrees with the model
STEEP_ERROR(DataError);         // the values fed are wrong: label out of range, missing input
STEEP_ERROR(ProviderError);     // no kernel for a node on this provider, or the device failed
STEEP_ERROR(CheckpointError);   // a checkpoint is damaged or belongs to another model
STEEP_ERROR(OutOfMemoryError);  // memory cannot be allocated
STEEP_ERROR(IoError);           // a file could not be read or written
STEEP_ERROR(InterruptedError);  // the call was asked to stop (steep/limits.h)
STEEP_ERROR(InternalError);     // a bug in Steep; please report it

#undef STEEP_ERROR

}  // namespace steep
