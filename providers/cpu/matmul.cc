// MatMul and steep.MatMul: the list of candidates, and loops for every dtype and stride.

#include "providers/cpu/matmul.h"

#include <type_traits>

#include "providers/cpu/build_kernel.h"
#include "providers/cpu/convert.h"
#include "providers/cpu/parallel.h"

namespace steep::cpu {
namespace {

// Signed overflow wraps, as in NumPy.
template <typename T>
struct Wrapping {
  using Type = T;
};
template <typename T>
  requires std::is_integral_v<T>
struct Wrapping<T> {
  using Type = std::make_unsigned_t<T>;
};

template <typename T>
class ReferenceMatMul final : public Kernel {
 public:
  explicit ReferenceMatMul(MatMulProblem problem) : p_(std::move(problem)) {
    flops = 2.0 * static_cast<double>(p_.multiplications());
  }

  void execute(const KernelArgs& args) const override {
    const int64_t rows = p_.batch_count() * p_.m;
    const int64_t cost = std::max<int64_t>(p_.n * p_.k, 1);
    parallel_for(rows, grain_of(65536, cost), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) compute_row(args, row);
    });
  }

 private:
  using Acc = typename Wrapping<T>::Type;
  static constexpr int64_t kBlock = 256;

  void compute_row(const KernelArgs& args, int64_t row) const {
    const T* a = args.input<T>(0) + (row % p_.m) * p_.a_m;
    const T* b = args.input<T>(1);
    T* y = args.output<T>(0) + (row % p_.m) * p_.y_m;
    int64_t rest = row / p_.m;
    for (size_t d = p_.batch.size(); d-- > 0;) {
      const int64_t i = rest % p_.batch[d];
      rest /= p_.batch[d];
      a += i * p_.a_batch[d];
      b += i * p_.b_batch[d];
      y += i * p_.y_batch[d];
    }
    for (int64_t j = 0; j < p_.n; j += kBlock) {
      const int64_t count = std::min(kBlock, p_.n - j);
      Acc sum[kBlock] = {};
      for (int64_t k = 0; k < p_.k; ++k) {
        const Acc factor = static_cast<Acc>(a[k * p_.a_k]);
        const T* w = b + k * p_.b_k + j * p_.b_n;
        for (int64_t c = 0; c < count; ++c) sum[c] += factor * static_cast<Acc>(w[c * p_.b_n]);
      }
      for (int64_t c = 0; c < count; ++c) {
        y[(j + c) * p_.y_n] = finish(args, static_cast<T>(sum[c]), j + c);
      }
    }
  }

  T finish(const KernelArgs& args, T value, int64_t column) const {
    if constexpr (std::is_floating_point_v<T>) {
      value *= static_cast<T>(p_.alpha);
      if (p_.bias) value += args.input<T>(2)[column];
    }
    return p_.relu && value < 0 ? T{0} : value;
  }

  MatMulProblem p_;
};

/// 16-bit floats: widens the operands, multiplies in float32, narrows the result. It gives the
/// results of a machine without 16-bit products, at the speed of float32.
class WideMatMul final : public Kernel {
 public:
  /// `multiply`: the kernel of the same node in float32.
  WideMatMul(const NodeSpec& node, std::unique_ptr<Kernel> multiply)
      : multiply_(std::move(multiply)) {
    flops = multiply_->flops;
    for (size_t i = 0; i < 3; ++i) add(node.in(i));
    add(node.out(0));
    inner_scratch_ = scratch_bytes;
    scratch_bytes += multiply_->scratch_bytes;
  }

  void execute(const KernelArgs& args) const override {
    const void* in[3] = {};
    for (size_t i = 0; i < 3; ++i) in[i] = widen(parts_[i], args.in[i], args.scratch);
    const Part& y = parts_[3];
    auto* wide = y.convert == nullptr ? args.out[0] : static_cast<char*>(args.scratch) + y.offset;
    void* const out[1] = {wide};
    multiply_->execute({in, out, static_cast<char*>(args.scratch) + inner_scratch_});
    if (y.convert != nullptr) convert(y, find_convert(DType::f32, y.dtype), wide, args.out[0]);
  }

 private:
  struct Part {
    DType dtype = DType::undefined;
    Convert convert = nullptr;  // to float32; null if not needed
    size_t offset = 0;          // in the scratch
    int64_t count = 0;
  };

  void add(const Operand& operand) {
    Part part{.dtype = operand.dtype, .offset = scratch_bytes, .count = operand.size()};
    if (operand.present() && operand.dtype != DType::f32) {
      part.convert = find_convert(operand.dtype, DType::f32);
      scratch_bytes += whole_lines(static_cast<size_t>(part.count) * sizeof(float));
    }
    parts_.push_back(part);
  }

  static const void* widen(const Part& part, const void* from, void* scratch) {
    if (part.convert == nullptr) return from;
    void* wide = static_cast<char*>(scratch) + part.offset;
    convert(part, part.convert, from, wide);
    return wide;
  }

  static void convert(const Part& part, Convert f, const void* from, void* to) {
    const auto from_size = static_cast<int64_t>(f == part.convert ? size_of(part.dtype) : 4);
    const auto to_size = static_cast<int64_t>(f == part.convert ? 4 : size_of(part.dtype));
    parallel_for(part.count, 65536, [&](int64_t begin, int64_t end) {
      f(static_cast<const char*>(from) + begin * from_size,
        static_cast<char*>(to) + begin * to_size, end - begin);
    });
  }

  std::unique_ptr<Kernel> multiply_;
  size_t inner_scratch_ = 0;
  std::vector<Part> parts_;
};

std::unique_ptr<Kernel> make_reference(const NodeSpec& node, std::string* why_not);

std::unique_ptr<Kernel> make_wide(const NodeSpec& node, std::string* why_not) {
  NodeSpec wide = node;
  for (auto* operands : {&wide.inputs, &wide.outputs}) {
    for (Operand& operand : *operands) {
      if (operand.present()) operand.dtype = DType::f32;
    }
  }
  for (auto* make : {make_small_matmul, make_onednn_matmul, make_blocked_matmul, make_reference}) {
    if (auto multiply = make(wide, why_not)) {
      return std::make_unique<WideMatMul>(node, std::move(multiply));
    }
  }
  return nullptr;
}

std::unique_ptr<Kernel> make_reference(const NodeSpec& node, std::string* why_not) {
  auto p = read_matmul(node, why_not);
  if (!p) return nullptr;
  switch (p->dtype) {
    case DType::f32: return std::make_unique<ReferenceMatMul<float>>(*p);
    case DType::f64: return std::make_unique<ReferenceMatMul<double>>(*p);
    case DType::f16:
    case DType::bf16: return make_wide(node, why_not);
    default: break;
  }
  if (p->alpha != 1 || p->bias) {
    *why_not = "alpha and bias need a float dtype";
    return nullptr;
  }
  switch (p->dtype) {
    case DType::i32: return std::make_unique<ReferenceMatMul<int32_t>>(*p);
    case DType::i64: return std::make_unique<ReferenceMatMul<int64_t>>(*p);
    case DType::u32: return std::make_unique<ReferenceMatMul<uint32_t>>(*p);
    case DType::u64: return std::make_unique<ReferenceMatMul<uint64_t>>(*p);
    default: *why_not = "dtype is not supported"; return nullptr;
  }
}

}  // namespace

void register_matmul(std::vector<Candidate>& list) {
  for (std::string_view op : {"MatMul", "steep.MatMul"}) {
    list.push_back({op, "small", make_small_matmul});
    list.push_back({op, "onednn", make_onednn_matmul});
    list.push_back({op, "blocked", make_blocked_matmul});
    list.push_back({op, "reference", make_reference});
  }
}

}  // namespace steep::cpu
