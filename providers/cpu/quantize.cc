// QuantizeLinear and DequantizeLinear, with one scale for all elements, per index of an axis, or
// per block of an axis. Arithmetic is in double, then rounded as in ONNX: quotients to the type of
// the scale (or `precision`), products to the type of the result. steep.Unpack, which gives
// DequantizeLinear the elements of packed weights.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "providers/cpu/axis.h"
#include "providers/cpu/build_kernel.h"
#include "providers/cpu/convert.h"
#include "providers/cpu/cpu.h"
#include "providers/cpu/narrow_float.h"
#include "providers/cpu/parallel.h"
#include "runtime/packing.h"

namespace steep::cpu {
namespace {

constexpr int64_t kBlock = 256;
using Block = std::array<double, kBlock>;

/// Maps an element to its scale.
struct Granularity {
  AxisSplit split;     // of x around its axis; extent 1 if there is one scale
  int64_t block = 1;   // indices of the axis that share a scale
  bool inner = false;  // scales also differ along the other axes
  int64_t scales = 1;  // along the axis

  int64_t of(int64_t i) const {
    if (scales == 1 && !inner) return 0;
    const int64_t at = i / split.inner % split.extent / block;
    if (!inner) return at;
    return (i / (split.inner * split.extent) * scales + at) * split.inner + i % split.inner;
  }
};

std::optional<Granularity> granularity(const NodeSpec& node, std::string* why_not) {
  const Operand& x = node.in(0);
  const Operand& scale = node.in(1);
  const Operand& zero = node.in(2);
  Granularity g;
  if (zero.present() && zero.size() != scale.size()) {
    decline(why_not, "the zero point has another shape than the scale");
    return std::nullopt;
  }
  const int64_t block = node.attrs.integer("block_size");
  if (scale.size() == 1 && block == 0) return g;
  const auto axis = axis_from_front(node.attrs.integer("axis"), x.rank());
  if (!axis || block < 0) {
    decline(why_not, "axis or block_size is out of range");
    return std::nullopt;
  }
  g.split = split_around(x.dims, *axis, *axis + 1);
  g.scales = g.split.extent;
  Dims expected{g.split.extent};
  if (block > 0) {
    g.block = block;
    g.inner = true;
    g.scales = (g.split.extent + block - 1) / block;
    expected = x.dims;
    expected[static_cast<size_t>(*axis)] = g.scales;
  }
  if (scale.dims != expected) {
    decline(why_not, "the scale's shape is {}, not {}", to_string(scale.dims), to_string(expected));
    return std::nullopt;
  }
  return g;
}

/// Elements read as doubles.
struct Reader {
  Convert convert;
  int64_t bytes;
  explicit Reader(DType dtype)
      : convert(find_convert(dtype, DType::f64)), bytes(static_cast<int64_t>(size_of(dtype))) {}
  double one(const void* from, int64_t i) const {
    double x = 0;
    convert(static_cast<const char*>(from) + i * bytes, &x, 1);
    return x;
  }
  void many(const void* from, int64_t first, int64_t n, double* to) const {
    convert(static_cast<const char*>(from) + first * bytes, to, n);
  }
};

/// Calls f(first, count) for blocks of at most kBlock elements, out of n.
template <typename F>
void for_blocks(int64_t n, F&& f) {
  parallel_for((n + kBlock - 1) / kBlock, 16, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) f(b * kBlock, std::min(kBlock, n - b * kBlock));
  });
}

double rounded_to(DType dtype, double x) {
  if (dtype == DType::f32) return static_cast<float>(x);
  if (dtype == DType::f16 || dtype == DType::bf16) {
    uint16_t bits = 0;
    find_convert(DType::f64, dtype)(&x, &bits, 1);
    return dtype == DType::f16 ? f16_to_float(bits) : bf16_to_float(bits);
  }
  return x;
}

double lowest(DType dtype) {
  const bool is_signed = dtype == DType::i2 || dtype == DType::i4 || dtype == DType::i8 ||
                         dtype == DType::i16 || dtype == DType::i32;
  return is_signed ? -std::ldexp(1.0, bits_of(dtype) - 1) : 0;
}

std::unique_ptr<Kernel> make_quantize(const NodeSpec& node, std::string* why_not) {
  const Operand& x = node.in(0);
  const DType to = node.out(0).dtype;
  const auto g = granularity(node, why_not);
  if (!g) return nullptr;
  const bool narrow = is_narrow_float(to);
  if (!narrow && (!is_integer(to) || bits_of(to) > 16))
    return decline(why_not, "the result is {}", name_of(to));
  const auto precision = static_cast<DType>(node.attrs.integer("precision"));
  const DType quotient = precision == DType::undefined ? node.in(1).dtype : precision;
  const Reader read_x(x.dtype), read_scale(node.in(1).dtype), read_zero(to);
  const bool has_zero = node.in(2).present();
  const double low = lowest(to), high = low + std::ldexp(1.0, bits_of(to)) - 1;
  const Rounding rounding{node.attrs.integer("saturate") != 0};
  const Convert store = narrow ? nullptr : find_convert(DType::f64, to);
  const auto bytes = static_cast<int64_t>(size_of(to));
  return kernel_from([=, n = x.size()](const KernelArgs& args) {
    for_blocks(n, [&](int64_t first, int64_t count) {
      Block q{};
      read_x.many(args.in[0], first, count, q.data());
      for (int64_t i = 0; i < count; ++i) {
        const int64_t s = g->of(first + i);
        double& v = q[static_cast<size_t>(i)];
        v = rounded_to(quotient, v / read_scale.one(args.in[1], s));
        const double zero = has_zero ? read_zero.one(args.in[2], s) : 0;
        if (narrow) {
          v += zero;
        } else {
          v = std::nearbyint(v) + zero;
          v = v > low ? std::min(v, high) : low;
        }
      }
      if (!narrow) return store(q.data(), args.output<char>(0) + first * bytes, count);
      for (int64_t i = 0; i < count; ++i)
        args.output<uint8_t>(0)[first + i] = narrow_bits(to, q[static_cast<size_t>(i)], rounding);
    });
  });
}

std::unique_ptr<Kernel> make_dequantize(const NodeSpec& node, std::string* why_not) {
  const Operand& x = node.in(0);
  const DType to = node.out(0).dtype;
  const auto g = granularity(node, why_not);
  if (!g) return nullptr;
  if (!is_float(to)) return decline(why_not, "the result is {}", name_of(to));
  const Reader read_x(x.dtype), read_scale(node.in(1).dtype);
  const bool has_zero = node.in(2).present();
  const Convert store = find_convert(DType::f64, to);
  const auto bytes = static_cast<int64_t>(size_of(to));
  return kernel_from([=, n = x.size()](const KernelArgs& args) {
    for_blocks(n, [&](int64_t first, int64_t count) {
      Block y{};
      read_x.many(args.in[0], first, count, y.data());
      for (int64_t i = 0; i < count; ++i) {
        const int64_t s = g->of(first + i);
        double& v = y[static_cast<size_t>(i)];
        if (has_zero) v -= read_x.one(args.in[2], s);
        v *= read_scale.one(args.in[1], s);
      }
      store(y.data(), args.output<char>(0) + first * bytes, count);
    });
  });
}

std::unique_ptr<Kernel> make_unpack(const NodeSpec& node, std::string* why_not) {
  const DType dtype = node.out(0).dtype;
  const int64_t n = node.out(0).size(), bits = bits_of(dtype);
  if (bits >= 8) return decline(why_not, "the result is {}", name_of(dtype));
  constexpr int64_t kElements = 4096;  // of a task; they begin with a whole byte
  return kernel_from([=](const KernelArgs& args) {
    parallel_for((n + kElements - 1) / kElements, 8, [&](int64_t begin, int64_t end) {
      const int64_t first = begin * kElements, last = std::min(end * kElements, n);
      unpack(dtype, last - first, args.input<uint8_t>(0) + first * bits / 8,
             args.output<uint8_t>(0) + first);
    });
  });
}

}  // namespace

void register_quantize(std::vector<Candidate>& list) {
  list.push_back({"QuantizeLinear", "reference", make_quantize});
  list.push_back({"DequantizeLinear", "reference", make_dequantize});
  list.push_back({"steep.Unpack", "bytes", make_unpack});
}

}  // namespace steep::cpu
