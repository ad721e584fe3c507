// Optionals hold a tensor, a sequence, or nothing. Their content passes unchanged, and so does its
// gradient.
#include "ops/build.h"

namespace steep {
namespace {

Grads pass(Node n, const Grads& dy) {
  static_cast<void>(n);
  return {dy[0]};
}

}  // namespace

extern const OpDef kOptional = {.name = "Optional", .dynamic = true, .vjp = pass};
extern const OpDef kOptionalGetElement = {
    .name = "OptionalGetElement", .dynamic = true, .vjp = pass};
extern const OpDef kOptionalHasElement = {
    .name = "OptionalHasElement", .stops_gradient = true, .dynamic = true};

}  // namespace steep
