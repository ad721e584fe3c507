// Slice, steep.SliceGrad: a view with offset and steps, read or written.
#include <algorithm>
#include <cstring>

#include "providers/cpu/build_kernel.h"
#include "providers/cpu/cpu.h"
#include "providers/cpu/strided_copy.h"

namespace steep::cpu {
namespace {

struct View {
  int64_t offset = 0;  // elements
  Dims dims;
  Dims strides;
};

/// The view of a tensor with extents `whole` that ONNX's Slice (opset 13) selects; nothing when an
/// operand is not constant or does not fit. Inputs first … first+3 are starts, ends, axes?, steps?.
std::optional<View> view_of(const NodeSpec& node, size_t first, const Dims& whole,
                            std::string* why_not) {
  const auto starts = constant_ints(node.in(first));
  const auto ends = constant_ints(node.in(first + 1));
  const bool has_axes = node.in(first + 2).present();
  const bool has_steps = node.in(first + 3).present();
  const auto axes = constant_ints(node.in(first + 2));
  const auto steps = constant_ints(node.in(first + 3));
  if (!starts || !ends || (has_axes && !axes) || (has_steps && !steps)) {
    decline(why_not, "starts, ends, axes or steps are not constant");
    return std::nullopt;
  }
  View view{0, whole, row_major_strides(whole)};
  for (size_t i = 0; i < starts->size(); ++i) {
    const auto axis = axis_from_front(axes ? (*axes)[i] : static_cast<int64_t>(i),
                                      static_cast<int64_t>(whole.size()));
    const int64_t step = steps ? (*steps)[i] : 1;
    if (!axis || step == 0 || step == INT64_MIN || i >= ends->size()) {
      decline(why_not, "an axis is out of range, or a step is 0");
      return std::nullopt;
    }
    const auto a = static_cast<size_t>(*axis);
    const int64_t n = whole[a];
    // Steps backwards start at most at n-1, at least at 0, and may end before 0.
    const int64_t low = step > 0 ? 0 : -1;
    const int64_t high = step > 0 ? n : n - 1;
    auto clamp = [&](int64_t k) { return std::clamp<int64_t>(k < 0 ? k + n : k, low, high); };
    const int64_t start = std::max<int64_t>(clamp((*starts)[i]), n > 0 ? 0 : low);
    const int64_t end = clamp((*ends)[i]);
    const int64_t span = step > 0 ? end - start : start - end;
    const int64_t stride = step > 0 ? step : -step;
    view.dims[a] = span <= 0 ? 0 : (span - 1) / stride + 1;
    if (view.dims[a] > 0) view.offset += start * view.strides[a];
    // A single element needs no step; this keeps huge steps from overflowing.
    view.strides[a] = view.dims[a] > 1 ? view.strides[a] * step : 0;
  }
  return view;
}

std::unique_ptr<Kernel> make_slice(const NodeSpec& node, std::string* why_not) {
  const Operand& x = node.in(0);
  const auto view = view_of(node, 1, x.dims, why_not);
  if (!view) return nullptr;
  if (view->dims != node.out(0).dims) {
    return decline(why_not, "the slice is {}, the output is {}", to_string(view->dims),
                   to_string(node.out(0).dims));
  }
  StridedCopy copy(size_of(x.dtype), view->dims, view->strides, row_major_strides(view->dims));
  const auto offset = view->offset * static_cast<int64_t>(size_of(x.dtype));
  return kernel_from([copy, offset](const KernelArgs& args) {
    copy.run(args.input<char>(0) + offset, args.out[0]);
  });
}

std::unique_ptr<Kernel> make_slice_grad(const NodeSpec& node, std::string* why_not) {
  const Operand& dy = node.in(0);
  const Operand& dx = node.out(0);
  const auto view = view_of(node, 2, dx.dims, why_not);
  if (!view) return nullptr;
  if (view->dims != dy.dims) {
    return decline(why_not, "the slice is {}, dy is {}", to_string(view->dims), to_string(dy.dims));
  }
  StridedCopy copy(size_of(dx.dtype), dy.dims, row_major_strides(dy.dims), view->strides);
  const auto offset = view->offset * static_cast<int64_t>(size_of(dx.dtype));
  const auto bytes = static_cast<size_t>(dx.size()) * size_of(dx.dtype);
  return kernel_from([copy, offset, bytes](const KernelArgs& args) {
    std::memset(args.out[0], 0, bytes);
    copy.run(args.in[0], args.output<char>(0) + offset);
  });
}

}  // namespace

void register_slice(std::vector<Candidate>& list) {
  list.push_back({"Slice", "strided", make_slice});
  list.push_back({"steep.SliceGrad", "strided", make_slice_grad});
}

}  // namespace steep::cpu
