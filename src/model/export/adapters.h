// LoRA: low-rank adapters of weights (Hu et al. 2021), as initializers and nodes of the file.
#pragma once

#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "model/export/detached.h"
#include "steep/dtype.h"
#include "steep/tensor.h"

namespace steep {

/// The adapter of one weight W. Each product x · W becomes x · W + factor · (x · A) · B.
struct Adapter {
  std::string weight{};   ///< an initializer, or a Constant node by the name of its output
  std::string why_not{};  ///< why the weight cannot have an adapter; ""
  int64_t rows = 0;       ///< k, of the matrix [k, n] that the products read
  int64_t columns = 0;    ///< n
  int64_t rank = 0;       ///< r: A is [k, r], B is [r, n]
  double factor = 1;
  DType dtype = DType::undefined;  ///< of the products, of A and of B
  bool transposed = false;         ///< the file stores [n, k]
  bool merges = true;              ///< the file stores W in `dtype`: it can take A · B in
  std::vector<int> products{};     ///< the nodes that multiply by W, by number in the file

  std::string a() const { return weight + ".lora_A"; }
  std::string b() const { return weight + ".lora_B"; }
};

/// One for each initializer, then for each Constant node, of the model's graph, all in the order of
/// the file; `rank` and `factor` are not set. A weight can have an adapter if it is a matrix that
/// nothing reads but right operands of MatMul and Gemm, perhaps through DequantizeLinear, Cast,
/// Transpose or Identity, or if it holds the packed numbers of com.microsoft.MatMulNBits.
std::vector<Adapter> find_adapters(const DetachedModel& model);

/// The initializers that a DequantizeLinear or MatMulNBits of the model's graph unpacks.
std::set<std::string> quantised_weights(const DetachedModel& model);

/// The initializers that are scales of these weights.
std::set<std::string> scales_of_weights(const DetachedModel& model);

/// Adds A and B with these values, and the nodes that apply them. REQUIRES: adapters that
/// find_adapters() found in this model, without `why_not`.
void add_adapters(DetachedModel& model, std::span<const Adapter> adapters,
                  const std::map<std::string, Tensor>& values);

/// Adds factor · A · B to W. REQUIRES: `merges` of each. Throws ModelError if the data of W is
/// external and the model has no folder.
void merge_adapters(DetachedModel& model, std::span<const Adapter> adapters,
                    const std::map<std::string, Tensor>& values);

}  // namespace steep
