// Pad: constant, reflect, edge, wrap (ONNX opset 21). Constant: fill, then one strided copy. The
// other modes copy element by element with a table of source indices per axis.
#include <algorithm>
#include <cstring>

#include "providers/cpu/build_kernel.h"
#include "providers/cpu/cpu.h"
#include "providers/cpu/parallel.h"
#include "providers/cpu/strided_copy.h"

namespace steep::cpu {
namespace {

/// The source index for each index along an output axis, for an input axis of `extent`. Negative
/// pads crop first; only elements that remain, at least one, are repeated.
Dims source_indices(std::string_view mode, int64_t extent, int64_t before, int64_t after) {
  const int64_t cut = std::max<int64_t>(-before, 0);
  const int64_t n = extent - cut - std::max<int64_t>(-after, 0);
  Dims index(static_cast<size_t>(extent + before + after));
  for (int64_t i = 0; i < static_cast<int64_t>(index.size()); ++i) {
    int64_t k = i - std::max<int64_t>(before, 0);
    if (mode == "edge") {
      k = std::clamp<int64_t>(k, 0, n - 1);
    } else if (mode == "wrap") {
      k = ((k % n) + n) % n;
    } else {  // reflect, without repeating the border
      const int64_t period = std::max<int64_t>(2 * (n - 1), 1);
      k = ((k % period) + period) % period;
      if (k >= n) k = period - k;
    }
    index[static_cast<size_t>(i)] = cut + k;
  }
  return index;
}

std::unique_ptr<Kernel> make_gather_pad(const NodeSpec& node, std::string_view mode,
                                        const Dims& before, const Dims& after) {
  const Operand& x = node.in(0);
  const Operand& y = node.out(0);
  const size_t element = size_of(x.dtype);
  const Dims strides = row_major_strides(x.dims);
  std::vector<Dims> offsets;  // in bytes, by axis and output index
  for (size_t a = 0; a < y.dims.size(); ++a) {
    offsets.push_back(source_indices(mode, x.dims[a], before[a], after[a]));
    for (int64_t& k : offsets.back()) k *= strides[a] * static_cast<int64_t>(element);
  }
  return kernel_from([offsets, dims = y.dims, n = y.size(), element](const KernelArgs& args) {
    const auto* src = args.input<char>(0);
    auto* dst = args.output<char>(0);
    parallel_for(n, 16384, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        int64_t rest = i;
        int64_t offset = 0;
        for (size_t a = dims.size(); a-- > 0;) {
          offset += offsets[a][static_cast<size_t>(rest % dims[a])];
          rest /= dims[a];
        }
        std::memcpy(dst + i * static_cast<int64_t>(element), src + offset, element);
      }
    });
  });
}

/// The numbers of elements before and after x, by axis.
struct Pads {
  Dims before, after;
};

std::optional<Pads> read_pads(const NodeSpec& node, std::string* why_not) {
  const Operand& x = node.in(0);
  const Operand& y = node.out(0);
  const auto pads = constant_ints(node.in(1));
  if (!pads) return decline(why_not, "pads are not constant"), std::nullopt;
  const auto axes = constant_ints(node.in(3));
  if (node.in(3).present() && !axes) return decline(why_not, "axes are not constant"), std::nullopt;
  const size_t n = axes ? axes->size() : x.dims.size();
  if (pads->size() != 2 * n || x.rank() != y.rank())
    return decline(why_not, "pads do not fit the rank"), std::nullopt;
  Pads result{Dims(x.dims.size(), 0), Dims(x.dims.size(), 0)};
  for (size_t i = 0; i < n; ++i) {
    const auto axis = axis_from_front(axes ? (*axes)[i] : static_cast<int64_t>(i), x.rank());
    if (!axis) return decline(why_not, "an axis is out of range"), std::nullopt;
    constexpr int64_t kLimit = int64_t{1} << 60;  // keeps sums from overflowing
    if (std::max((*pads)[i], (*pads)[i + n]) > kLimit ||
        std::min((*pads)[i], (*pads)[i + n]) < -kLimit) {
      return decline(why_not, "a pad exceeds 2^60"), std::nullopt;
    }
    result.before[static_cast<size_t>(*axis)] = (*pads)[i];
    result.after[static_cast<size_t>(*axis)] = (*pads)[i + n];
  }
  for (size_t a = 0; a < x.dims.size(); ++a) {
    if (x.dims[a] + result.before[a] + result.after[a] != y.dims[a])
      return decline(why_not, "pads do not add up"), std::nullopt;
  }
  return result;
}

/// Negative pads crop: copies the part of x that lies within y.
std::unique_ptr<Kernel> make_constant_pad(const NodeSpec& node, const Pads& pads) {
  const Operand& x = node.in(0);
  const Operand& y = node.out(0);
  Dims box = x.dims;
  int64_t src_offset = 0;
  int64_t dst_offset = 0;
  const Dims src_strides = row_major_strides(x.dims);
  const Dims dst_strides = row_major_strides(y.dims);
  for (size_t a = 0; a < box.size(); ++a) {
    const int64_t cut = std::max<int64_t>(-pads.before[a], 0);
    box[a] = std::max<int64_t>(0, x.dims[a] - cut - std::max<int64_t>(-pads.after[a], 0));
    src_offset += cut * src_strides[a];
    dst_offset += std::max<int64_t>(pads.before[a], 0) * dst_strides[a];
  }
  const auto element = static_cast<int64_t>(size_of(x.dtype));
  StridedCopy fill(size_of(x.dtype), {y.size()}, {0}, {1});
  StridedCopy copy(size_of(x.dtype), box, src_strides, dst_strides);
  const bool has_value = node.in(2).present();
  return kernel_from([=](const KernelArgs& args) {
    const int64_t zero[2] = {};
    fill.run(has_value ? args.in[2] : zero, args.out[0]);
    copy.run(args.input<char>(0) + src_offset * element,
             args.output<char>(0) + dst_offset * element);
  });
}

std::unique_ptr<Kernel> make_pad(const NodeSpec& node, std::string* why_not) {
  const auto pads = read_pads(node, why_not);
  if (!pads) return nullptr;
  const std::string mode = node.attrs.string("mode");
  if (mode == "constant") return make_constant_pad(node, *pads);
  if (mode != "reflect" && mode != "edge" && mode != "wrap")
    return decline(why_not, "mode is '{}'", mode);
  const Dims& extents = node.in(0).dims;
  for (size_t a = 0; a < extents.size(); ++a) {
    const int64_t extent =
        extents[a] + std::min<int64_t>(pads->before[a], 0) + std::min<int64_t>(pads->after[a], 0);
    if (extent <= 0 && node.out(0).size() != 0)
      return decline(why_not, "after cropping, axis {} has no elements to repeat", a);
  }
  return make_gather_pad(node, mode, pads->before, pads->after);
}

}  // namespace

void register_pad(std::vector<Candidate>& list) { list.push_back({"Pad", "strided", make_pad}); }

}  // namespace steep::cpu
