// Convolutions with one tap, as products of matrices that read x and y where they lie:
//
//   y[n] = w · x[n] + bias    dx[n] = wᵀ · dy[n]    dw = Σ dy[n] · x[n]ᵀ
//
// x[n], y[n]: [channels, places]. oneDNN's convolutions first reorder x and y to blocks of
// channels: with float32 [8, 64, 576] to 256 channels they take 0.81 ms on two cores of an AMD
// EPYC, and the product takes 0.32.
#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "providers/cpu/build_kernel.h"
#include "providers/cpu/conv.h"
#include "providers/cpu/parallel.h"
#include "providers/cpu/strided_copy.h"

namespace steep::cpu {
namespace {

bool has_one_tap(const WindowAxis& a) {
  return a.kernel == 1 && a.stride == 1 && a.pad_begin == 0 && a.in == a.out;
}

/// The product of one node, as the first candidate that takes it computes it.
std::unique_ptr<Kernel> make_product(const NodeSpec& node, std::vector<Operand> inputs,
                                     Operand output, const Ints& perm_a, const Ints& perm_b,
                                     const Ints& perm_y, std::string* why_not) {
  Attrs attrs{{"alpha", 1.0}, {"activation", std::string()}};
  for (const auto& [name, perm] :
       {std::pair("perm_a", perm_a), std::pair("perm_b", perm_b), std::pair("perm_y", perm_y)}) {
    if (!perm.empty()) attrs.set(name, perm);
  }
  const NodeSpec product{.name = node.name,
                         .op = "steep.MatMul",
                         .attrs = attrs,
                         .inputs = std::move(inputs),
                         .outputs = {std::move(output)}};
  return make_kernel(product, "", why_not).kernel;
}

/// Whether a product for each row of the batch has few columns for the work of reading w. Measured
/// on an AMD EPYC (Zen 5), with the convolutions of ResNet-50 and MobileNetV2.
bool has_few_places(const ConvProblem& p, int64_t places) {
  constexpr int64_t kFewest = 16, kFew = 64, kLarge = 65536;
  return p.x[0] > 1 && (places < kFewest || (places < kFew && element_count(p.w) >= kLarge));
}

/// y or dx. With many places, a product for each row of the batch; with few, one product for all
/// rows, of copies in which the channels of a place are adjacent.
class PointwiseConv final : public Kernel {
 public:
  PointwiseConv(const ConvProblem& p, const NodeSpec& node, std::string* why_not) : bias_(p.bias) {
    const bool forward = p.part == ConvPart::forward;
    const int64_t rows = p.x[0], places = extent(p.x, 2, std::ssize(p.x));
    const int64_t from = forward ? p.x[1] : p.w[0], to = forward ? p.w[0] : p.x[1];
    const bool copies = has_few_places(p, places);
    const auto side = [&](int64_t channels) {
      return Operand{p.dtype,
                     copies ? Dims{rows * places, channels} : Dims{rows, channels, places}};
    };
    std::vector<Operand> inputs = {side(from), {p.dtype, {p.w[0], p.w[1]}}};
    if (p.bias) inputs.push_back({p.dtype, {p.w[0]}});
    const Ints turn = copies ? Ints{} : Ints{0, 2, 1};
    product_ = make_product(node, std::move(inputs), side(to), turn, forward ? Ints{1, 0} : Ints{},
                            turn, why_not);
    if (!product_) return;
    flops = product_->flops;
    scratch_bytes = whole_lines(product_->scratch_bytes);
    if (!copies) return;
    const auto strides = [&](int64_t channels) { return Dims{channels * places, 1, places}; };
    const auto turned = [&](int64_t channels) { return Dims{channels * places, channels, 1}; };
    const size_t bytes = size_of(p.dtype);
    gather_.emplace(bytes, Dims{rows, places, from}, strides(from), turned(from));
    scatter_.emplace(bytes, Dims{rows, places, to}, turned(to), strides(to));
    from_at_ = scratch_bytes;
    to_at_ = from_at_ + whole_lines(static_cast<size_t>(gather_->bytes()));
    scratch_bytes = to_at_ + whole_lines(static_cast<size_t>(scatter_->bytes()));
  }

  bool made() const { return product_ != nullptr; }

  void execute(const KernelArgs& args) const override {
    if (!gather_) return product_->execute(args);
    auto* scratch = static_cast<std::byte*>(args.scratch);
    const void* in[] = {scratch + from_at_, args.in[1], bias_ ? args.in[2] : nullptr};
    void* out[] = {scratch + to_at_};
    gather_->run(args.in[0], scratch + from_at_);
    product_->execute({in, out, scratch});
    scatter_->run(scratch + to_at_, args.out[0]);
  }

 private:
  bool bias_;  ///< a node without one may have two inputs
  std::unique_ptr<Kernel> product_{};
  std::optional<StridedCopy> gather_{}, scatter_{};
  size_t from_at_ = 0, to_at_ = 0;  ///< the copies, in scratch
};

/// dw: copies of x and dy with the places of all rows side by side, and one product; or, where
/// copies are larger than the results, the products of all rows, and their sum.
template <typename T>
class PointwiseGradient final : public Kernel {
 public:
  PointwiseGradient(const ConvProblem& p, const NodeSpec& node, std::string* why_not)
      : rows_(p.x[0]), results_(element_count(p.w)) {
    const int64_t in = p.x[1], out = p.w[0], places = extent(p.x, 2, std::ssize(p.x));
    copies_ = has_few_places(p, places) || (rows_ > 1 && results_ > (in + out) * places);
    const auto side = [&](int64_t channels) {
      const Dims dims = copies_ ? Dims{channels, rows_ * places} : Dims{rows_, channels, places};
      return Operand{p.dtype, dims};
    };
    const Operand result{p.dtype, copies_ ? Dims{out, in} : Dims{rows_, out, in}};
    const Ints turn = copies_ ? Ints{1, 0} : Ints{0, 2, 1};
    product_ = make_product(node, {side(out), side(in)}, result, {}, turn, {}, why_not);
    if (!product_) return;
    flops = product_->flops;
    scratch_bytes = whole_lines(product_->scratch_bytes);
    if (copies_) {
      for (const int64_t channels : {out, in}) {
        turned_.emplace_back(sizeof(T), Dims{channels, rows_, places},
                             Dims{places, channels * places, 1}, Dims{rows_ * places, places, 1});
        turned_at_.push_back(scratch_bytes);
        scratch_bytes += whole_lines(static_cast<size_t>(channels * rows_ * places) * sizeof(T));
      }
    } else if (rows_ > 1) {
      turned_at_.push_back(scratch_bytes);
      scratch_bytes += whole_lines(static_cast<size_t>(rows_ * results_) * sizeof(T));
    }
  }

  bool made() const { return product_ != nullptr; }

  void execute(const KernelArgs& args) const override {
    auto* scratch = static_cast<std::byte*>(args.scratch);
    const void* in[] = {args.in[0], args.in[1]};
    void* out[] = {args.out[0]};
    for (size_t i = 0; i < turned_.size(); ++i) {
      turned_[i].run(in[i], scratch + turned_at_[i]);
      in[i] = scratch + turned_at_[i];
    }
    const bool sums = turned_.empty() && rows_ > 1;
    if (sums) out[0] = scratch + turned_at_[0];
    product_->execute({in, out, scratch});
    if (!sums) return;
    const T* each = static_cast<const T*>(out[0]);
    T* total = args.output<T>(0);
    parallel_for(results_, grain_of(65536, rows_), [&](int64_t begin, int64_t end) {
      std::copy(each + begin, each + end, total + begin);
      for (int64_t row = 1; row < rows_; ++row) {
        const T* more = each + row * results_;
        for (int64_t i = begin; i < end; ++i) total[i] += more[i];
      }
    });
  }

 private:
  int64_t rows_, results_;
  bool copies_ = false;
  std::unique_ptr<Kernel> product_{};
  std::vector<StridedCopy> turned_{};  ///< dy and x
  std::vector<size_t> turned_at_{};    ///< in scratch; or where the products of all rows are
};

/// PyTorch's exporter gives a convolution without bias one of zeros. To add it would read y again.
bool is_zero(const Operand& bias) {
  if (bias.constant == nullptr) return false;
  const auto all_zero = [&](const auto* values) {
    return std::all_of(values, values + bias.size(), [](auto v) { return v == 0; });
  };
  return bias.dtype == DType::f32 ? all_zero(bias.constant->data<float>())
                                  : all_zero(bias.constant->data<double>());
}

template <typename K>
std::unique_ptr<Kernel> make(const ConvProblem& p, const NodeSpec& node, std::string* why_not) {
  auto kernel = std::make_unique<K>(p, node, why_not);
  if (!kernel->made()) return nullptr;
  return kernel;
}

}  // namespace

std::unique_ptr<Kernel> make_pointwise_conv(const NodeSpec& node, std::string* why_not) {
  auto p = read_conv(node, why_not);
  if (!p) return nullptr;
  if (p->dtype != DType::f32 && p->dtype != DType::f64) {
    return decline(why_not, "dtype is {}", name_of(p->dtype));
  }
  if (p->groups > 1) return decline(why_not, "it has groups");
  if (!std::ranges::all_of(p->axes, has_one_tap)) return decline(why_not, "more than one tap");
  if (p->multiplications() == 0) return decline(why_not, "empty product");
  if (p->bf16) return decline(why_not, "operands may be rounded to bfloat16");
  p->bias = p->bias && !is_zero(node.in(2));
  if (p->part != ConvPart::grad_weight) return make<PointwiseConv>(*p, node, why_not);
  return p->dtype == DType::f32 ? make<PointwiseGradient<float>>(*p, node, why_not)
                                : make<PointwiseGradient<double>>(*p, node, why_not);
}

}  // namespace steep::cpu
