// Registers operators that providers offer.
#pragma once

#include "device/device.h"

namespace steep {

/// Registers the operators that a provider adds (SteepProvider::ops): all, or none if one is not
/// valid. Throws ProviderError that names the first such operator.
void take_offers(const Provider& provider);

}  // namespace steep
