// Several steps of each optimizer against the same arithmetic in double, element by element.

#include <functional>
#include <limits>

#include "kernels/run_kernel.h"

namespace steep::test {
namespace {

using Vec = std::vector<double>;

struct Trial {
  int64_t size = 37;
  DType dtype = DType::f32;
  Attrs attrs{};
  double grad_scale = 1;
};

/// Input lr with all settings in the op's order, and in `attrs` the same settings as attributes.
Tensor settings(bool sgd, double lr, Attrs& attrs) {
  std::vector<double> numbers{lr};
  const std::vector<const char*> names =
      sgd ? std::vector{"momentum", "dampening", "weight_decay"}
          : std::vector{"beta1", "beta2", "epsilon", "weight_decay"};
  for (const char* name : names) {
    numbers.push_back(attrs.real(name, 0));
    attrs.erase(name);
  }
  const auto extent = static_cast<int64_t>(numbers.size());
  return Tensor::from<double>(numbers, {extent});
}

float rate(int64_t step) { return 0.01F / static_cast<float>(step); }

/// Runs five steps, in place and not, with one and with two threads, and compares with `model`
/// after each step. `model` takes (param, gradient, state1, state2, lr, step) and updates them.
void check(std::string_view op, const Trial& s, size_t states,
           const std::function<void(Vec&, const Vec&, Vec&, Vec&, double, double)>& model) {
  SCOPED_TRACE(std::string(op) + " of " + std::to_string(s.size));
  const Dims dims = {s.size};
  std::vector<Tensor> tensors = {random_tensor(s.dtype, dims, 1)};
  for (size_t i = 0; i < states; ++i) tensors.push_back(Tensor::zeros(s.dtype, dims));
  Vec param = values(tensors[0]), state1(param.size()), state2(param.size());
  for (int64_t step = 1; step <= 5; ++step) {
    const Tensor grad = random_tensor(s.dtype, dims, static_cast<uint32_t>(10 + step));
    const Tensor lr = Tensor::scalar(rate(step)), number = Tensor::scalar(step);
    const Tensor scale =
        s.grad_scale == 1 ? Tensor() : Tensor::scalar(static_cast<float>(s.grad_scale));
    std::vector<Tensor> inputs = {tensors[0], grad, lr, number, scale};
    inputs.insert(inputs.end(), tensors.begin() + 1, tensors.end());
    const std::vector<Out> outs(states + 1, Out{s.dtype, dims});
    RunOptions in_place{.default_constants = false};
    in_place.share = {{0, 0}};
    for (size_t i = 0; i < states; ++i) in_place.share.emplace_back(5 + i, i + 1);
    const auto two =
        run_kernel(op, inputs, outs, s.attrs, {.threads = 2, .default_constants = false});
    Attrs left = s.attrs;
    std::vector<Tensor> fed = inputs;
    fed[2] = settings(op == "steep.SGD", rate(step), left);
    fed[3] = Tensor::scalar(static_cast<float>(step));
    const auto by_input = run_kernel(op, fed, outs, left, {.default_constants = false});
    const auto one =
        run_kernel(op, inputs, outs, s.attrs, {.threads = 1, .default_constants = false});
    const auto shared = run_kernel(op, inputs, outs, s.attrs, in_place);

    Vec g = values(grad);
    for (double& v : g) v *= s.grad_scale;
    model(param, g, state1, state2, rate(step), static_cast<double>(step));
    const double tol = s.dtype == DType::f64 ? 1e-13 : 2e-6;
    for (size_t i = 0; i <= states; ++i) {
      expect_close(two[i], i == 0 ? param : i == 1 ? state1 : state2, tol, tol);
      expect_same_bits(one[i], two[i]);
      expect_same_bits(shared[i], two[i]);
      expect_same_bits(by_input[i], two[i]);
    }
    tensors = two;
  }
}

void for_sizes_and_dtypes(const Trial& base, const std::function<void(const Trial&)>& body) {
  for (DType dtype : {DType::f32, DType::f64}) {
    for (int64_t size : {1, 37, 100001, 0}) {
      Trial s = base;
      s.dtype = dtype;
      s.size = size;
      body(s);
    }
  }
}

TEST(Sgd, FollowsTorch) {
  struct Options {
    double momentum, dampening, decay;
    int64_t nesterov, maximize;
  };
  for (const Options& o :
       {Options{0, 0, 0, 0, 0}, Options{0, 0, 0.1, 0, 1}, Options{0.9, 0, 0, 0, 0},
        Options{0.9, 0.3, 0.1, 0, 1}, Options{0.9, 0, 0.1, 1, 0}}) {
    Trial setup{.attrs = {{"momentum", o.momentum},
                          {"dampening", o.dampening},
                          {"weight_decay", o.decay},
                          {"nesterov", o.nesterov},
                          {"maximize", o.maximize}},
                .grad_scale = 0.5};
    for_sizes_and_dtypes(setup, [&](const Trial& s) {
      check("steep.SGD", s, o.momentum != 0 ? 1 : 0,
            [&](Vec& p, const Vec& grad, Vec& buffer, Vec&, double lr, double step) {
              for (size_t i = 0; i < p.size(); ++i) {
                double g = (o.maximize != 0 ? -grad[i] : grad[i]) + o.decay * p[i];
                if (o.momentum != 0) {
                  buffer[i] = step == 1 ? g : o.momentum * buffer[i] + (1 - o.dampening) * g;
                  g = o.nesterov != 0 ? g + o.momentum * buffer[i] : buffer[i];
                }
                p[i] -= lr * g;
              }
            });
    });
  }
}

TEST(Sgd, MomentumWithoutBufferIsRefused) {
  const Tensor x = random_tensor(DType::f32, {3});
  EXPECT_ANY_THROW(run_kernel("steep.SGD", {x, x, Tensor::scalar(0.1F), Tensor::scalar(int64_t{1})},
                              {{DType::f32, {3}}}, {{"momentum", 0.9}}));
}

TEST(Adam, FollowsTorch) {
  for (int64_t decoupled : {0, 1, 2}) {
    for (double decay : {0.0, 0.1}) {
      const Trial setup{.attrs = {{"beta1", 0.8},
                                  {"beta2", 0.95},
                                  {"epsilon", 1e-4},
                                  {"weight_decay", decay},
                                  {"decoupled", decoupled}},
                        .grad_scale = decay == 0 ? 1 : 0.25};
      for_sizes_and_dtypes(setup, [&](const Trial& s) {
        check("steep.Adam", s, 2,
              [&](Vec& p, const Vec& grad, Vec& m, Vec& v, double lr, double step) {
                for (size_t i = 0; i < p.size(); ++i) {
                  double g = grad[i];
                  if (decoupled == 1) p[i] *= 1 - lr * decay;
                  if (decoupled == 0) g += decay * p[i];
                  m[i] = 0.8 * m[i] + 0.2 * g;
                  v[i] = 0.95 * v[i] + 0.05 * g * g;
                  const double m_hat = m[i] / (1 - std::pow(0.8, step));
                  const double correction = 1 - std::pow(0.95, step);
                  const double epsilon = decoupled == 2 ? 1e-4 / std::sqrt(correction) : 1e-4;
                  p[i] -= lr * m_hat / (std::sqrt(v[i] / correction) + epsilon);
                  if (decoupled == 2) p[i] *= 1 - lr * decay;
                }
              });
      });
    }
  }
}

TEST(Adam, TheGreatestSizeStaysNaN) {
  // As torch.maximum: whether the number or the size so far is NaN, on each kind of processor.
  for (DType dtype : {DType::f32, DType::f64}) {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    const auto of = [&](double a, double b) {
      return dtype == DType::f32
                 ? Tensor::from<float>({static_cast<float>(a), static_cast<float>(b)}, {2})
                 : Tensor::from<double>({a, b}, {2});
    };
    const std::vector<Tensor> inputs = {
        of(1, 1), of(1, nan), Tensor::scalar(0.1F), Tensor::scalar(int64_t{1}), Tensor(), of(0, 0),
        of(0, 0), of(nan, 1)};
    const auto out = run_kernel("steep.Adam", inputs, std::vector<Out>(4, Out{dtype, {2}}),
                                {{"beta1", 0.9}, {"beta2", 0.99}}, {.default_constants = false});
    for (const double greatest : values(out[3])) EXPECT_TRUE(std::isnan(greatest));
  }
}

TEST(Lamb, FollowsThePaper) {
  for (int64_t correct : {0, 1}) {
    const Trial setup{.attrs = {{"beta1", 0.8},
                                {"beta2", 0.95},
                                {"epsilon", 1e-4},
                                {"weight_decay", 0.1},
                                {"bias_correction", correct}},
                      .grad_scale = 0.25};
    for_sizes_and_dtypes(setup, [&](const Trial& s) {
      check("steep.Lamb", s, 2, [&](Vec& p, const Vec& g, Vec& m, Vec& v, double lr, double step) {
        Vec r(p.size());
        double w_norm = 0, r_norm = 0;
        for (size_t i = 0; i < p.size(); ++i) {
          m[i] = 0.8 * m[i] + 0.2 * g[i];
          v[i] = 0.95 * v[i] + 0.05 * g[i] * g[i];
          const double m_hat = correct != 0 ? m[i] / (1 - std::pow(0.8, step)) : m[i];
          const double v_hat = correct != 0 ? v[i] / (1 - std::pow(0.95, step)) : v[i];
          r[i] = m_hat / (std::sqrt(v_hat) + 1e-4) + 0.1 * p[i];
          w_norm += p[i] * p[i];
          r_norm += r[i] * r[i];
        }
        const double trust = w_norm == 0 || r_norm == 0 ? 1 : std::sqrt(w_norm / r_norm);
        for (size_t i = 0; i < p.size(); ++i) p[i] -= lr * trust * r[i];
      });
    });
  }
}

TEST(Lamb, ZeroParameterStillMoves) {
  const Tensor zeros = Tensor::zeros(DType::f32, {4}),
               grad = Tensor::from<float>({1, 1, 1, 1}, {4});
  const auto out = run_kernel(
      "steep.Lamb",
      {zeros, grad, Tensor::scalar(0.5F), Tensor::scalar(int64_t{1}), Tensor(), zeros, zeros},
      {{DType::f32, {4}}, {DType::f32, {4}}, {DType::f32, {4}}}, {{"epsilon", 0.0}});
  expect_close(out[0], {-0.5, -0.5, -0.5, -0.5}, 1e-5);
}

TEST(GlobalNorm, IsTheNormOfAllElements) {
  for (DType dtype : {DType::f32, DType::f64}) {
    const std::vector<Tensor> grads = {random_tensor(dtype, {300, 401}, 1),
                                       random_tensor(dtype, {}, 2), random_tensor(dtype, {0, 3}, 3),
                                       random_tensor(dtype, {17}, 4)};
    double sum = 0;
    for (const Tensor& g : grads) {
      for (double v : values(g)) sum += v * v;
    }
    const Tensor two = run_one("steep.GlobalNorm", grads, {DType::f32, {}}, {}, {.threads = 2});
    expect_close(two, {std::sqrt(sum)}, 1e-6);
    expect_same_bits(run_one("steep.GlobalNorm", grads, {DType::f32, {}}, {}, {.threads = 1}), two);
  }
  const Tensor huge = Tensor::from<float>({3e30F, 4e30F}, {2});
  expect_close(run_one("steep.GlobalNorm", {huge}, {DType::f32, {}}), {5e30});
}

}  // namespace
}  // namespace steep::test
