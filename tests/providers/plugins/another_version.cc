// A plug-in of a version of the boundary that is yet to come.
#include "steep/provider.h"

extern "C" __attribute__((visibility("default"))) const SteepProvider* steep_provider_7(
    const SteepHost*);
extern "C" const SteepProvider* steep_provider_7(const SteepHost*) { return nullptr; }
