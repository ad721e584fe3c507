// Conv, steep.ConvGradInput and steep.ConvGradWeight: plain loops, for what oneDNN does not
// support.

#include "providers/cpu/conv.h"

#include "providers/cpu/build_kernel.h"
#include "providers/cpu/parallel.h"

namespace steep::cpu {

std::optional<ConvProblem> read_conv(const NodeSpec& node, std::string* why_not) {
  ConvProblem p{.part = node.op == "Conv"                  ? ConvPart::forward
                        : node.op == "steep.ConvGradInput" ? ConvPart::grad_input
                                                           : ConvPart::grad_weight,
                .dtype = node.out(0).dtype,
                .bias = false,
                .bf16 = node.attrs.integer("allow_bf16") != 0,
                .x = node.in(0).dims,
                .w = node.in(1).dims,
                .y = node.in(0).dims,
                .groups = node.attrs.integer("group"),
                .axes = {}};
  if (p.part == ConvPart::forward) {
    p.bias = node.in(2).present();
    p.y = node.out(0).dims;
  } else if (p.part == ConvPart::grad_input) {
    p.x = node.out(0).dims;
  } else {
    p.x = node.in(1).dims;
    p.w = node.out(0).dims;
  }
  if (p.x.size() < 3 || p.x.size() != p.w.size() || p.x.size() != p.y.size() || p.groups < 1 ||
      p.x[0] != p.y[0] || p.x[1] != p.w[1] * p.groups || p.y[1] != p.w[0] ||
      p.w[0] % p.groups != 0 || (p.bias && node.in(2).size() != p.w[0])) {
    *why_not = "the shapes of input, weight and output do not fit together";
    return {};
  }
  auto axes = read_window(node.attrs, p.x, p.y, Dims(p.w.begin() + 2, p.w.end()), why_not);
  if (!axes) return {};
  p.axes = std::move(*axes);
  return p;
}

namespace {

/// Calls f(y, x, w, count, step) for each run of products y[j] ~ x[j step] w[0], j < count, in
/// plane (n, o) of y.
template <typename T, typename F>
class Rows {
 public:
  Rows(const ConvProblem& p, F f)
      : p_(p),
        f_(f),
        xs_(row_major_strides(p.x)),
        ws_(row_major_strides(p.w)),
        ys_(row_major_strides(p.y)) {}

  void plane(T* y, T* x, T* w, int64_t n, int64_t o) const {
    const int64_t per_group = p_.w[0] / p_.groups;
    y += n * ys_[0] + o * ys_[1];
    x += n * xs_[0] + o / per_group * p_.w[1] * xs_[1];
    w += o * ws_[0];
    for (int64_t i = 0; i < p_.w[1]; ++i) axis(0, y, x + i * xs_[1], w + i * ws_[1]);
  }

 private:
  void axis(size_t d, T* y, T* x, T* w) const {
    const WindowAxis& a = p_.axes[d];
    const bool innermost = d + 1 == p_.axes.size();
    if (innermost && (a.kernel > 1024 || a.kernel * a.out > 1024)) poll();
    for (int64_t k = 0; k < a.kernel; ++k) {
      if (k % 1024 == 1023) poll();
      const auto [first, last] = a.windows_inside(k);
      if (first == last) continue;
      T* weight = w + k * ws_[d + 2];
      if (innermost) {
        if (last - first > 65536) poll();
        f_(y + first, x + a.at(first, k), weight, last - first, a.stride);
        continue;
      }
      for (int64_t o = first; o < last; ++o) {
        axis(d + 1, y + o * ys_[d + 2], x + a.at(o, k) * xs_[d + 2], weight);
      }
    }
  }

  const ConvProblem& p_;
  F f_;
  Dims xs_, ws_, ys_;
};

template <typename T>
struct ConvForward {
  ConvProblem p;

  void operator()(const KernelArgs& args) const {
    T* y = args.output<T>(0);
    const int64_t outputs = p.w[0], plane = extent(p.y, 2, static_cast<int64_t>(p.y.size()));
    Rows<T, void (*)(T*, T*, T*, int64_t, int64_t)> rows(
        p, [](T* to, T* x, T* w, int64_t count, int64_t step) {
          for (int64_t j = 0; j < count; ++j) to[j] += x[j * step] * *w;
        });
    parallel_for(p.y[0] * outputs, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        std::fill_n(y + i * plane, plane, p.bias ? args.input<T>(2)[i % outputs] : T{0});
        rows.plane(y, const_cast<T*>(args.input<T>(0)), const_cast<T*>(args.input<T>(1)),
                   i / outputs, i % outputs);
      }
    });
  }
};

template <typename T>
struct ConvGradInput {
  ConvProblem p;

  void operator()(const KernelArgs& args) const {
    T* dx = args.output<T>(0);
    const int64_t size = element_count(p.x) / std::max<int64_t>(1, p.x[0] * p.groups);
    const int64_t outputs = p.w[0] / p.groups;
    Rows<T, void (*)(T*, T*, T*, int64_t, int64_t)> rows(
        p, [](T* dy, T* to, T* w, int64_t count, int64_t step) {
          for (int64_t j = 0; j < count; ++j) to[j * step] += dy[j] * *w;
        });
    parallel_for(p.x[0] * p.groups, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        std::fill_n(dx + i * size, size, T{0});
        for (int64_t o = 0; o < outputs; ++o) {
          rows.plane(const_cast<T*>(args.input<T>(0)), dx, const_cast<T*>(args.input<T>(1)),
                     i / p.groups, i % p.groups * outputs + o);
        }
      }
    });
  }
};

template <typename T>
struct ConvGradWeight {
  ConvProblem p;

  void operator()(const KernelArgs& args) const {
    T* dw = args.output<T>(0);
    const int64_t size = element_count(p.w) / std::max<int64_t>(1, p.w[0]);
    Rows<T, void (*)(T*, T*, T*, int64_t, int64_t)> rows(
        p, [](T* dy, T* x, T* to, int64_t count, int64_t step) {
          T sum = 0;
          for (int64_t j = 0; j < count; ++j) sum += dy[j] * x[j * step];
          *to += sum;
        });
    parallel_for(p.w[0], 1, [&](int64_t begin, int64_t end) {
      for (int64_t o = begin; o < end; ++o) {
        std::fill_n(dw + o * size, size, T{0});
        for (int64_t n = 0; n < p.x[0]; ++n) {
          rows.plane(const_cast<T*>(args.input<T>(0)), const_cast<T*>(args.input<T>(1)), dw, n, o);
        }
      }
    });
  }
};

template <typename T>
std::unique_ptr<Kernel> loops(ConvProblem p) {
  if (p.part == ConvPart::forward) return kernel_from(ConvForward<T>{std::move(p)});
  if (p.part == ConvPart::grad_input) return kernel_from(ConvGradInput<T>{std::move(p)});
  return kernel_from(ConvGradWeight<T>{std::move(p)});
}

std::unique_ptr<Kernel> make_conv_loops(const NodeSpec& node, std::string* why_not) {
  auto problem = read_conv(node, why_not);
  if (!problem) return nullptr;
  const DType dtype = problem->dtype;
  if (dtype == DType::f32) return loops<float>(std::move(*problem));
  if (dtype == DType::f64) return loops<double>(std::move(*problem));
  return decline(why_not, "dtype is {}", name_of(dtype));
}

}  // namespace

void register_conv(std::vector<Candidate>& list) {
  for (const char* op : {"Conv", "steep.ConvGradInput", "steep.ConvGradWeight"}) {
    list.push_back({op, "pointwise", make_pointwise_conv});
    list.push_back({op, "onednn", make_onednn_conv});
  }
  list.push_back({"steep.ConvGradWeight", "depthwise", make_depthwise_gradient});
  for (const char* op : {"Conv", "steep.ConvGradInput", "steep.ConvGradWeight"}) {
    list.push_back({op, "loops", make_conv_loops});
  }
}

}  // namespace steep::cpu
