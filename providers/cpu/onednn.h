// The process's oneDNN engine and what every oneDNN-backed kernel needs around it.
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

/// One stream for each calling thread: CPU streams run in the caller, so sharing one buys nothing.
dnnl::stream& onednn_stream();

/// oneDNN's name for a dtype; `undef` for those that it does not know.
dnnl::memory::data_type onednn_type(DType dtype);

/// Descriptor with element strides.
dnnl::memory::desc onednn_desc(DType dtype, const Dims& dims, const Dims& strides);

/// Whether oneDNN uses these instructions here: the processor has them, and ONEDNN_MAX_CPU_ISA
/// allows them.
bool onednn_uses(dnnl::cpu_isa isa);

/// Wraps memory that oneDNN takes as non-const even where it only reads.
inline dnnl::memory onednn_memory(const dnnl::memory::desc& desc, const void* data) {
  return {desc, onednn_engine(), const_cast<void*>(data)};
}

/// False when oneDNN has only its reference loops for a primitive.
template <typename PrimitiveDesc>
bool is_fast(const PrimitiveDesc& pd) {
  return std::string_view(pd.impl_info_str()).find("ref") == std::string_view::npos;
}

/// A kernel K(args...). Declines where oneDNN has no primitive for it (K throws dnnl::error) or, as
/// K::fast() says if there is one, only its reference loops.
template <typename K, typename... Args>
std::unique_ptr<Kernel> make_onednn_kernel(std::string* why_not, Args&&... args) try {
  auto kernel = std::make_unique<K>(std::forward<Args>(args)...);
  if constexpr (requires { kernel->fast(); }) {
    if (!kernel->fast()) return decline(why_not, "oneDNN has only its reference loops for this");
  }
  return kernel;
} catch (const dnnl::error& error) {
  return decline(why_not, "{}", error.what());
}

/// Rethrows a failure of execution as ProviderError naming the primitive.
[[noreturn]] void throw_onednn(const dnnl::error& error, const char* primitive);

}  // namespace steep::cpu
