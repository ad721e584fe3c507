// A plug-in that offers nothing.
#include "steep/provider.h"

extern "C" __attribute__((visibility("default"))) const SteepProvider* steep_provider_0(
    const SteepHost*);
extern "C" const SteepProvider* steep_provider_0(const SteepHost*) {
  static SteepProvider empty{};
  empty.size = sizeof(empty);
  return &empty;
}
