// A plug-in with an operator whose decomposition is no valid function.
#include <cstring>

#include "steep/provider.h"

extern "C" __attribute__((visibility("default"))) const SteepProvider* steep_provider_0(
    const SteepHost*);

static const SteepOp* ops(size_t* count) {
  static SteepOp op{};
  op.size = sizeof(op);
  op.domain = "bad";
  op.name = "Half";
  op.version = op.inputs = op.outputs = 1;
  op.decomposition = "<domain: \"bad\", opset_import: [\"\": 18]> Half (x) => (y) { y = }";
  op.decomposition_size = std::strlen(op.decomposition);
  *count = 1;
  return &op;
}

extern "C" const SteepProvider* steep_provider_0(const SteepHost*) {
  static SteepProvider p{};
  p.size = sizeof(p);
  p.name = "BadOperator";
  p.flags = STEEP_HOST_MEMORY;
  p.devices = [](SteepDeviceInfo*, size_t, size_t* count) -> SteepError* {
    *count = 0;
    return nullptr;
  };
  p.open = [](int, const char* const*, void**) -> SteepError* { return nullptr; };
  p.close = [](void*) {};
  p.candidates = [](void*, const char*, size_t* count) -> const SteepCandidate* {
    *count = 0;
    return nullptr;
  };
  p.ops = ops;
  return &p;
}
