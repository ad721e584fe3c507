// The process's oneDNN engine and what every oneDNN-backed kernel needs around it.
#pragma once

#include <string>

#include "oneapi/dnnl/dnnl.hpp"
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

/// Wraps memory that oneDNN takes as non-const even where it only reads.
inline dnnl::memory onednn_memory(const dnnl::memory::desc& desc, const void* data) {
  return {desc, onednn_engine(), const_cast<void*>(data)};
}

/// Rethrows a failure of execution as ProviderError naming the primitive.
[[noreturn]] void throw_onednn(const dnnl::error& error, const char* primitive);

}  // namespace steep::cpu
