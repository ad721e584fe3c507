// Products of 16-bit floats in float32: blocks of both operands are widened into scratch, where a
// float32 kernel multiplies them, and results are narrowed. The products are exact and the sums are
// float32, as those of the processor's own 16-bit products are. Scratch is bounded, so that 16-bit
// operands keep their advantage in memory.

#include <algorithm>

#include "providers/cpu/build_kernel.h"
#include "providers/cpu/convert.h"
#include "providers/cpu/matmul.h"
#include "providers/cpu/parallel.h"

namespace steep::cpu {
namespace {

/// Greatest block. An element that is widened takes part in a thousand multiplications or more, so
/// that widening costs little; the blocks take 16 MiB at most.
constexpr int64_t kRows = 1024, kColumns = 1024, kTerms = 1024;

constexpr int64_t kWidenGrain = 65536;

/// The float32 kernel of a part of the product. All blocks are dense.
std::unique_ptr<Kernel> make_inner(const NodeSpec& node, std::string* why_not) {
  for (auto* make :
       {make_small_matmul, make_onednn_matmul, make_blocked_matmul, make_reference_matmul}) {
    if (auto kernel = make(node, why_not)) return kernel;
  }
  return nullptr;
}

/// One operand: [extent, terms] with these strides. Its blocks keep the axis that is contiguous in
/// memory.
struct Source {
  int64_t stride, k_stride;
  size_t at = 0;  ///< offset of its block in scratch, in bytes

  bool turned() const { return k_stride != 1 && stride == 1; }
  Dims dims(int64_t extent, int64_t terms) const {
    return turned() ? Dims{terms, extent} : Dims{extent, terms};
  }

  /// Widens the block of `extent` and `terms` that begins at `from`.
  void widen(Convert f, const uint16_t* from, int64_t extent, int64_t terms, float* to) const {
    const int64_t rows = turned() ? terms : extent, columns = turned() ? extent : terms;
    const int64_t row_stride = turned() ? k_stride : stride;
    const int64_t column_stride = turned() ? stride : k_stride;
    parallel_for(rows, grain_of(kWidenGrain, columns), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const uint16_t* x = from + i * row_stride;
        float* y = to + i * columns;
        if (column_stride == 1) {
          f(x, y, columns);
          continue;
        }
        for (int64_t j = 0; j < columns; ++j) f(x + j * column_stride, y + j, 1);
      }
    });
  }
};

class WidenedMatMul final : public Kernel {
 public:
  explicit WidenedMatMul(const MatMulProblem& p)
      : p_(p), a_{p.a_m, p.a_k}, b_{p.b_n, p.b_k}, widen_(find_convert(p.dtype, DType::f32)) {
    flops = 2.0 * static_cast<double>(p_.multiplications());
    if (p_.addend) may_share = {{3, 0}};
    if (p_.y_dtype != DType::f32) narrow_ = find_convert(DType::f32, p_.y_dtype);
    const int64_t rows = std::min(p_.m, kRows), columns = std::min(p_.n, kColumns);
    const int64_t terms = std::min(p_.k, kTerms);
    in_place_ = narrow_ == nullptr && !p_.addend && p_.n <= kColumns && p_.y_n == 1 &&
                (p_.m == 1 || p_.y_m == p_.n);
    a_.at = take(rows * terms);
    b_.at = take(columns * terms);
    if (!in_place_) sum_at_ = take(rows * columns);
    if (p_.k > kTerms) part_at_ = take(rows * columns);
    if (p_.bias && p_.bias_dtype != DType::f32) bias_at_ = take(bias_size());
    inner_at_ = scratch_bytes;
  }

  /// Makes the kernels of all kinds of parts. False, with the reason, if one of them has none.
  bool make_parts(std::string* why_not) {
    if (p_.multiplications() == 0) return true;
    size_t most = 0;
    for (int64_t m : kinds(p_.m, kRows)) {
      for (int64_t n : kinds(p_.n, kColumns)) {
        for (int64_t k : kinds(p_.k, kTerms)) {
          auto kernel = make_part(m, n, k, why_not);
          if (!kernel) return false;
          most = std::max(most, kernel->scratch_bytes);
          parts_.push_back({m, n, k, std::move(kernel)});
        }
      }
    }
    scratch_bytes = inner_at_ + most;
    return true;
  }

  void execute(const KernelArgs& args) const override {
    if (p_.bias && p_.bias_dtype != DType::f32) {
      find_convert(p_.bias_dtype, DType::f32)(args.in[2], in_scratch(args, bias_at_), bias_size());
    }
    multiply_batch(args, 0, args.input<uint16_t>(p_.swapped ? 1 : 0),
                   args.input<uint16_t>(p_.swapped ? 0 : 1), 0);
  }

 private:
  struct Part {
    int64_t m, n, k;
    std::unique_ptr<Kernel> kernel;
  };

  size_t take(int64_t floats) {
    const size_t at = scratch_bytes;
    scratch_bytes += whole_lines(static_cast<size_t>(floats) * sizeof(float));
    return at;
  }

  int64_t bias_size() const { return p_.bias_on_rows ? p_.m : p_.n; }

  static float* in_scratch(const KernelArgs& args, size_t at) {
    return reinterpret_cast<float*>(static_cast<std::byte*>(args.scratch) + at);
  }

  /// The extents that blocks of an axis have.
  static std::vector<int64_t> kinds(int64_t extent, int64_t most) {
    std::vector<int64_t> list{std::min(extent, most)};
    if (extent > most && extent % most != 0) list.push_back(extent % most);
    return list;
  }

  std::unique_ptr<Kernel> make_part(int64_t m, int64_t n, int64_t k, std::string* why_not) const {
    Attrs attrs;
    if (a_.turned()) attrs.set("perm_a", Ints{1, 0});
    if (!b_.turned()) attrs.set("perm_b", Ints{1, 0});
    return make_inner({.name = "",
                       .op = "MatMul",
                       .attrs = attrs,
                       .inputs = {{DType::f32, a_.dims(m, k)}, {DType::f32, b_.dims(n, k)}},
                       .outputs = {{DType::f32, {m, n}}}},
                      why_not);
  }

  const Kernel& part(int64_t m, int64_t n, int64_t k) const {
    return *std::ranges::find_if(parts_, [&](const Part& x) {
              return x.m == m && x.n == n && x.k == k;
            })->kernel;
  }

  /// `at`: offset of the result in y, in elements.
  void multiply_batch(const KernelArgs& args, size_t depth, const uint16_t* a, const uint16_t* b,
                      int64_t at) const {
    if (depth == p_.batch.size()) return multiply_one(args, a, b, at);
    for (int64_t i = 0; i < p_.batch[depth]; ++i) {
      multiply_batch(args, depth + 1, a + i * p_.a_batch[depth], b + i * p_.b_batch[depth],
                     at + i * p_.y_batch[depth]);
    }
  }

  void multiply_one(const KernelArgs& args, const uint16_t* a, const uint16_t* b,
                    int64_t at) const {
    float* const wide_a = in_scratch(args, a_.at);
    float* const wide_b = in_scratch(args, b_.at);
    for (int64_t n = 0; n < p_.n; n += kColumns) {
      const int64_t columns = std::min(kColumns, p_.n - n);
      for (int64_t m = 0; m < p_.m; m += kRows) {
        const int64_t rows = std::min(kRows, p_.m - m);
        const int64_t y = at + m * p_.y_m + n * p_.y_n;
        float* const sum = in_place_ ? args.output<float>(0) + y : in_scratch(args, sum_at_);
        if (p_.k == 0) std::fill_n(sum, rows * columns, 0.0F);
        for (int64_t k = 0; k < p_.k; k += kTerms) {
          poll();
          const int64_t terms = std::min(kTerms, p_.k - k);
          a_.widen(widen_, a + m * p_.a_m + k * p_.a_k, rows, terms, wide_a);
          if (m == 0 || p_.k > kTerms) {  // else it is there from the rows before
            b_.widen(widen_, b + n * p_.b_n + k * p_.b_k, columns, terms, wide_b);
          }
          float* const to = k == 0 ? sum : in_scratch(args, part_at_);
          const void* const in[2] = {wide_a, wide_b};
          void* const out[1] = {to};
          part(rows, columns, terms)
              .execute({in, out, static_cast<std::byte*>(args.scratch) + inner_at_});
          if (k > 0) add(to, sum, rows * columns);
        }
        finish(args, sum, rows, columns, m, n, y);
      }
    }
  }

  static void add(const float* part, float* sum, int64_t count) {
    parallel_for(count, kWidenGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) sum[i] += part[i];
    });
  }

  /// Applies alpha, bias, Relu and addend to a block of sums, and writes it to y. `at`: offset of
  /// the block in y.
  void finish(const KernelArgs& args, float* sum, int64_t rows, int64_t columns, int64_t m,
              int64_t n, int64_t at) const {
    const bool plain = p_.alpha == 1 && !p_.bias && !p_.relu && !p_.addend;
    if (in_place_ && plain) return;
    const auto alpha = static_cast<float>(p_.alpha);
    const float* bias = !p_.bias                      ? nullptr
                        : p_.bias_dtype == DType::f32 ? args.input<float>(2)
                                                      : in_scratch(args, bias_at_);
    parallel_for(rows, grain_of(kWidenGrain, columns), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        float* const row = sum + i * columns;
        const int64_t y = at + i * p_.y_m;
        for (int64_t j = 0; !plain && j < columns; ++j) {
          float v = alpha * row[j];
          if (bias != nullptr) v += p_.bias_on_rows ? bias[m + i] : bias[n + j];
          if (p_.relu && v < 0) v = 0;  // NaN stays NaN
          if (p_.addend) v += args.input<float>(3)[y + j * p_.y_n];
          row[j] = v;
        }
        if (!in_place_) write_row(args, row, columns, y);
      }
    });
  }

  void write_row(const KernelArgs& args, const float* row, int64_t columns, int64_t at) const {
    const auto size = static_cast<int64_t>(size_of(p_.y_dtype));
    auto* y = args.output<std::byte>(0) + at * size;
    if (p_.y_n != 1) {
      for (int64_t j = 0; j < columns; ++j) write(row + j, y + j * p_.y_n * size, 1);
    } else {
      write(row, y, columns);
    }
  }

  void write(const float* from, void* to, int64_t count) const {
    if (narrow_ != nullptr) return narrow_(from, to, count);
    std::copy_n(from, count, static_cast<float*>(to));
  }

  MatMulProblem p_;
  Source a_, b_;
  Convert widen_, narrow_ = nullptr;
  bool in_place_ = false;  ///< y is where the sums are computed
  size_t sum_at_ = 0, part_at_ = 0, bias_at_ = 0, inner_at_ = 0;
  std::vector<Part> parts_;
};

}  // namespace

std::unique_ptr<Kernel> make_widened_matmul(const NodeSpec& node, std::string* why_not) {
  auto problem = read_matmul(node, why_not, true);
  if (!problem) return nullptr;
  if (problem->dtype != DType::bf16 && problem->dtype != DType::f16) {
    return decline(why_not, "dtype is {}", name_of(problem->dtype));
  }
  if (problem->addend && problem->y_dtype != DType::f32) {
    return decline(why_not, "only a float32 result can be added to existing values");
  }
  if (problem->y_n != 1 && problem->y_m == 1) problem = problem->swap();
  auto kernel = std::make_unique<WidenedMatMul>(*problem);
  if (!kernel->make_parts(why_not)) return nullptr;
  return kernel;
}

}  // namespace steep::cpu
