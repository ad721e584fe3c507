#include "runtime/headroom.h"

#include <sys/mman.h>
#include <sys/resource.h>

#include "runtime/budget.h"
#include "steep/error.h"

namespace steep {
namespace {

bool limited() {
  for (const auto resource : {RLIMIT_AS, RLIMIT_DATA}) {
    rlimit limit{};
    if (getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) return true;
  }
  return false;
}

}  // namespace

Headroom::Headroom(size_t bytes) : bytes_(bytes) {
  if (bytes == 0 || !limited()) return;
  // Mapped pages count in full against these limits, but use no memory before they are touched.
  constexpr int kKind = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* const p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, kKind, -1, 0);
  there_ = p != MAP_FAILED;
  if (there_) block_ = p;
}

Headroom::~Headroom() {
  if (block_ != nullptr) munmap(block_, bytes_);
}

void require_headroom(size_t bytes) {
  if (Headroom(bytes).there()) return;
  throw OutOfMemoryError(
      {.what = "The process is about to reach its limit of memory.",
       .expected = "room for " + bytes_text(bytes) + " within the limits (ulimit -v, ulimit -d)",
       .received = "less",
       .remedy = "Raise the limit, or use fewer threads (OMP_NUM_THREADS), smaller shapes or a "
                 "smaller model."});
}

}  // namespace steep
