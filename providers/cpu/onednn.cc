#include "providers/cpu/onednn.h"

#include <fmt/format.h>

#include "providers/cpu/isa.h"
#include "steep/error.h"

namespace steep::cpu {

void require_own_onednn() {
#ifdef STEEP_OWN_ONEDNN
  const dnnl_version_t& v = *dnnl_version();
  if (v.major == DNNL_VERSION_MAJOR && v.minor == DNNL_VERSION_MINOR &&
      v.patch == DNNL_VERSION_PATCH && v.cpu_runtime == DNNL_CPU_RUNTIME) {
    return;
  }
  throw ProviderError(
      {.what = "Another library of oneDNN takes the place of the one that Steep brings.",
       .expected = fmt::format("oneDNN {}.{}.{} with OpenMP, {}", DNNL_VERSION_MAJOR,
                               DNNL_VERSION_MINOR, DNNL_VERSION_PATCH, STEEP_OWN_ONEDNN),
       .received = fmt::format("oneDNN {}.{}.{}{}", v.major, v.minor, v.patch,
                               v.cpu_runtime == DNNL_CPU_RUNTIME ? "" : " with other threads"),
       .remedy = "Do not load that library for all: neither by LD_PRELOAD, nor with RTLD_GLOBAL, "
                 "nor by linking it into the program beside libsteep."});
#endif
}

const dnnl::engine& onednn_engine() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

dnnl::stream& onednn_stream() {
  thread_local dnnl::stream stream(onednn_engine());
  return stream;
}

bool onednn_uses(dnnl::cpu_isa isa) {
  const auto bits = static_cast<unsigned>(isa);  // includes the bits of older ISAs
  return (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & bits) == bits;
}

dnnl::memory::data_type onednn_type(DType dtype) {
  using T = dnnl::memory::data_type;
  switch (dtype) {
    case DType::f32: return T::f32;
    case DType::bf16: return T::bf16;
    case DType::f16: return T::f16;
    default: return T::undef;
  }
}

dnnl::memory::desc onednn_desc(DType dtype, const Dims& dims, const Dims& strides) {
  return {dims, onednn_type(dtype), strides};
}

void throw_onednn(const dnnl::error& error, const char* primitive) {
  throw ProviderError({.what = "oneDNN could not run a primitive",
                       .op = primitive,
                       .expected = "success",
                       .received = error.what(),
                       .remedy = "free some memory or use fewer threads, then try again"});
}

}  // namespace steep::cpu
