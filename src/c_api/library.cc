// Functions on the library as a whole: versions, names, interrupts. Part of the runtime, too.
#include <array>
#include <atomic>

#include "c_api/call.h"
#include "steep/dtype.h"
#include "steep/limits.h"

namespace steep::c_api {
namespace {

static_assert(static_cast<int>(DType::f32) == STEEP_DTYPE_FLOAT32);
static_assert(static_cast<int>(DType::boolean) == STEEP_DTYPE_BOOL);
static_assert(static_cast<int>(DType::bf16) == STEEP_DTYPE_BFLOAT16);
static_assert(static_cast<int>(DType::f8e4m3fn) == STEEP_DTYPE_FLOAT8E4M3FN);
static_assert(static_cast<int>(DType::f8e8m0) == STEEP_DTYPE_FLOAT8E8M0);
static_assert(static_cast<int>(DType::f6e3m2) == STEEP_DTYPE_FLOAT6E3M2);

constexpr std::array kCodeNames{"OK",
                                "ModelError",
                                "ShapeError",
                                "DataError",
                                "ProviderError",
                                "CheckpointError",
                                "OutOfMemoryError",
                                "IoError",
                                "InterruptedError",
                                "InternalError",
                                "ArgumentError",
                                "PeerLostError"};
static_assert(kCodeNames.size() == STEEP_ERROR_PEER_LOST + 1);

std::atomic<int (*)(void)> stop_query = nullptr;

bool asks() {
  int (*const stop)(void) = stop_query;
  return stop != nullptr && stop() != 0;
}

}  // namespace
}  // namespace steep::c_api

using namespace steep::c_api;  // NOLINT: functions of C are in no namespace

extern "C" {

const char* steep_version(void) { return STEEP_VERSION; }

const char* steep_code_name(int32_t code) {
  const bool known = code >= 0 && code < static_cast<int32_t>(kCodeNames.size());
  return known ? kCodeNames.at(static_cast<size_t>(code)) : "";
}

// name_of() returns literals, so each name ends with a NUL.
const char* steep_dtype_name(int32_t dtype) {
  return steep::name_of(static_cast<steep::DType>(dtype)).data();  // NOLINT
}

size_t steep_dtype_size(int32_t dtype) { return steep::size_of(static_cast<steep::DType>(dtype)); }

void steep_set_interrupt_check(int (*stop)(void)) {
  stop_query = stop;
  steep::set_interrupt_check(stop == nullptr ? nullptr : asks);
}

}  // extern "C"
