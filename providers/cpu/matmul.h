// What the candidates of MatMul and steep.MatMul share: the problem reduced to strides.
#pragma once

#include <optional>

#include "providers/cpu/kernel.h"

namespace steep::cpu {

/// y[b, i, j] = activation(alpha * sum_k a[b, i, k] * b[b, k, j] + bias[j]) + addend[b, i, j] for
/// every batch index b. Strides count elements; a batch stride of 0 broadcasts. Permutations of the
/// node are already in the strides.
struct MatMulProblem {
  DType dtype = DType::undefined;       ///< of a and b
  DType y_dtype = DType::undefined;     ///< as `dtype`, or float32 where that is a 16-bit float
  DType bias_dtype = DType::undefined;  ///< `dtype` or float32
  Dims batch;  ///< extents, outermost first; adjacent ones merged where possible
  Dims a_batch, b_batch, y_batch;  ///< strides of `batch`
  int64_t m = 1, n = 1, k = 1;
  int64_t a_m = 0, a_k = 0;
  int64_t b_k = 0, b_n = 0;
  int64_t y_m = 0, y_n = 0;
  double alpha = 1;
  bool relu = false;
  bool bias = false;
  bool addend = false;        ///< laid out like y
  bool bias_on_rows = false;  ///< bias[i] instead of bias[j]: the problem was swapped
  bool swapped = false;       ///< `a` is the node's input 1 and `b` its input 0

  int64_t batch_count() const;
  int64_t multiplications() const { return batch_count() * m * n * k; }
  /// The same result as yᵀ = bᵀ · aᵀ.
  MatMulProblem swap() const;
};

/// Reads a node. std::nullopt with the reason in *why_not when the shapes do not multiply, or when
/// there is an addend and the kernel does not take one.
std::optional<MatMulProblem> read_matmul(const NodeSpec& node, std::string* why_not,
                                         bool takes_addend = false);

/// Plain loops without threads, for products that cost less than waking a second thread.
std::unique_ptr<Kernel> make_small_matmul(const NodeSpec& node, std::string* why_not);
/// Our own loops with threads, for what oneDNN does not take, or where there is no oneDNN.
std::unique_ptr<Kernel> make_blocked_matmul(const NodeSpec& node, std::string* why_not);
/// oneDNN primitive on the operands where they lie.
std::unique_ptr<Kernel> make_onednn_matmul(const NodeSpec& node, std::string* why_not);

}  // namespace steep::cpu
