// The problem that all candidates of MatMul and steep.MatMul compute, reduced to strides.
#pragma once

#include <algorithm>
#include <optional>

#include "providers/cpu/kernel.h"
#include "providers/cpu/parallel.h"

namespace steep::cpu {

/// y[b, i, j] = activation(alpha * sum_k a[b, i, k] * b[b, k, j] + bias[j]) + addend[b, i, j] for
/// every batch index b. Strides count elements; a batch stride of 0 broadcasts. The strides include
/// the node's permutations.
struct MatMulProblem {
  DType dtype = DType::undefined;       ///< dtype of a and b
  DType y_dtype = DType::undefined;     ///< `dtype`, or float32 if `dtype` is a 16-bit float
  DType bias_dtype = DType::undefined;  ///< `dtype` or float32
  Dims batch{};  ///< extents, outermost first; adjacent ones merged where possible
  Dims a_batch{}, b_batch{}, y_batch{};  ///< strides of `batch`
  int64_t m = 1, n = 1, k = 1;
  int64_t a_m = 0, a_k = 0;
  int64_t b_k = 0, b_n = 0;
  int64_t y_m = 0, y_n = 0;
  double alpha = 1;
  bool relu = false;
  bool bias = false;
  bool addend = false;        ///< same layout as y
  bool bias_on_rows = false;  ///< bias[i] instead of bias[j], after a swap
  bool swapped = false;       ///< `a` is the node's input 1 and `b` its input 0

  int64_t batch_count() const;
  int64_t multiplications() const { return batch_count() * m * n * k; }
  /// Whether y = addend + a · b, without alpha, bias or activation: sums may start from the addend.
  bool adds_product() const { return addend && alpha == 1 && !bias && !relu; }
  /// The equivalent problem yᵀ = bᵀ · aᵀ.
  MatMulProblem swap() const;
  bool operator==(const MatMulProblem&) const = default;
};

/// Reads a node. Returns std::nullopt, and the reason in *why_not, when the shapes do not fit, or
/// when there is an addend that the kernel does not support.
std::optional<MatMulProblem> read_matmul(const NodeSpec& node, std::string* why_not,
                                         bool takes_addend = false);

/// Copies the addend to y, from which the sums start, unless both are one array. T: dtype of y.
template <typename T>
void copy_addend(const MatMulProblem& p, const KernelArgs& args) {
  if (args.in[3] == args.out[0]) return;
  parallel_for(p.batch_count() * p.m * p.n, 65536, [&](int64_t begin, int64_t end) {
    std::copy(args.input<T>(3) + begin, args.input<T>(3) + end, args.output<T>(0) + begin);
  });
}

/// Plain loops in one thread, for products that cost less than waking a second thread.
std::unique_ptr<Kernel> make_small_matmul(const NodeSpec& node, std::string* why_not);
/// Steep's own loops with threads, for products that oneDNN does not support, or without oneDNN.
std::unique_ptr<Kernel> make_blocked_matmul(const NodeSpec& node, std::string* why_not);
/// A oneDNN primitive that reads the operands in place.
std::unique_ptr<Kernel> make_onednn_matmul(const NodeSpec& node, std::string* why_not);
/// 16-bit floats, widened and multiplied in float32 block by block.
std::unique_ptr<Kernel> make_widened_matmul(const NodeSpec& node, std::string* why_not);
/// Loops for every dtype but 16-bit floats, and for all strides.
std::unique_ptr<Kernel> make_reference_matmul(const NodeSpec& node, std::string* why_not);

// Products whose extents are known only when a kernel runs. REQUIRES: no batch, alpha 1, no bias,
// Relu or addend, a contiguous row of y. A result does not depend on the number of threads.

/// y = a · b by the loops of make_blocked_matmul(). `scratch`: blocked_scratch() bytes, 64-byte
/// aligned.
void multiply_blocked(const MatMulProblem& p, const float* a, const float* b, float* y,
                      void* scratch);
void multiply_blocked(const MatMulProblem& p, const double* a, const double* b, double* y,
                      void* scratch);
/// Bytes for products of at most n columns and k terms of a dtype, float32 or float64.
size_t blocked_scratch(DType dtype, int64_t n, int64_t k);

/// Copies b to `packed`, for many products with it. `packed`: blocked_scratch() bytes, 64-byte
/// aligned; the copy is for this p.n and p.k, and for any p.m.
void pack_factor(const MatMulProblem& p, const float* b, void* packed);
void pack_factor(const MatMulProblem& p, const double* b, void* packed);
/// y = a · b, or y += a · b if `adds`, with a packed b. A row of y depends on its row of a alone,
/// whatever p.m is.
void multiply_packed(const MatMulProblem& p, const float* a, const void* packed, float* y,
                     bool adds);
void multiply_packed(const MatMulProblem& p, const double* a, const void* packed, double* y,
                     bool adds);

}  // namespace steep::cpu
