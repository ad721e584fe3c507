// A plug-in that lacks something that it needs, such as a driver.
#include "steep/provider.h"

extern "C" __attribute__((visibility("default"))) const SteepProvider* steep_provider_0(
    const SteepHost*);
extern "C" const SteepProvider* steep_provider_0(const SteepHost*) { return nullptr; }
