// The runtime (STEEP_RUNTIME), and the library that is built with STEEP_ONEDNN=OFF, have no oneDNN:
// Steep's own kernels compute all nodes.
#include "providers/cpu/build_kernel.h"
#include "providers/cpu/choice.h"
#include "providers/cpu/cpu.h"
#include "providers/cpu/isa.h"
#include "providers/cpu/matmul.h"

namespace steep::cpu {

void require_own_onednn() {}
bool has_products(DType) { return false; }
bool widens_bf16(ProductKind) { return true; }
std::string product_table(bool) { return {}; }

std::unique_ptr<Kernel> make_onednn_matmul(const NodeSpec&, std::string* why_not) {
  return decline(why_not, "this library is built without oneDNN");
}

}  // namespace steep::cpu
