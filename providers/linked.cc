// The provider that Steep's binaries contain. Another product may link another file in its place.
#include "steep/provider.h"

extern "C" const SteepProvider* steep_provider_0(const SteepHost* host);
extern "C" const SteepProvider* steep_linked_provider(const SteepHost* host);

extern "C" const SteepProvider* steep_linked_provider(const SteepHost* host) {
  return steep_provider_0(host);
}
