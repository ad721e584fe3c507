#pragma once

#include "device/device.h"

namespace steep {

/// Registers the operators of a provider's own (SteepProvider::ops), all or none. Throws
/// ProviderError naming the first that cannot be.
void take_offers(const Provider& provider);

}  // namespace steep
