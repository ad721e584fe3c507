// The sample plug-in of examples/provider, loaded once for all tests that need it.
#pragma once

#include <string>
#include <vector>

#include "steep/providers.h"

namespace steep::testing {

/// Runs on Mirror; nodes that it declines run on the CPU.
inline std::vector<ProviderChoice> on_mirror() {
  static const std::string name = register_provider(STEEP_MIRROR);
  return {{name, {{"memory_mb", "256"}}}};
}

}  // namespace steep::testing
