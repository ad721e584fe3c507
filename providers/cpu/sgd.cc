// steep.SGD: one pass over parameter, gradient and momentum buffer, with torch.optim's order of
// operations. It is bound by memory, and simple enough for the compiler to vectorise.

#include "providers/cpu/optimizer.h"
#include "providers/cpu/parallel.h"

namespace steep::cpu {
namespace {

constexpr int kBuffer = StepInputs::kFirstState;

template <typename T>
class Sgd final : public Kernel {
 public:
  Sgd(const NodeSpec& node, StepInputs inputs)
      : size_(node.in(0).size()),
        inputs_(inputs),
        momentum_(node.attrs.real("momentum")),
        dampening_(node.attrs.real("dampening")),
        weight_decay_(node.attrs.real("weight_decay")),
        nesterov_(node.attrs.integer("nesterov") != 0),
        buffer_(node.in(kBuffer).present()),
        buffer_out_(buffer_ && node.out(1).present()) {
    may_share = {{0, 0}};
    if (buffer_) may_share.emplace_back(kBuffer, 1);
  }

  void execute(const KernelArgs& args) const override {
    const auto lr = static_cast<T>(inputs_.learning_rate(args));
    const auto scale = static_cast<T>(inputs_.scale(args));
    const auto decay = static_cast<T>(inputs_.setting(args, 2, weight_decay_));
    // In the first step the buffer becomes the gradient, without dampening.
    const bool first = inputs_.number(args) == 1;
    const auto keep = static_cast<T>(inputs_.setting(args, 0, momentum_));
    const auto take = static_cast<T>(1 - inputs_.setting(args, 1, dampening_));
    const T* param = args.input<T>(0);
    const T* grad = args.input<T>(1);
    T* param_out = args.output<T>(0);
    parallel_for(size_, 16384, [&](int64_t begin, int64_t end) {
      if (!buffer_) {
#pragma omp simd
        for (int64_t i = begin; i < end; ++i) {
          param_out[i] = param[i] - lr * (scale * grad[i] + decay * param[i]);
        }
        return;
      }
      const T* buffer = args.input<T>(kBuffer);
      T* buffer_out = buffer_out_ ? args.output<T>(1) : nullptr;
#pragma omp simd  // arrays are identical or disjoint
      for (int64_t i = begin; i < end; ++i) {
        const T g = scale * grad[i] + decay * param[i];
        const T b = first ? g : keep * buffer[i] + take * g;
        param_out[i] = param[i] - lr * (nesterov_ ? g + keep * b : b);
        if (buffer_out != nullptr) buffer_out[i] = b;
      }
    });
  }

 private:
  int64_t size_;
  StepInputs inputs_;
  double momentum_, dampening_, weight_decay_;
  bool nesterov_, buffer_, buffer_out_;
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

}  // namespace

void register_sgd(std::vector<Candidate>& list) {
  list.push_back({"steep.SGD", "loops", make_sgd});
}

}  // namespace steep::cpu
