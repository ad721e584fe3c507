#include "runtime/zeros.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include "runtime/budget.h"
#include "runtime/counted.h"
#include "runtime/memory.h"
#include "steep/error.h"

namespace steep {

Tensor untouched_zeros(DType dtype, Dims dims) {
  constexpr size_t kLarge = size_t{1} << 20;
  const Tensor shape = Tensor::wrap(dtype, dims, nullptr, nullptr);
  const size_t bytes = shape.nbytes();
  if (bytes < kLarge) return Tensor::zeros(dtype, std::move(dims));
  if (bytes > current_limits().max_bytes)
    require_bytes(bytes, fmt::format("{}{}", name_of(dtype), to_string(dims)));
  void* p = !allocation_allowed(bytes)
                ? MAP_FAILED
                : mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) {
    throw OutOfMemoryError({.what = "Memory for a tensor could not be allocated.",
                            .received = fmt::format("{} of {}: {}", to_string(dims), name_of(dtype),
                                                    counted(bytes, "byte"))});
  }
  return Tensor::wrap(dtype, std::move(dims), p,
                      std::shared_ptr<void>(p, [bytes](void* block) { munmap(block, bytes); }));
}

}  // namespace steep
