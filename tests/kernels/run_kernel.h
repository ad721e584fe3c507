// Runs one kernel of the CPU provider without a graph, with types taken from tensors.
//
//   auto y = run_kernel("Add", {a, b}, {{DType::f32, {2, 3}}});
//   expect_close(y[0], {1, 2, 3, 4, 5, 6});
#pragma once

#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "ops/op_def.h"
#include "providers/cpu/cpu.h"
#include "steep/error.h"

#ifndef STEEP_WITHOUT_ONEDNN
#include "providers/cpu/onednn.h"
#endif

namespace steep::test {

/// Whether there is oneDNN. If not (STEEP_ONEDNN=OFF), its candidates decline all nodes.
#ifdef STEEP_WITHOUT_ONEDNN
constexpr bool kOneDnn = false;
#else
constexpr bool kOneDnn = true;
#endif

/// dtype and extents of an output; {} means an unused output.
struct Out {
  DType dtype = DType::undefined;
  Dims dims{};
};

struct RunOptions {
  int threads = 2;
  std::string_view candidate{};  ///< if not empty: the candidate that must be chosen
  /// If not empty: the only candidate to try.
  std::string_view only{};
  /// The inputs that are constants at plan time. Default: integer inputs of rank at most 1.
  std::vector<int> constants{};
  bool default_constants = true;
  /// Pairs (input, output) that share one buffer. The kernel must allow them.
  std::vector<std::pair<int, int>> share{};
};

/// A buffer that ends in a guard, which must stay unchanged.
class Guarded {
 public:
  explicit Guarded(size_t bytes)
      : used_(bytes),
        bytes_(Tensor::empty(DType::u8, {static_cast<int64_t>((bytes + 63) / 64 * 64 + kGuard)})) {
    std::memset(bytes_.data(), kMark, bytes_.nbytes());
  }

  bool intact() const {
    const auto* p = bytes_.data<uint8_t>();
    return std::all_of(p + used_, p + bytes_.nbytes(), [](uint8_t b) { return b == kMark; });
  }
  void* data() { return bytes_.data(); }
  Tensor as(const Out& out) {
    return Tensor::wrap(out.dtype, out.dims, bytes_.data(), bytes_.owner());
  }

 private:
  static constexpr size_t kGuard = 64;
  static constexpr uint8_t kMark = 0xA5;
  size_t used_;
  Tensor bytes_;
};

/// One execution of a kernel: buffers for its operands and what became of them.
class KernelRun {
 public:
  KernelRun(std::string_view op, const std::vector<Tensor>& inputs, const std::vector<Out>& outputs)
      : op_(op), inputs_(inputs), outputs_(outputs), overwritten_(inputs.size(), false) {
    for (const Tensor& t : inputs) {
      copies_.push_back(t.defined() ? t.clone() : Tensor());
      in_.push_back(t.defined() ? copies_.back().data() : nullptr);
    }
    for (const Out& o : outputs) {
      const bool used = o.dtype != DType::undefined;
      buffers_.emplace_back(used ? static_cast<size_t>(element_count(o.dims)) * size_of(o.dtype)
                                 : 0);
      out_.push_back(used ? buffers_.back().data() : nullptr);
    }
  }

  /// Lets an input and an output share one buffer.
  void share(const cpu::Kernel& kernel, int i, int o) {
    const auto& allowed = kernel.may_share;
    if (std::find(allowed.begin(), allowed.end(), std::pair(i, o)) == allowed.end()) {
      ADD_FAILURE() << op_ << ": input " << i << " may not share with output " << o;
      return;
    }
    const auto input = static_cast<size_t>(i);
    const auto output = static_cast<size_t>(o);
    if (copies_[input].nbytes() != 0) {
      std::memcpy(out_[output], copies_[input].data(), copies_[input].nbytes());
    }
    in_[input] = out_[output];
    overwritten_[input] = true;
  }

  void execute(const cpu::Kernel& kernel, int threads) {
    Guarded scratch(kernel.scratch_bytes);
    struct Restore {
      int threads;
      ~Restore() { omp_set_num_threads(threads); }
    } restore{omp_get_max_threads()};
    omp_set_num_threads(threads);
    kernel.execute({in_.data(), out_.data(), scratch.data()});
    EXPECT_TRUE(scratch.intact()) << op_ << ": wrote past its scratch";
  }

  void expect_inputs_unchanged() const {
    for (size_t i = 0; i < inputs_.size(); ++i) {
      if (overwritten_[i] || !inputs_[i].defined() || inputs_[i].nbytes() == 0) continue;
      EXPECT_EQ(std::memcmp(inputs_[i].data(), copies_[i].data(), inputs_[i].nbytes()), 0)
          << op_ << ": changed input " << i;
    }
  }

  std::vector<Tensor> results() {
    std::vector<Tensor> results;
    for (size_t o = 0; o < outputs_.size(); ++o) {
      const bool used = outputs_[o].dtype != DType::undefined;
      EXPECT_TRUE(buffers_[o].intact()) << op_ << ": wrote past output " << o;
      results.push_back(used ? buffers_[o].as(outputs_[o]) : Tensor());
    }
    return results;
  }

 private:
  std::string_view op_;
  const std::vector<Tensor>& inputs_;
  const std::vector<Out>& outputs_;
  std::vector<Tensor> copies_;
  std::vector<Guarded> buffers_;
  std::vector<const void*> in_;
  std::vector<void*> out_;
  std::vector<bool> overwritten_;
};

/// Builds and executes the kernel. Undefined tensors are absent inputs. Throws what the kernel
/// throws, and ProviderError with all reasons when every candidate declines. Checks that the kernel
/// writes only to outputs and scratch, and that inputs stay unchanged (except shared ones).
inline std::vector<Tensor> run_kernel(std::string_view op, std::vector<Tensor> inputs,
                                      const std::vector<Out>& outputs, const Attrs& attrs = {},
                                      const RunOptions& options = {}) {
  const Attrs all = with_defaults(op, attrs);
  NodeSpec spec{.name = "test_node", .op = op, .attrs = all, .inputs = {}, .outputs = {}};
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Tensor& t = inputs[i];
    if (!t.defined()) {
      spec.inputs.push_back({});
      continue;
    }
    bool constant = options.default_constants && !is_float(t.dtype()) && t.dims().size() <= 1;
    for (int k : options.constants) constant |= k == static_cast<int>(i);
    spec.inputs.push_back({t.dtype(), t.dims(), constant ? &t : nullptr});
  }
  for (const Out& o : outputs) spec.outputs.push_back({o.dtype, o.dims, nullptr});

  std::string why_not;
  const cpu::MadeKernel chosen = cpu::make_kernel(spec, options.only, &why_not);
  if (!chosen.kernel) throw ProviderError({.what = why_not, .op = std::string(op)});
  if (!options.candidate.empty()) {
    EXPECT_EQ(chosen.candidate, options.candidate);
  }
  KernelRun run(op, inputs, outputs);
  for (auto [i, o] : options.share) run.share(*chosen.kernel, i, o);
  run.execute(*chosen.kernel, options.threads);
  run.expect_inputs_unchanged();
  return run.results();
}

/// For one output: the common case.
inline Tensor run_one(std::string_view op, std::vector<Tensor> inputs, Out output,
                      const Attrs& attrs = {}, const RunOptions& options = {}) {
  return run_kernel(op, std::move(inputs), {std::move(output)}, attrs, options)[0];
}

/// The elements as doubles (f32, f64, integers, bool).
inline std::vector<double> values(const Tensor& t) {
  std::vector<double> v(static_cast<size_t>(t.size()));
  if (t.dtype() == DType::f32) {
    std::copy_n(t.data<float>(), t.size(), v.begin());
  } else if (t.dtype() == DType::f64) {
    std::copy_n(t.data<double>(), t.size(), v.begin());
  } else {
    const auto ints = t.to_ints();
    std::copy(ints.begin(), ints.end(), v.begin());
  }
  return v;
}

inline bool close(double got, double want, double rtol, double atol) {
  if (std::isnan(want)) return std::isnan(got);
  if (std::isinf(want)) return got == want;
  return std::abs(got - want) <= atol + rtol * std::abs(want);
}

inline void expect_close(const Tensor& got, const std::vector<double>& want, double rtol = 1e-6,
                         double atol = 1e-6) {
  const auto v = values(got);
  ASSERT_EQ(v.size(), want.size());
  for (size_t i = 0; i < v.size(); ++i) {
    ASSERT_TRUE(close(v[i], want[i], rtol, atol))
        << "element " << i << ": " << v[i] << ", wanted " << want[i];
  }
}

/// Equal dtype, extents and bits.
inline void expect_same_bits(const Tensor& a, const Tensor& b) {
  ASSERT_EQ(a.dtype(), b.dtype());
  ASSERT_EQ(a.dims(), b.dims());
  if (a.nbytes() != 0) {
    EXPECT_EQ(std::memcmp(a.data(), b.data(), a.nbytes()), 0);
  }
}

/// Whether the last bits of products may depend on the number of threads: without AVX-512, oneDNN
/// only has its gemm, which splits results and sums by the number of threads.
inline bool products_depend_on_threads() {
#ifdef STEEP_WITHOUT_ONEDNN
  return false;
#else
  return !cpu::onednn_uses(dnnl::cpu_isa::avx512_core);
#endif
}

/// Normally distributed numbers (f32 or f64); the same for the same seed.
inline Tensor random_tensor(DType dtype, Dims dims, uint32_t seed = 1, double scale = 1) {
  Tensor t = Tensor::empty(dtype, std::move(dims));
  std::mt19937 engine(seed);
  std::normal_distribution<double> normal;
  for (int64_t i = 0; i < t.size(); ++i) {
    const double v = normal(engine) * scale;
    if (dtype == DType::f32) {
      t.data<float>()[i] = static_cast<float>(v);
    } else {
      t.data<double>()[i] = v;
    }
  }
  return t;
}

}  // namespace steep::test
