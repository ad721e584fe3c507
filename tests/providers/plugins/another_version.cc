// A plug-in for a later version of the provider interface.
#include "steep/provider.h"

extern "C" __attribute__((visibility("default"))) const SteepProvider* steep_provider_7(
    const SteepHost*);
extern "C" const SteepProvider* steep_provider_7(const SteepHost*) { return nullptr; }
