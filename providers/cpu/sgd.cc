// steep.SGD: one pass over parameter, gradient and momentum buffer, with torch.optim's order of
// operations. It is bound by memory, and simple enough for the compiler to vectorise.
// steep.NarrowSGD: the same, with a buffer that is kept in fewer bits.

#include "providers/cpu/narrow_moments.h"
#include "providers/cpu/optimizer.h"
#include "providers/cpu/parallel.h"

namespace steep::cpu {
namespace {

constexpr int kBuffer = StepInputs::kFirstState;

/// The numbers of one step.
template <typename T>
struct SgdStep {
  T lr, scale, decay, keep, take;
  bool first, nesterov;
};

struct SgdOptions {
  double momentum, dampening, weight_decay;
  bool nesterov;

  explicit SgdOptions(const Attrs& attrs)
      : momentum(attrs.real("momentum")),
        dampening(attrs.real("dampening")),
        weight_decay(attrs.real("weight_decay")),
        nesterov(attrs.integer("nesterov") != 0) {}

  template <typename T>
  SgdStep<T> at(const StepInputs& inputs, const KernelArgs& args) const {
    return {.lr = static_cast<T>(inputs.learning_rate(args)),
            .scale = static_cast<T>(inputs.scale(args)),
            .decay = static_cast<T>(inputs.setting(args, 2, weight_decay)),
            .keep = static_cast<T>(inputs.setting(args, 0, momentum)),
            .take = static_cast<T>(1 - inputs.setting(args, 1, dampening)),
            // In the first step the buffer becomes the gradient, without dampening.
            .first = inputs.number(args) == 1,
            .nesterov = nesterov};
  }
};

/// Updates elements [begin, end) of parameter and buffer. Arrays are identical or disjoint.
template <typename T>
void sgd_range(const SgdStep<T>& s, const KernelArgs& args, bool writes_buffer, int64_t begin,
               int64_t end) {
  const T* param = args.input<T>(0);
  const T* grad = args.input<T>(1);
  const T* buffer = args.input<T>(kBuffer);
  T* param_out = args.output<T>(0);
  T* buffer_out = writes_buffer ? args.output<T>(1) : nullptr;
#pragma omp simd
  for (int64_t i = begin; i < end; ++i) {
    const T g = s.scale * grad[i] + s.decay * param[i];
    const T b = s.first ? g : s.keep * buffer[i] + s.take * g;
    param_out[i] = param[i] - s.lr * (s.nesterov ? g + s.keep * b : b);
    if (buffer_out != nullptr) buffer_out[i] = b;
  }
}

template <typename T>
class Sgd final : public Kernel {
 public:
  Sgd(const NodeSpec& node, StepInputs inputs)
      : size_(node.in(0).size()),
        inputs_(inputs),
        options_(node.attrs),
        buffer_(node.in(kBuffer).present()),
        buffer_out_(buffer_ && node.out(1).present()) {
    may_share = {{0, 0}};
    if (buffer_) may_share.emplace_back(kBuffer, 1);
  }

  void execute(const KernelArgs& args) const override {
    const SgdStep<T> step = options_.at<T>(inputs_, args);
    const T lr = step.lr, scale = step.scale, decay = step.decay;
    const T* param = args.input<T>(0);
    const T* grad = args.input<T>(1);
    T* param_out = args.output<T>(0);
    parallel_for(size_, 16384, [&](int64_t begin, int64_t end) {
      if (buffer_) return sgd_range(step, args, buffer_out_, begin, end);
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) {
        param_out[i] = param[i] - lr * (scale * grad[i] + decay * param[i]);
      }
    });
  }

 private:
  int64_t size_;
  StepInputs inputs_;
  SgdOptions options_;
  bool buffer_, buffer_out_;
};

class NarrowSgd final : public Kernel {
 public:
  NarrowSgd(const NodeSpec& node, StepInputs inputs, NarrowMoments moments)
      : inputs_(inputs), options_(node.attrs), moments_(moments) {
    may_share = moments_.shared();
  }

  void execute(const KernelArgs& args) const override {
    const auto step = options_.at<float>(inputs_, args);
    moments_.update(args, [&](NarrowMoments::Part& part) {
      sgd_range(step, part.args(), true, 0, part.count);
    });
  }

 private:
  StepInputs inputs_;
  SgdOptions options_;
  NarrowMoments moments_;
};

std::unique_ptr<Kernel> make_sgd(const NodeSpec& node, std::string* why_not) {
  const bool buffer = node.in(kBuffer).present();
  const auto inputs = step_inputs(node, 3, why_not);
  if (!inputs) return nullptr;
  if (!buffer && node.attrs.real("momentum") != 0) {
    *why_not = "momentum needs its buffer";
    return nullptr;
  }
  if (node.in(0).dtype == DType::f32) return std::make_unique<Sgd<float>>(node, *inputs);
  return std::make_unique<Sgd<double>>(node, *inputs);
}

std::unique_ptr<Kernel> make_narrow_sgd(const NodeSpec& node, std::string* why_not) {
  const auto moments = NarrowMoments::of(node, 1, why_not);
  const auto inputs = moments ? step_numbers(node, 3, why_not) : std::nullopt;
  return inputs ? std::make_unique<NarrowSgd>(node, *inputs, *moments) : nullptr;
}

}  // namespace

void register_sgd(std::vector<Candidate>& list) {
  list.push_back({"steep.NarrowSGD", "loops", make_narrow_sgd});
  list.push_back({"steep.SGD", "loops", make_sgd});
}

}  // namespace steep::cpu
