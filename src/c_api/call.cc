#include "c_api/call.h"

#include <fmt/format.h>

#include <exception>
#include <new>
#include <utility>

#include "steep/parallel.h"

namespace steep::c_api {
namespace {

class ErrorObject : public Object {
 public:
  static constexpr std::string_view kKind = "steep_error";
  ErrorObject(steep_code code, std::string message, ErrorParts parts)
      : code(code), message(std::move(message)), parts(std::move(parts)) {}
  std::string_view kind() const override { return kKind; }

  const steep_code code;
  const std::string message;
  const ErrorParts parts;
};

/// A single static error for the case that there is no memory to make an error. It is not in the
/// table of handles.
steep_error* no_memory() {
  static char place = 0;
  return reinterpret_cast<steep_error*>(&place);
}
constexpr const char* kNoMemory = "There is not enough memory.";

steep_code made(steep_error** error, steep_code code, std::string message, ErrorParts parts) {
  if (error != nullptr) {
    give(error, std::make_shared<ErrorObject>(code, std::move(message), std::move(parts)));
  }
  return code;
}

steep_code made(steep_error** error, steep_code code, const Error& exception) {
  return made(error, code, exception.what(), exception.parts());
}

steep_code made(steep_error** error, steep_code code, const char* what) {
  return made(error, code, what, ErrorParts{.what = what});
}

steep_code translated(steep_error** error) {
  try {
    throw;
  } catch (const ArgumentError& e) {
    return made(error, STEEP_ERROR_ARGUMENT, e);
  } catch (const ModelError& e) {
    return made(error, STEEP_ERROR_MODEL, e);
  } catch (const ShapeError& e) {
    return made(error, STEEP_ERROR_SHAPE, e);
  } catch (const DataError& e) {
    return made(error, STEEP_ERROR_DATA, e);
  } catch (const PeerLostError& e) {
    return made(error, STEEP_ERROR_PEER_LOST, e);
  } catch (const ProviderError& e) {
    return made(error, STEEP_ERROR_PROVIDER, e);
  } catch (const CheckpointError& e) {
    return made(error, STEEP_ERROR_CHECKPOINT, e);
  } catch (const OutOfMemoryError& e) {
    return made(error, STEEP_ERROR_OUT_OF_MEMORY, e);
  } catch (const IoError& e) {
    return made(error, STEEP_ERROR_IO, e);
  } catch (const InterruptedError& e) {
    return made(error, STEEP_ERROR_INTERRUPTED, e);
  } catch (const Error& e) {
    return made(error, STEEP_ERROR_INTERNAL, e);
  } catch (const std::bad_alloc&) {
    return made(error, STEEP_ERROR_OUT_OF_MEMORY, kNoMemory);
  } catch (const std::exception& e) {
    return made(error, STEEP_ERROR_INTERNAL, e.what());
  } catch (...) {
    return made(error, STEEP_ERROR_INTERNAL, "An unknown exception was thrown.");
  }
}

/// A part of an error's text; "" if the handle is invalid.
template <typename Part>
const char* part_of(const steep_error* error, const char* of_no_memory, Part&& part) noexcept {
  if (error == no_memory()) return of_no_memory;
  const auto found = find_object<ErrorObject>(error);
  return found ? part(*found).c_str() : "";
}

}  // namespace

steep_code caught(steep_error** error) noexcept {
  try {
    return translated(error);
  } catch (...) {  // no memory for the error object
    if (error != nullptr) *error = no_memory();
    return STEEP_ERROR_OUT_OF_MEMORY;
  }
}

void require(const void* pointer, const char* argument) {
  if (pointer != nullptr) return;
  throw ArgumentError({.what = "An argument is NULL.",
                       .node = argument,
                       .expected = "a pointer",
                       .received = "NULL"});
}

std::string text(const char* value, const char* argument) {
  require(value, argument);
  return value;
}

std::span<const std::byte> bytes_of(const void* model, size_t size) {
  require(model, "model");
  return {static_cast<const std::byte*>(model), size};
}

std::vector<std::string> texts(const char* const* values, size_t count, const char* argument) {
  if (count > 0) require(values, argument);
  std::vector<std::string> result;
  for (size_t i = 0; i < count; ++i) result.push_back(text(values[i], argument));
  return result;
}

}  // namespace steep::c_api

namespace {
using namespace steep::c_api;
using std::string;
}  // namespace

extern "C" {

steep_code steep_error_code(const steep_error* error) {
  if (error == nullptr) return STEEP_OK;
  if (error == no_memory()) return STEEP_ERROR_OUT_OF_MEMORY;
  const auto found = find_object<ErrorObject>(error);
  return found ? found->code : STEEP_ERROR_ARGUMENT;
}

const char* steep_error_message(const steep_error* error) {
  return part_of(error, kNoMemory, [](const auto& e) -> const string& { return e.message; });
}
const char* steep_error_what(const steep_error* error) {
  return part_of(error, kNoMemory, [](const auto& e) -> const string& { return e.parts.what; });
}
const char* steep_error_node(const steep_error* error) {
  return part_of(error, "", [](const auto& e) -> const string& { return e.parts.node; });
}
const char* steep_error_op(const steep_error* error) {
  return part_of(error, "", [](const auto& e) -> const string& { return e.parts.op; });
}
const char* steep_error_expected(const steep_error* error) {
  return part_of(error, "", [](const auto& e) -> const string& { return e.parts.expected; });
}
const char* steep_error_received(const steep_error* error) {
  return part_of(error, "", [](const auto& e) -> const string& { return e.parts.received; });
}
const char* steep_error_remedy(const steep_error* error) {
  return part_of(error, "", [](const auto& e) -> const string& { return e.parts.remedy; });
}

steep_code steep_error_free(steep_error* error) {
  return error == no_memory() ? STEEP_OK : release<ErrorObject>(error);
}

}  // extern "C"
