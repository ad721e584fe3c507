// MatMul by oneDNN, which reads transposed and head-split operands in place.

#include <omp.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "providers/cpu/convert.h"
#include "providers/cpu/cpu.h"
#include "providers/cpu/isa.h"
#include "providers/cpu/matmul.h"
#include "providers/cpu/onednn.h"
#include "providers/cpu/parallel.h"
#include "providers/cpu/strided_copy.h"
#include "runtime/threads.h"

namespace steep::cpu {
namespace {

struct Layout {
  Dims dims;
  Dims strides;
};

/// oneDNN expresses broadcasting as an extent of 1 and has fast layouts for rank 2 and rank 4: a
/// strided batch of rank 3 gets a leading 1.
Layout layout(const MatMulProblem& p, const Dims& batch_strides, int64_t rows, int64_t columns,
              int64_t row_stride, int64_t column_stride) {
  Layout l;
  if (p.batch.size() == 1) {
    l.dims.push_back(1);
    l.strides.push_back(batch_strides[0] == 0 ? rows * columns : batch_strides[0] * p.batch[0]);
  }
  for (size_t i = 0; i < p.batch.size(); ++i) {
    const bool broadcast = batch_strides[i] == 0;
    l.dims.push_back(broadcast ? 1 : p.batch[i]);
    l.strides.push_back(broadcast ? rows * columns : batch_strides[i]);
  }
  l.dims.insert(l.dims.end(), {rows, columns});
  l.strides.insert(l.strides.end(), {row_stride, column_stride});
  return l;
}

/// y += bias, then a Relu that keeps NaN. oneDNN's Relu turns NaN into 0, which would hide a
/// diverging loss.
void finish_row(float* y, int64_t n, float bias, bool relu) {
  for (int64_t j = 0; j < n; ++j) {
    const float v = y[j] + bias;
    y[j] = relu && v < 0 ? 0.0F : v;
  }
}
void finish_row(Bf16* y, int64_t n, float bias, bool relu) {
  for (int64_t j = 0; j < n; ++j) {
    const float v = y[j] + bias;
    y[j] = {float_to_bf16(relu && v < 0 ? 0.0F : v)};
  }
}

/// oneDNN divides long sums among threads when there is little else to divide; results would depend
/// on the number of threads. It does not divide sums up to these lengths, for its brgemm kernels
/// with a transposed `a`, and for the gemm that it uses for other layouts.
constexpr int64_t kLongestTransposedSum = 2047;
constexpr int64_t kLongestNarrowSum = 1024;  // of 16-bit floats, where `a` is transposed
constexpr int64_t kLongestGemmSum = 512;

/// Along an axis as long as a vocabulary, oneDNN's gemm is often faster than its brgemm kernels: up
/// to twice on AMD processors, where rows that are not aligned to cache lines cost more. oneDNN
/// chooses gemm when the row stride exceeds the row length, as in a part of an array. With this
/// many results, gemm does not divide sums (compared for 1 to 128 threads).
constexpr int64_t kWide = 16384;
constexpr int64_t kWideRows = 256;
constexpr int64_t kWideColumns = 64;
/// Along columns, gemm is faster only above this number of rows.
constexpr int64_t kFewRows = 512;

enum class Wide : uint8_t { rows, columns, sum };

/// The longest axis.
Wide longest_axis(const MatMulProblem& p) {
  if (p.m >= std::max(p.n, p.k)) return Wide::rows;
  return p.n >= p.k ? Wide::columns : Wide::sum;
}

/// Measured on an AMD EPYC (Zen 4) and on an Intel Xeon with AMX.
bool gains_from_gemm(const MatMulProblem& p) {
  if (p.dtype != DType::f32 && p.dtype != DType::bf16) return false;
  switch (longest_axis(p)) {
    case Wide::rows: return !is_intel();
    case Wide::columns: return p.dtype == DType::f32 && p.m > kFewRows;
    case Wide::sum: return true;
  }
  return false;
}

bool is_wide(const MatMulProblem& p) {
  return p.batch.empty() && std::max({p.m, p.n, p.k}) >= kWide && p.m >= kWideRows &&
         p.n >= kWideColumns && p.k >= kWideColumns && gains_from_gemm(p);
}

/// AMX multiplies 32 terms of a sum at a time. oneDNN adds the remaining terms in a second round,
/// which costs about as much as copying (m + n) k operand elements for m n results.
constexpr int64_t kTileTerms = 32;

bool pads_terms(const MatMulProblem& p) {
  return p.dtype == DType::bf16 && p.batch.empty() && p.k % kTileTerms != 0 &&
         p.m * p.n >= (p.m + p.n) * p.k && onednn_uses(dnnl::cpu_isa::avx512_core_amx);
}

/// A padded copy, in scratch, of a bfloat16 matrix [extent, terms]: zeros follow the terms.
struct PaddedOperand {
  StridedCopy terms, zeros;
  size_t at;  ///< offset in scratch, in bytes
  int64_t zeros_at;

  PaddedOperand(const Dims& dims, const Dims& strides, const Dims& padded_strides, int64_t padded,
                size_t begin)
      : terms(sizeof(uint16_t), dims, strides, padded_strides),
        zeros(sizeof(uint16_t), {dims[0], padded - dims[1]}, {0, 0}, padded_strides),
        at(begin),
        zeros_at(dims[1] * padded_strides[1]) {}

  const std::byte* run(const std::byte* from, void* scratch) const {
    constexpr uint16_t kZero = 0;
    auto* to = static_cast<std::byte*>(scratch) + at;
    terms.run(from, to);
    zeros.run(&kZero, reinterpret_cast<uint16_t*>(to) + zeros_at);
    return to;
  }
};

class OneDnnMatMul final : public Kernel {
 public:
  /// Throws dnnl::error when oneDNN has no such primitive.
  explicit OneDnnMatMul(const MatMulProblem& problem) : p_(problem) {
    flops = 2.0 * static_cast<double>(p_.multiplications());
    if (p_.addend) may_share = {{3, 0}};
    if (is_wide(p_)) {
      // A gemm that is made for one thread divides sums when more than five run it.
      const ThreadBound two(omp_get_max_threads() == 1 ? 2 : 0);
      add_wide_parts();
      return;
    }
    if (pads_terms(p_)) pad();
    // In 16 bits the partial sums would be rounded, so such sums stay whole.
    const bool whole = p_.y_dtype != DType::f32;
    const int64_t longest = p_.dtype == DType::f32 ? kLongestTransposedSum : kLongestNarrowSum;
    add_sums(whole || p_.a_k == 1 ? p_.k : longest);
    if (gemm_ && !whole) add_sums(kLongestGemmSum);
  }

  /// False when oneDNN has only its reference loops for these layouts.
  bool fast() const { return fast_; }

  void execute(const KernelArgs& args) const override try {
    const auto* a = args.input<std::byte>(p_.swapped ? 1 : 0);
    const auto* b = args.input<std::byte>(p_.swapped ? 0 : 1);
    if (padded_a_) a = padded_a_->run(a, args.scratch);
    if (padded_b_) b = padded_b_->run(b, args.scratch);
    const auto size = static_cast<int64_t>(size_of(p_.dtype));
    const auto y_size = static_cast<int64_t>(size_of(sum_dtype()));
    const auto bias_size = static_cast<int64_t>(size_of(p_.bias_dtype));
    auto* y =
        narrow_ == nullptr ? args.output<std::byte>(0) : static_cast<std::byte*>(args.scratch);
    if (p_.addend) copy_addend<float>(p_, args);
    for (int64_t i = 0; i < blocks_ * stretches_; ++i) {
      poll();
      const Range r = range(i);
      const Part& part = *part_for(r);
      const dnnl::memory a_part = onednn_memory(part.a, a + (r.m * p_.a_m + r.k * p_.a_k) * size);
      const dnnl::memory b_part = onednn_memory(part.b, b + (r.k * p_.b_k + r.n * p_.b_n) * size);
      const dnnl::memory y_part = onednn_memory(part.y, y + (r.m * p_.y_m + r.n * p_.y_n) * y_size);
      std::array<dnnl_exec_arg_t, 5> list = {{{DNNL_ARG_SRC, a_part.get()},
                                              {DNNL_ARG_WEIGHTS, b_part.get()},
                                              {DNNL_ARG_DST, y_part.get()}}};
      int count = 3;
      dnnl::memory scratch;
      if (part.scratchpad.get_size() > 0) {
        scratch =
            onednn_memory(part.scratchpad, static_cast<std::byte*>(args.scratch) + own_bytes_);
        list[count++] = {DNNL_ARG_SCRATCHPAD, scratch.get()};
      }
      dnnl::memory bias;
      if (part.bias_argument != 0) {
        bias = onednn_memory(part.bias, args.input<std::byte>(2) + r.n * bias_size);
        list[count++] = {part.bias_argument, bias.get()};
      }
      const auto status =
          dnnl_primitive_execute(part.primitive.get(), onednn_stream().get(), count, list.data());
      dnnl::error::wrap_c_api(status, "could not execute a matmul");
    }
    if (narrow_ != nullptr) {
      parallel_for(p_.m * p_.n, 65536, [&](int64_t begin, int64_t end) {
        narrow_(static_cast<float*>(args.scratch) + begin, args.output<uint16_t>(0) + begin,
                end - begin);
      });
    }
    if (!p_.relu && !(p_.bias && p_.bias_on_rows)) return;
    if (p_.y_dtype == DType::f32) {
      finish_rows<float>(args);
    } else {
      finish_rows<Bf16>(args);
    }
  } catch (const dnnl::error& error) {
    throw_onednn(error, "MatMul");
  }

 private:
  /// Rows [m, m_end), columns [n, n_end), terms [k, k_end) of the sum.
  struct Range {
    int64_t m = 0, n = 0, k = 0;
    int64_t m_end, n_end, k_end;
  };

  static constexpr int64_t kMany = 256;  // parts per axis; real problems have fewer

  /// A primitive for ranges with these extents. `first` and `last`: the range is at the start or
  /// the end of the sum. Its position on other axes is only in the pointers.
  struct Part {
    int64_t m, n, k;
    bool first, last;
    dnnl::matmul primitive{};
    dnnl::memory::desc a{}, b{}, y{}, bias{}, scratchpad{};
    int bias_argument = 0;
  };

  dnnl::memory::desc desc(DType dtype, const Dims& batch_strides, int64_t rows, int64_t columns,
                          int64_t row_stride, int64_t column_stride) const {
    const Layout l = layout(p_, batch_strides, rows, columns, row_stride, column_stride);
    return onednn_desc(dtype, l.dims, l.strides);
  }

  /// The dtype that parts write: that of the result, or float32 if the complete sum is narrowed
  /// later.
  DType sum_dtype() const { return narrow_ == nullptr ? p_.y_dtype : DType::f32; }

  Range whole() const { return {.m_end = p_.m, .n_end = p_.n, .k_end = p_.k}; }

  /// The start of part i of `count` parts of an axis.
  static int64_t cut(int64_t extent, int64_t i, int64_t count) {
    if (count <= kMany) return extent * i / count;
    return extent / count * i + std::min(i, extent % count);  // longer parts first
  }

  /// Indices of parts that include all kinds: the first, the last, longer and shorter ones.
  static std::vector<int64_t> kinds(int64_t extent, int64_t count) {
    std::vector<int64_t> numbers;
    if (count <= kMany) {
      for (int64_t i = 0; i < count; ++i) numbers.push_back(i);
      return numbers;
    }
    const int64_t shorter = extent % count;
    for (int64_t i : {int64_t{0}, int64_t{1}, shorter, shorter + 1, count - 2, count - 1}) {
      if (i < count) numbers.push_back(i);
    }
    return numbers;
  }

  /// Range i of blocks_ x stretches_: a block of rows, and a stretch of the split axis.
  Range range(int64_t i) const {
    const int64_t block = i / stretches_, stretch = i % stretches_;
    Range r = whole();
    r.m = cut(p_.m, block, blocks_);
    r.m_end = cut(p_.m, block + 1, blocks_);
    auto part = [&](int64_t extent, int64_t& begin, int64_t& end) {
      begin = cut(extent, stretch, stretches_);
      end = cut(extent, stretch + 1, stretches_);
    };
    if (split_ == Wide::rows) part(p_.m, r.m, r.m_end);
    if (split_ == Wide::columns) part(p_.n, r.n, r.n_end);
    if (split_ == Wide::sum) part(p_.k, r.k, r.k_end);
    return r;
  }

  const Part* part_for(const Range& r) const {
    for (const Part& p : parts_) {
      if (p.m == r.m_end - r.m && p.n == r.n_end - r.n && p.k == r.k_end - r.k &&
          p.first == (r.k == 0) && p.last == (r.k_end == p_.k))
        return &p;
    }
    return nullptr;
  }

  /// Makes a primitive for each kind of range.
  void add_parts(Wide split, int64_t stretches) {
    // A call cannot be interrupted, so none may take much longer than a second.
    constexpr double kMostFlops = 1.5e11;
    const auto least = static_cast<int64_t>(std::min(flops / kMostFlops, 1e9));
    parts_.clear();
    split_ = split;
    stretches_ = split == Wide::rows ? std::clamp(least, stretches, p_.m) : stretches;
    blocks_ = split == Wide::rows ? 1 : std::clamp<int64_t>(least / stretches, 1, p_.m);
    const int64_t extent = split == Wide::rows ? p_.m : split == Wide::columns ? p_.n : p_.k;
    for (int64_t block : kinds(p_.m, blocks_)) {
      for (int64_t stretch : kinds(extent, stretches_)) {
        const Range r = range(block * stretches_ + stretch);
        if (part_for(r) == nullptr) add_part(r);
      }
    }
  }

  /// Divides the sum into stretches of at most `longest` terms.
  void add_sums(int64_t longest) { add_parts(Wide::sum, (p_.k + longest - 1) / longest); }

  /// Divides the longest axis: columns into blocks that are still in the cache when the bias is
  /// added.
  void add_wide_parts() {
    const Wide axis = longest_axis(p_);
    const bool rows = axis == Wide::rows, columns = axis == Wide::columns;
    const int64_t extent = rows ? p_.m : columns ? p_.n : p_.k;
    // A continued sum reads y again. With small blocks it is still in the cache.
    const int64_t block = columns ? 4096 : 2048;
    const int64_t count = columns || p_.addend ? (extent + block - 1) / block : 2;
    if (!rows && !columns && p_.y_dtype != DType::f32) {
      // Partial sums would be rounded to 16 bits each: add them in float32, in scratch.
      narrow_ = find_convert(DType::f32, p_.y_dtype);
      own_bytes_ = whole_lines(static_cast<size_t>(p_.m * p_.n) * sizeof(float));
    }
    add_parts(axis, count);
    // oneDNN sums rows of 16 bits in a float32 copy of the part: it should not be as large as they.
    constexpr size_t kMostScratch = size_t{16} << 20;
    if (!rows || scratch_bytes <= kMostScratch) return;
    const auto more = static_cast<int64_t>((scratch_bytes + kMostScratch - 1) / kMostScratch);
    scratch_bytes = 0;
    add_parts(axis, count * more);
  }

  void add_part(const Range& r) {
    Part part{.m = r.m_end - r.m,
              .n = r.n_end - r.n,
              .k = r.k_end - r.k,
              .first = r.k == 0,
              .last = r.k_end == p_.k};
    part.a = desc(p_.dtype, p_.a_batch, r.m_end - r.m, r.k_end - r.k, p_.a_m, p_.a_k);
    part.b = desc(p_.dtype, p_.b_batch, r.k_end - r.k, r.n_end - r.n, p_.b_k, p_.b_n);
    part.y = desc(sum_dtype(), p_.y_batch, r.m_end - r.m, r.n_end - r.n, p_.y_m, p_.y_n);
    // oneDNN adds y before everything else, adds its own bias before alpha, and has only a bias per
    // column. So the last part applies alpha, and also the bias if there is an alpha.
    dnnl::post_ops post;
    if (!part.first || p_.addend) post.append_sum();
    const bool scale = p_.alpha != 1;
    if (scale && part.last) {
      post.append_eltwise(dnnl::algorithm::eltwise_linear, static_cast<float>(p_.alpha), 0.0F);
    }
    if (p_.bias && !p_.bias_on_rows && (scale ? part.last : part.first)) {
      Dims dims(part.y.get_dims().size(), 1);
      Dims strides(dims.size(), r.n_end - r.n);
      dims.back() = r.n_end - r.n;
      strides.back() = 1;
      part.bias = onednn_desc(p_.bias_dtype, dims, strides);
      part.bias_argument = DNNL_ARG_BIAS;
      if (scale) {
        part.bias_argument = DNNL_ARG_ATTR_MULTIPLE_POST_OP(post.len()) | DNNL_ARG_SRC_1;
        post.append_binary(dnnl::algorithm::binary_add, part.bias);
      }
    }
    dnnl::primitive_attr attr;
    attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    if (post.len() > 0) attr.set_post_ops(post);

    using Desc = dnnl::matmul::primitive_desc;
    const auto& engine = onednn_engine();
    const Desc pd = part.bias_argument == DNNL_ARG_BIAS
                        ? Desc(engine, part.a, part.b, part.bias, part.y, attr)
                        : Desc(engine, part.a, part.b, part.y, attr);
    fast_ = fast_ && is_fast(pd);
    gemm_ = gemm_ || std::string_view(pd.impl_info_str()).starts_with("gemm:");
    part.scratchpad = pd.scratchpad_desc();
    scratch_bytes = std::max(scratch_bytes, own_bytes_ + part.scratchpad.get_size());
    part.primitive = dnnl::matmul(pd);
    parts_.push_back(std::move(part));
  }

  /// Pads the terms of the sum to whole tiles, in copies of the operands.
  void pad() {
    const int64_t terms = p_.k;
    p_.k = (terms + kTileTerms - 1) / kTileTerms * kTileTerms;
    auto copy = [&](int64_t extent, int64_t* stride, int64_t* k_stride) {
      const Dims strides = {*stride, *k_stride};
      if (*k_stride == 1) {
        *stride = p_.k;
      } else {
        *stride = 1;
        *k_stride = extent;
      }
      const size_t begin = own_bytes_;
      own_bytes_ += whole_lines(static_cast<size_t>(extent * p_.k) * sizeof(uint16_t));
      return PaddedOperand({extent, terms}, strides, {*stride, *k_stride}, p_.k, begin);
    };
    padded_a_ = copy(p_.m, &p_.a_m, &p_.a_k);
    padded_b_ = copy(p_.n, &p_.b_n, &p_.b_k);
  }

  /// Applies bias and Relu while y is still in the cache. T: float or Bf16.
  template <typename T>
  void finish_rows(const KernelArgs& args) const {
    auto bias_at = [&](int64_t i) {
      if (!p_.bias || !p_.bias_on_rows) return -0.0F;
      return p_.bias_dtype == DType::f32 ? args.input<float>(2)[i] : args.input<Bf16>(2)[i];
    };
    const int64_t grain = grain_of(65536, p_.n);
    parallel_for(p_.batch_count() * p_.m, grain, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t i = row % p_.m;
        T* y = args.output<T>(0) + i * p_.y_m;
        int64_t rest = row / p_.m;
        for (size_t d = p_.batch.size(); d-- > 0; rest /= p_.batch[d]) {
          y += rest % p_.batch[d] * p_.y_batch[d];
        }
        finish_row(y, p_.n, bias_at(i), p_.relu);
      }
    });
  }

  MatMulProblem p_;
  Wide split_ = Wide::sum;
  int64_t stretches_ = 1, blocks_ = 1;
  std::vector<Part> parts_;  // one primitive for all ranges of a kind
  Convert narrow_ = nullptr;
  std::optional<PaddedOperand> padded_a_, padded_b_;
  size_t own_bytes_ = 0;  ///< bytes of scratch before oneDNN's part
  bool fast_ = true;
  bool gemm_ = false;
};

/// One of several equal products, such as those of a model's layers: they share one OneDnnMatMul,
/// whose objects of oneDNN take kilobytes.
class SharedOneDnnMatMul final : public Kernel {
 public:
  /// Throws dnnl::error when oneDNN has no such primitive.
  explicit SharedOneDnnMatMul(const MatMulProblem& problem) : product_(find_or_make(problem)) {
    scratch_bytes = product_->scratch_bytes;
    flops = product_->flops;
    may_share = product_->may_share;
  }

  bool fast() const { return product_->fast(); }
  void execute(const KernelArgs& args) const override { product_->execute(args); }

 private:
  struct Known {
    MatMulProblem problem;
    int threads;  // a primitive is made for a number of threads
    std::weak_ptr<const OneDnnMatMul> product;
  };

  static std::shared_ptr<const OneDnnMatMul> find_or_make(const MatMulProblem& problem) {
    // Of each thread, so that there is no lock, which a fork could leave closed.
    thread_local std::vector<Known> known;
    std::erase_if(known, [](const Known& k) { return k.product.expired(); });
    const int threads = omp_get_max_threads();
    for (const Known& k : known) {
      if (k.threads != threads || k.problem != problem) continue;
      if (auto product = k.product.lock()) return product;
    }
    // Not by make_shared(), whose memory a weak pointer keeps.
    const std::shared_ptr<const OneDnnMatMul> product(new OneDnnMatMul(problem));
    known.push_back({problem, threads, product});
    return product;
  }

  std::shared_ptr<const OneDnnMatMul> product_;
};

}  // namespace

bool has_products(DType narrow) {
  if (onednn_type(narrow) == dnnl::memory::data_type::undef) return false;
  try {
    const auto square = onednn_desc(narrow, {64, 64}, {64, 1});
    const dnnl::matmul::primitive_desc pd(onednn_engine(), square, square, square);
    return is_fast(pd);
  } catch (const dnnl::error&) {
    return false;
  }
}

std::unique_ptr<Kernel> make_onednn_matmul(const NodeSpec& node, std::string* why_not) {
  auto problem = read_matmul(node, why_not, true);
  if (!problem) return nullptr;
  if (onednn_type(problem->dtype) == dnnl::memory::data_type::undef) {
    return decline(why_not, "dtype is {}", name_of(problem->dtype));
  }
  if (problem->multiplications() == 0) return decline(why_not, "empty product");
  if (problem->addend && (problem->y_dtype != DType::f32 || !problem->adds_product())) {
    return decline(why_not, "only a plain float32 product can be added to existing values");
  }
  // A transposed output is outside oneDNN's fast path, so compute the transposed product.
  if (problem->y_n != 1 && problem->y_m == 1) problem = problem->swap();
  if (problem->y_dtype == DType::f16 && problem->relu) {
    return decline(why_not, "Relu needs float32 or bfloat16");
  }
  if (problem->y_dtype != DType::f32 && problem->bias && problem->bias_on_rows) {
    return decline(why_not, "a bias on a transposed result needs float32");
  }
  return make_onednn_kernel<SharedOneDnnMatMul>(why_not, *problem);
}

}  // namespace steep::cpu
