// A plug-in that breaks the rule that no exception may leave it.
#include <stdexcept>

#include "steep/provider.h"

extern "C" __attribute__((visibility("default"))) const SteepProvider* steep_provider_0(
    const SteepHost*);
extern "C" const SteepProvider* steep_provider_0(const SteepHost*) {
  throw std::runtime_error("the driver is too old");
}
