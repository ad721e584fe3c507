// The oneDNN engine of the process and helpers for all kernels that use oneDNN.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "oneapi/dnnl/dnnl.hpp"
#include "providers/cpu/build_kernel.h"
#include "steep/dtype.h"
#include "steep/tensor.h"

namespace steep::cpu {

/// One engine for the process. Thread-safe.
const dnnl::engine& onednn_engine();

/// One stream per calling thread: CPU streams run in the caller, so sharing one has no benefit.
dnnl::stream& onednn_stream();

/// oneDNN's data type for a dtype; `undef` for unsupported dtypes.
dnnl::memory::data_type onednn_type(DType dtype);

/// Descriptor with element strides.
dnnl::memory::desc onednn_desc(DType dtype, const Dims& dims, const Dims& strides);

/// Whether oneDNN uses these instructions here: the processor has them, and ONEDNN_MAX_CPU_ISA
/// allows them.
bool onednn_uses(dnnl::cpu_isa isa);

/// Wraps memory. oneDNN wants non-const pointers even where it only reads.
inline dnnl::memory onednn_memory(const dnnl::memory::desc& desc, const void* data) {
  return {desc, onednn_engine(), const_cast<void*>(data)};
}

/// False when oneDNN has only its reference loops for a primitive.
template <typename PrimitiveDesc>
bool is_fast(const PrimitiveDesc& pd) {
  return std::string_view(pd.impl_info_str()).find("ref") == std::string_view::npos;
}

/// Makes a kernel K(args...). Declines when oneDNN has no primitive for it (K throws dnnl::error)
/// or only its reference loops (K::fast(), if there is one, returns false).
template <typename K, typename... Args>
std::unique_ptr<Kernel> make_onednn_kernel(std::string* why_not, Args&&... args) try {
  auto kernel = std::make_unique<K>(std::forward<Args>(args)...);
  if constexpr (requires { kernel->fast(); }) {
    if (!kernel->fast()) return decline(why_not, "oneDNN has only slow loops for this");
  }
  return kernel;
} catch (const dnnl::error& error) {
  return decline(why_not, "{}", error.what());
}

/// Rethrows a failure of an execution as ProviderError with the name of the primitive.
[[noreturn]] void throw_onednn(const dnnl::error& error, const char* primitive);

}  // namespace steep::cpu
