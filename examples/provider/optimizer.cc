// steep.Adam and steep.SGD. Their numbers are read on the host before the work is enqueued.
#include "kernels.h"

namespace mirror {
namespace {

// inputs of every optimizer after the parameter and its gradient
constexpr int kRate = 2, kStep = 3, kScale = 4, kState = 5;
constexpr uint64_t kOnHost = 1U << kRate | 1U << kStep | 1U << kScale;

/// The number of the step, the scale of gradients, and lr with `count` numbers: from input kRate if
/// it holds them all, otherwise from the attributes.
struct Numbers {
  double step, scale;
  std::vector<double> all;
};

struct Reader {
  bool fed, real_step, scaled;
  std::vector<double> attributes;

  Numbers read(const Pointers& at) const {
    Numbers n{};
    n.step =
        real_step ? *at.f(kStep) : static_cast<double>(*static_cast<const int64_t*>(at.in[kStep]));
    n.scale = scaled ? *at.f(kScale) : 1;
    const auto* given = static_cast<const double*>(at.in[kRate]);
    n.all.push_back(fed ? given[0] : *at.f(kRate));
    for (size_t i = 0; i < attributes.size(); ++i)
      n.all.push_back(fed ? given[i + 1] : attributes[i]);
    return n;
  }
};

std::optional<Reader> reader(const Node& node, std::vector<double> attributes, std::string& why) {
  for (int i = 0; i < node.inputs(); ++i) {
    if (i != kRate && i != kStep && node.in(i).present() && node.in(i).type != kFloat)
      return decline(why, "a parameter or state is not float32");
  }
  const Operand rate = node.in(kRate), step = node.in(kStep);
  const bool fed = rate.type == kDouble;
  if (!fed && rate.type != kFloat) return decline(why, "the rate is of no known type");
  if (step.type != kInt64 && step.type != kFloat) return decline(why, "the step is no number");
  if (node.integer("maximize") != 0) return decline(why, "it goes along the gradient");
  return Reader{fed, step.type == kFloat, node.in(kScale).present(), std::move(attributes)};
}

}  // namespace

std::optional<Kernel> make_adam(const Node& node, std::string& why) {
  if (node.in(kState + 2).present()) return decline(why, "AMSGrad");
  if (node.integer("bias_correction") == 0) return decline(why, "uncorrected moments");
  if (node.integer("decoupled") > 1) return decline(why, "transformers' AdamW");
  const auto read = reader(
      node,
      {node.real("beta1"), node.real("beta2"), node.real("epsilon"), node.real("weight_decay")},
      why);
  if (!read) return std::nullopt;
  const bool decoupled = node.integer("decoupled") != 0;
  const int64_t count = node.in(0).size();
  Kernel kernel;
  kernel.host_inputs = kOnHost;
  kernel.may_share = {{0, 0}, {kState, 1}, {kState + 1, 2}};
  kernel.bind = [=](const Pointers& at) -> Task {
    const Numbers n = read->read(at);
    const double lr = n.all[0], beta1 = n.all[1], beta2 = n.all[2], epsilon = n.all[3],
                 decay = n.all[4];
    const auto root = static_cast<float>(std::sqrt(1 - std::pow(beta2, n.step)));
    const auto rate = static_cast<float>(lr / (1 - std::pow(beta1, n.step)));
    return [=, scale = static_cast<float>(n.scale)] {
      for (int64_t i = 0; i < count; ++i) {
        float w = at.f(0)[i], g = at.f(1)[i] * scale;
        if (decoupled) {
          w *= static_cast<float>(1 - lr * decay);
        } else {
          g += static_cast<float>(decay) * w;
        }
        float m = at.f(kState)[i], v = at.f(kState + 1)[i];
        m += static_cast<float>(1 - beta1) * (g - m);
        v = static_cast<float>(beta2) * v + static_cast<float>(1 - beta2) * g * g;
        at.y(0)[i] = w - rate * m / (std::sqrt(v) / root + static_cast<float>(epsilon));
        at.y(1)[i] = m;
        at.y(2)[i] = v;
      }
    };
  };
  return kernel;
}

std::optional<Kernel> make_sgd(const Node& node, std::string& why) {
  if (node.in(kState).present()) return decline(why, "momentum");
  const auto read = reader(node, {0, 0, node.real("weight_decay")}, why);
  if (!read) return std::nullopt;
  const int64_t count = node.in(0).size();
  Kernel kernel;
  kernel.host_inputs = kOnHost;
  kernel.may_share = {{0, 0}};
  kernel.bind = [=](const Pointers& at) -> Task {
    const Numbers n = read->read(at);
    return [=, rate = static_cast<float>(n.all[0]), decay = static_cast<float>(n.all[3]),
            scale = static_cast<float>(n.scale)] {
      for (int64_t i = 0; i < count; ++i) {
        const float w = at.f(0)[i];
        at.y(0)[i] = w - rate * (at.f(1)[i] * scale + decay * w);
      }
    };
  };
  return kernel;
}

}  // namespace mirror
