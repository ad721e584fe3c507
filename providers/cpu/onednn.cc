#include "providers/cpu/onednn.h"

#include "steep/error.h"

namespace steep::cpu {

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
