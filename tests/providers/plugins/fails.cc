// Plug-ins that fail while they are loaded, each at the call that FAILS_AT names.
#include <stdexcept>

#include "steep/provider.h"

namespace {

[[maybe_unused]] constexpr int kEntry = 1, kDevices = 2, kThrowsOfDevices = 3, kOperators = 4,
                               kName = 5, kBytes = 6, kNoTable = 7, kSize = 8;

const SteepHost* host = nullptr;

SteepError* devices(SteepDeviceInfo*, size_t, size_t* count) {
  *count = 1;
  if (FAILS_AT == kThrowsOfDevices) throw std::runtime_error("the bus is gone");
  if (FAILS_AT != kDevices) return nullptr;
  SteepErrorText text{};
  text.size = sizeof(text);
  text.what = "The driver does not answer.";
  return host->error(STEEP_PROVIDER, &text);
}

const SteepOp* operators(size_t* count) {
  static const SteepOp small{};
  *count = FAILS_AT == kNoTable || FAILS_AT == kSize ? 3 : 0;
  if (FAILS_AT == kSize) return &small;
  if (FAILS_AT == kOperators) throw std::runtime_error("its table is gone");
  return nullptr;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const SteepProvider* steep_provider_0(
    const SteepHost*);
extern "C" const SteepProvider* steep_provider_0(const SteepHost* given) {
  if (FAILS_AT == kEntry) throw 42;  // no std::exception
  host = given;
  static SteepProvider p{};
  p.size = sizeof(p);
  p.name = FAILS_AT == kName ? "CPU" : FAILS_AT == kBytes ? "\xff\xfe" : "Failing";
  p.flags = STEEP_HOST_MEMORY;
  p.devices = devices;
  p.open = [](int, const char* const*, void**) -> SteepError* { return nullptr; };
  p.close = [](void*) {};
  p.candidates = [](void*, const char*, size_t* count) -> const SteepCandidate* {
    *count = 0;
    return nullptr;
  };
  p.ops = operators;
  return &p;
}
