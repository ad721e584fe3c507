// steep.ConvGradWeight with one input channel for each group: oneDNN multiplies by gemm with one
// row there, where it has no kernel for the size of the window. Here an element of the gradient is
// the sum of the products of two shifted planes, row by row, in one vector until the end.
#include <algorithm>

#include "providers/cpu/build_kernel.h"
#include "providers/cpu/conv.h"
#include "providers/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "providers/cpu/conv_depthwise.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file again.
#include "providers/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace steep::cpu {
namespace HWY_NAMESPACE {

/// Σ a[r a_row + j] b[r b_row + j] over rows r and columns j, by lanes.
template <class D>
HWY_INLINE hn::Vec<D> sum_products(D d, const float* a, int64_t a_row, const float* b,
                                   int64_t b_row, int64_t rows, int64_t columns) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t whole = columns / lanes * lanes;
  const auto rest = static_cast<size_t>(columns - whole);
  auto sum = hn::Zero(d);
  for (int64_t r = 0; r < rows; ++r, a += a_row, b += b_row) {
    for (int64_t j = 0; j < whole; j += lanes) {
      sum = hn::MulAdd(hn::LoadU(d, a + j), hn::LoadU(d, b + j), sum);
    }
    if (rest > 0) sum = hn::MulAdd(load_n(d, a + whole, rest), load_n(d, b + whole, rest), sum);
  }
  return sum;
}

/// The gradient of the window of output channel o, [height, width]. Sums are of images first.
void gradient_of_window(const ConvProblem& p, int64_t o, const float* dy, const float* x,
                        float* dw) {
  const hn::ScalableTag<float> d;
  const WindowAxis &height = p.axes[0], &width = p.axes[1];
  const int64_t channel = o / (p.w[0] / p.groups);
  const int64_t images = grain_of(65536, height.out * width.out);  // between two calls of poll()
  for (int64_t i = 0; i < height.kernel; ++i) {
    const auto [top, bottom] = height.windows_inside(i);
    for (int64_t j = 0; j < width.kernel; ++j) {
      const auto [left, right] = width.windows_inside(j);
      auto sum = hn::Zero(d);
      for (int64_t n = 0; n < p.x[0] && top < bottom && left < right; ++n) {
        if (n % images == 0) poll();
        const float* of_y = dy + ((n * p.y[1] + o) * height.out + top) * width.out + left;
        const float* of_x = x +
                            ((n * p.x[1] + channel) * height.in + height.at(top, i)) * width.in +
                            width.at(left, j);
        sum = hn::Add(sum, sum_products(d, of_y, width.out, of_x, height.stride * width.in,
                                        bottom - top, right - left));
      }
      dw[i * width.kernel + j] = hn::GetLane(hn::SumOfLanes(d, sum));
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace steep::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace steep::cpu {

HWY_EXPORT(gradient_of_window);

bool has_depthwise_gradient(const ConvProblem& p) {
  return p.part == ConvPart::grad_weight && p.dtype == DType::f32 && p.axes.size() == 2 &&
         p.w[1] == 1 && p.axes[1].stride == 1;
}

std::unique_ptr<Kernel> make_depthwise_gradient(const NodeSpec& node, std::string* why_not) {
  auto problem = read_conv(node, why_not);
  if (!problem) return nullptr;
  if (!has_depthwise_gradient(*problem)) {
    return decline(why_not, "only for float32, two axes, one channel a group, and steps of 1");
  }
  const auto flops = 2.0 * static_cast<double>(problem->multiplications());
  auto run = [p = std::move(*problem)](const KernelArgs& args) {
    const int64_t size = p.w[2] * p.w[3];
    const int64_t cost = size * p.x[0] * p.y[2] * p.y[3];
    parallel_for(p.w[0], grain_of(65536, cost), [&](int64_t begin, int64_t end) {
      for (int64_t o = begin; o < end; ++o) {
        HWY_DYNAMIC_DISPATCH(gradient_of_window)
        (p, o, args.input<float>(0), args.input<float>(1), args.output<float>(0) + o * size);
      }
    });
  };
  auto kernel = kernel_from(std::move(run));
  kernel->flops = flops;
  return kernel;
}

}  // namespace steep::cpu
#endif  // HWY_ONCE
