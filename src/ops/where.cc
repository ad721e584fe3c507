// y = condition ? a : b
#include "ops/build.h"

namespace steep {
namespace {

Grads where_vjp(Node n, const Grads& dy) {
  Value condition = n.input(0);
  return {Value(), where(condition, dy[0], 0), where(condition, 0, dy[0])};
}

}  // namespace

extern const OpDef kWhere = {.name = "Where", .elementwise = true, .vjp = where_vjp};

}  // namespace steep
