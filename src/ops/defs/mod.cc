// y = a - q b with an integer q: rounded to zero (fmod = 1) or down
#include "ops/build.h"
#include "ops/shape_arithmetic.h"

namespace steep {
namespace {

Grads mod_vjp(Node n, const Grads& dy) {
  Value a = n.input(0), b = n.input(1);
  Value q = apply("Round", {(a - n.output(0)) / b});
  return {dy[0], -(dy[0] * q)};
}

}  // namespace

extern const OpDef kMod = {.name = "Mod",
                           .attributes = {{"fmod", 0}},
                           .elementwise = true,
                           .vjp = mod_vjp,
                           .elements = elements::mod};

}  // namespace steep
