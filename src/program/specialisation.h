// One specialisation of a program: its executable plan for certain input types.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "plan/executable.h"

namespace steep {

struct Specialisation {
  std::vector<Type> types;  ///< of all inputs of the graph
  std::vector<Dims> dims;   ///< of the caller's forward inputs
  std::vector<DType> dtypes;
  Executable executable;
  double specialise_ms;
  std::vector<CompileStage> stages;

  /// Whether it was made for forward inputs of these shapes, one for each of `dims`.
  bool matches(std::span<const Tensor> inputs) const {
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (inputs[i].dtype() != dtypes[i] || inputs[i].dims() != dims[i]) return false;
    }
    return true;
  }

  size_t constant_bytes() const {
    size_t bytes = 0;
    for (const Tensor& t : executable.plan().constants) bytes += t.nbytes();
    return bytes;
  }
};

}  // namespace steep
