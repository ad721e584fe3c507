// Typed errors, with one base class. By cause:
//   the user's model or data   ModelError, ShapeError, DataError
//   the environment            ProviderError, CheckpointError, OutOfMemoryError, IoError
//   the caller                 InterruptedError
//   a bug in Steep             InternalError
// Every message names, as far as they exist, the node, the op, what was expected, what was
// received, and the remedy.
#pragma once

#include <stdexcept>
#include <string>

namespace steep {

/// The parts of a message. Empty parts are left out of the text.
struct ErrorParts {
  std::string what{};      ///< one sentence: what went wrong
  std::string node{};      ///< name of the node; if there is none, of the value or file
  std::string op{};        ///< operator of the node, e.g. "MatMul"
  std::string expected{};  ///< a value that would have been accepted
  std::string received{};  ///< the value that was found instead
  std::string remedy{};    ///< what the user can do
};

/// Base class of all exceptions that Steep throws. Immutable; safe to copy between threads.
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
STEEP_ERROR(DataError);         // wrong values in the input: label out of range, missing input
STEEP_ERROR(ProviderError);     // no kernel for a node on this provider, or the device failed
STEEP_ERROR(CheckpointError);   // a checkpoint is damaged or belongs to another model
STEEP_ERROR(OutOfMemoryError);  // memory cannot be allocated
STEEP_ERROR(IoError);           // a file could not be read or written
STEEP_ERROR(InterruptedError);  // the call was asked to stop (steep/limits.h)
STEEP_ERROR(InternalError);     // a bug in Steep; please report it

#undef STEEP_ERROR

}  // namespace steep
