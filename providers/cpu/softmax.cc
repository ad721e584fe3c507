// Softmax, LogSoftmax, steep.SafeSoftmax and steep.SoftmaxGrad. A row of only -inf gives NaN, as
// 0/0 does, except in SafeSoftmax.

#include <cmath>
#include <functional>

#include "providers/cpu/axis.h"
#include "providers/cpu/build_kernel.h"
#include "providers/cpu/kernel.h"
#include "providers/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "providers/cpu/softmax.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file again.
#include "providers/cpu/softmax_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace steep::cpu {
namespace HWY_NAMESPACE {

void softmax_rows(const float* x, float* y, int64_t rows, int64_t columns, bool safe) {
  const Floats d;
  const auto n = static_cast<size_t>(columns);
  for (int64_t i = 0; i < rows; ++i, x += columns, y += columns) {
    const float max = row_max(d, x, n);
    const bool shut = safe && max == -std::numeric_limits<float>::infinity();
    const float sum = row_exp_sum(d, x, n, shut ? 0.0F : max, y);
    const auto scale = hn::Set(d, shut && sum == 0 ? 0.0F : 1.0F / sum);
    for_each_vector(d, y, n, [&](VecF v, size_t j, size_t count) {
      store_n(hn::Mul(v, scale), d, y + j, count);
    });
  }
}

void log_softmax_rows(const float* x, float* y, int64_t rows, int64_t columns) {
  const Floats d;
  constexpr size_t kBlock = 2048;
  const auto n = static_cast<size_t>(columns);
  for (int64_t i = 0; i < rows; ++i, x += columns, y += columns) {
    const float max = row_max(d, x, n);
    const auto maxima = hn::Set(d, max);
    double sum = 0;  // by blocks: one float would lose digits over a vocabulary
    for (size_t j = 0; j < n; j += kBlock)
      sum += row_exp_sum(d, x + j, std::min(kBlock, n - j), max, nullptr);
    const auto log_sum = hn::Set(d, static_cast<float>(std::log(sum)));
    for_each_vector(d, x, n, [&](VecF v, size_t j, size_t count) {
      store_n(hn::Sub(hn::Sub(v, maxima), log_sum), d, y + j, count);
    });
  }
}

/// dx = y (dy - Σ dy y)
void softmax_grad_rows(const float* dy, const float* y, float* dx, int64_t rows, int64_t columns) {
  const Floats d;
  const auto n = static_cast<size_t>(columns);
  for (int64_t i = 0; i < rows; ++i, dy += columns, y += columns, dx += columns) {
    auto dots = hn::Zero(d);
    for_each_vector(d, dy, n, [&](VecF v, size_t j, size_t count) {
      dots = hn::MulAdd(v, load_n(d, y + j, count), dots);
    });
    const auto dot = hn::SumOfLanes(d, dots);
    for_each_vector(d, dy, n, [&](VecF v, size_t j, size_t count) {
      store_n(hn::Mul(load_n(d, y + j, count), hn::Sub(v, dot)), d, dx + j, count);
    });
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace steep::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace steep::cpu {
namespace {

HWY_EXPORT(softmax_rows);
HWY_EXPORT(log_softmax_rows);
HWY_EXPORT(softmax_grad_rows);

enum class Form : uint8_t { softmax, safe_softmax, log_softmax, softmax_grad };

Form form_of(std::string_view op) {
  if (op == "Softmax") return Form::softmax;
  if (op == "steep.SafeSoftmax") return Form::safe_softmax;
  return op == "LogSoftmax" ? Form::log_softmax : Form::softmax_grad;
}

/// One line along the axis, with elements `stride` apart. Sums in double.
template <typename T>
void reference_line(Form form, const T* a, const T* b, T* out, int64_t n, int64_t stride) {
  if (form == Form::softmax_grad) {
    double dot = 0;
    for (int64_t j = 0; j < n; ++j) dot += static_cast<double>(a[j * stride]) * b[j * stride];
    for (int64_t j = 0; j < n; ++j) {
      out[j * stride] = static_cast<T>(b[j * stride] * (a[j * stride] - dot));
    }
    return;
  }
  double max = -std::numeric_limits<double>::infinity();
  for (int64_t j = 0; j < n; ++j) max = std::max<double>(max, a[j * stride]);
  const bool shut = form == Form::safe_softmax && std::isinf(max) && max < 0;
  if (shut) max = 0;
  double sum = 0;
  for (int64_t j = 0; j < n; ++j) sum += std::exp(a[j * stride] - max);
  if (shut && sum == 0) sum = 1;
  const double log_sum = std::log(sum);
  for (int64_t j = 0; j < n; ++j) {
    const double v = a[j * stride] - max;
    out[j * stride] = static_cast<T>(form == Form::log_softmax ? v - log_sum : std::exp(v) / sum);
  }
}

class SimdSoftmax final : public Kernel {
 public:
  SimdSoftmax(Form form, AxisSplit split) : form_(form), split_(split) {
    may_share = {{0, 0}};
    if (form == Form::softmax_grad) may_share.push_back({1, 0});
  }

  void execute(const KernelArgs& args) const override {
    const int64_t n = split_.extent;
    const int64_t grain = grain_of(16384, n);
    parallel_for(split_.outer, grain, [&](int64_t begin, int64_t end) {
      const float* a = args.input<float>(0) + begin * n;
      float* out = args.output<float>(0) + begin * n;
      switch (form_) {
        case Form::softmax:
        case Form::safe_softmax:
          HWY_DYNAMIC_DISPATCH(softmax_rows)(a, out, end - begin, n, form_ == Form::safe_softmax);
          break;
        case Form::log_softmax:
          HWY_DYNAMIC_DISPATCH(log_softmax_rows)(a, out, end - begin, n);
          break;
        case Form::softmax_grad: {
          const float* y = args.input<float>(1) + begin * n;
          HWY_DYNAMIC_DISPATCH(softmax_grad_rows)(a, y, out, end - begin, n);
        }
      }
    });
  }

 private:
  Form form_;
  AxisSplit split_;
};

template <typename T>
class ReferenceSoftmax final : public Kernel {
 public:
  ReferenceSoftmax(Form form, AxisSplit split) : form_(form), split_(split) {
    may_share = {{0, 0}};
    if (form == Form::softmax_grad) may_share.push_back({1, 0});
  }

  void execute(const KernelArgs& args) const override {
    const int64_t n = split_.extent;
    const int64_t grain = grain_of(4096, n);
    parallel_for(split_.outer * split_.inner, grain, [&](int64_t begin, int64_t end) {
      for (int64_t line = begin; line < end; ++line) {
        const int64_t at = line / split_.inner * n * split_.inner + line % split_.inner;
        const T* b = form_ == Form::softmax_grad ? args.input<T>(1) + at : nullptr;
        reference_line(form_, args.input<T>(0) + at, b, args.output<T>(0) + at, n, split_.inner);
      }
    });
  }

 private:
  Form form_;
  AxisSplit split_;
};

std::optional<AxisSplit> split(const NodeSpec& node, std::string* why_not) {
  const Operand& x = node.in(0);
  const auto axis = axis_from_front(node.attrs.integer("axis"), x.rank());
  if (!axis) {
    *why_not = "the axis is out of range";
    return std::nullopt;
  }
  return split_around(x.dims, *axis, *axis + 1);
}

std::unique_ptr<Kernel> make_simd(const NodeSpec& node, std::string* why_not) {
  const auto s = split(node, why_not);
  if (!s) return nullptr;
  if (node.in(0).dtype != DType::f32) {
    *why_not = "dtype is not float32";
    return nullptr;
  }
  if (s->inner != 1) {
    *why_not = "axis is not the last one";
    return nullptr;
  }
  return std::make_unique<SimdSoftmax>(form_of(node.op), *s);
}

std::unique_ptr<Kernel> make_reference(const NodeSpec& node, std::string* why_not) {
  const auto s = split(node, why_not);
  if (!s) return nullptr;
  const Form form = form_of(node.op);
  if (node.in(0).dtype == DType::f32) return std::make_unique<ReferenceSoftmax<float>>(form, *s);
  if (node.in(0).dtype == DType::f64) return std::make_unique<ReferenceSoftmax<double>>(form, *s);
  *why_not = "dtype is neither float32 nor float64";
  return nullptr;
}

}  // namespace

void register_softmax(std::vector<Candidate>& list) {
  for (std::string_view op : {"Softmax", "steep.SafeSoftmax", "LogSoftmax", "steep.SoftmaxGrad"}) {
    list.push_back({op, "simd", make_simd});
    list.push_back({op, "reference", make_reference});
  }
}

}  // namespace steep::cpu
#endif  // HWY_ONCE
