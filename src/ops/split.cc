// Cuts x along one axis
#include "ops/build.h"

namespace steep {
namespace {

Grads split_vjp(Node n, const Grads& dy) {
  Grads parts = dy;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (!parts[i]) parts[i] = zeros_like(n.output(static_cast<int>(i)));
  }
  return {concat(parts, n.attrs().integer("axis", 0))};
}

}  // namespace

extern const OpDef kSplit = {.name = "Split", .vjp = split_vjp};

}  // namespace steep
