// Gather, GatherElements, GatherND. All indices are checked before anything is written.
#include <cstring>

#include "providers/cpu/build_kernel.h"
#include "providers/cpu/cpu.h"
#include "providers/cpu/parallel.h"

namespace steep::cpu {
namespace {

constexpr int64_t kGrainBytes = int64_t{128} << 10;

template <typename I>
void check_indices(const NodeId& id, const I* index, int64_t n, int64_t extent) {
  bool good = true;
  for (int64_t i = 0; i < n; ++i) good &= index[i] >= -extent && index[i] < extent;
  if (good) return;
  for (int64_t i = 0; i < n; ++i) checked_index(id, index[i], extent);
}

/// dst[o, i, :] = src[o, index[i], :], rows of `bytes`.
template <typename I>
struct Gather {
  NodeId id;
  int64_t outer, extent, indices, bytes;

  void operator()(const KernelArgs& args) const {
    const auto* src = args.input<char>(0);
    const auto* index = args.input<I>(1);
    auto* dst = args.output<char>(0);
    if (outer * indices == 0) return;
    check_indices(id, index, indices, extent);
    parallel_for(outer * indices, grain_of(kGrainBytes, bytes), [&](int64_t begin, int64_t end) {
      int64_t o = begin / indices;
      int64_t i = begin % indices;
      for (int64_t k = begin; k < end; ++k) {
        const int64_t row = index[i] < 0 ? index[i] + extent : index[i];
        copy_row(src + (o * extent + row) * bytes, dst + k * bytes);
        if (++i == indices) {
          i = 0;
          ++o;
        }
      }
    });
  }

  void copy_row(const char* src, char* dst) const {
    switch (bytes) {
      case 4: std::memcpy(dst, src, 4); break;
      case 8: std::memcpy(dst, src, 8); break;
      default: std::memcpy(dst, src, static_cast<size_t>(bytes));
    }
  }
};

std::unique_ptr<Kernel> make_gather(const NodeSpec& node, std::string* why_not) {
  const Operand& x = node.in(0);
  const Operand& index = node.in(1);
  const auto axis = axis_from_front(node.attrs.integer("axis"), x.rank());
  if (!axis) return decline(why_not, "the axis is out of range");
  auto build = [&]<typename I>(I) -> std::unique_ptr<Kernel> {
    return kernel_from(Gather<I>{
        NodeId(node), extent(x.dims, 0, *axis), x.dims[static_cast<size_t>(*axis)], index.size(),
        extent(x.dims, *axis + 1, x.rank()) * static_cast<int64_t>(size_of(x.dtype))});
  };
  if (index.dtype == DType::i64) return build(int64_t{});
  if (index.dtype == DType::i32) return build(int32_t{});
  return decline(why_not, "indices are {}", name_of(index.dtype));
}

/// dst[p] = src[p with the axis replaced by index[p]]; index may be smaller than src along other
/// axes.
template <typename I>
struct GatherElements {
  NodeId id;
  size_t axis;
  int64_t extent;
  size_t element;
  Dims dims;     // of the indices and the output
  Dims strides;  // of the source, in elements

  void operator()(const KernelArgs& args) const {
    const auto* src = args.input<char>(0);
    const auto* index = args.input<I>(1);
    auto* dst = args.output<char>(0);
    const int64_t n = element_count(dims);
    check_indices(id, index, n, extent);
    parallel_for(n, 16384, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        int64_t rest = i;
        const int64_t k = index[i] < 0 ? index[i] + extent : index[i];
        int64_t offset = k * strides[axis];
        for (size_t a = dims.size(); a-- > 0;) {
          if (a != axis) offset += rest % dims[a] * strides[a];
          rest /= dims[a];
        }
        std::memcpy(dst + i * static_cast<int64_t>(element),
                    src + offset * static_cast<int64_t>(element), element);
      }
    });
  }
};

std::unique_ptr<Kernel> make_gather_elements(const NodeSpec& node, std::string* why_not) {
  const Operand& x = node.in(0);
  const Operand& index = node.in(1);
  const auto axis = axis_from_front(node.attrs.integer("axis"), x.rank());
  if (!axis || index.rank() != x.rank())
    return decline(why_not, "axis or indices do not fit the rank");
  const auto a = static_cast<size_t>(*axis);
  for (size_t i = 0; i < x.dims.size(); ++i) {
    if (i != a && index.dims[i] > x.dims[i])
      return decline(why_not, "indices exceed the data along axis {}", i);
  }
  auto build = [&]<typename I>(I) -> std::unique_ptr<Kernel> {
    return kernel_from(GatherElements<I>{NodeId(node), a, x.dims[a], size_of(x.dtype), index.dims,
                                         row_major_strides(x.dims)});
  };
  if (index.dtype == DType::i64) return build(int64_t{});
  if (index.dtype == DType::i32) return build(int32_t{});
  return decline(why_not, "indices are {}", name_of(index.dtype));
}

std::unique_ptr<Kernel> make_gather_nd(const NodeSpec& node, std::string* why_not) {
  const Operand& x = node.in(0);
  const Operand& index = node.in(1);
  const int64_t batch_dims = node.attrs.integer("batch_dims");
  if (index.dtype != DType::i64 || index.rank() == 0)
    return decline(why_not, "indices are not int64[…, k]");
  const int64_t depth = index.dims.back();
  if (batch_dims < 0 || batch_dims >= index.rank() || batch_dims + depth > x.rank()) {
    return decline(why_not, "indices address more axes than there are");
  }
  for (int64_t i = 0; i < batch_dims; ++i) {
    const auto a = static_cast<size_t>(i);
    if (x.dims[a] != index.dims[a]) return decline(why_not, "the batch axes differ");
  }
  const int64_t batches = extent(x.dims, 0, batch_dims);
  const int64_t tuples = extent(index.dims, batch_dims, index.rank() - 1);  // per batch
  const auto element = static_cast<int64_t>(size_of(x.dtype));
  const int64_t bytes = extent(x.dims, batch_dims + depth, x.rank()) * element;
  const int64_t batch_bytes = extent(x.dims, batch_dims, x.rank()) * element;
  const Dims extents(x.dims.begin() + batch_dims, x.dims.begin() + batch_dims + depth);
  Dims strides = row_major_strides(x.dims);
  strides.erase(strides.begin(), strides.begin() + batch_dims);
  return kernel_from([=, id = NodeId(node)](const KernelArgs& args) {
    const auto* index_data = args.input<int64_t>(1);
    const int64_t rows = batches * tuples;
    for (int64_t i = 0; i < rows * depth; ++i) {
      checked_index(id, index_data[i], extents[static_cast<size_t>(i % depth)]);
    }
    parallel_for(rows, grain_of(kGrainBytes, bytes), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        int64_t offset = 0;
        for (int64_t k = 0; k < depth; ++k) {
          const auto a = static_cast<size_t>(k);
          const int64_t v = index_data[r * depth + k];
          offset += (v < 0 ? v + extents[a] : v) * strides[a];
        }
        std::memcpy(args.output<char>(0) + r * bytes,
                    args.input<char>(0) + r / tuples * batch_bytes + offset * element,
                    static_cast<size_t>(bytes));
      }
    });
  });
}

}  // namespace

void register_gather(std::vector<Candidate>& list) {
  list.push_back({"Gather", "rows", make_gather});
  list.push_back({"GatherElements", "reference", make_gather_elements});
  list.push_back({"GatherND", "rows", make_gather_nd});
}

}  // namespace steep::cpu
