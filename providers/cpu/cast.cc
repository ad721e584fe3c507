// Cast, CastLike, BitCast.
#include <algorithm>
#include <array>
#include <cstring>

#include "providers/cpu/build_kernel.h"
#include "providers/cpu/convert.h"
#include "providers/cpu/cpu.h"
#include "providers/cpu/narrow_float.h"
#include "providers/cpu/parallel.h"

namespace steep::cpu {
namespace {

/// Cast to a float of 8 bits or less, by way of double. Doubles hold all elements of all other
/// types exactly, except the last bits of 64-bit integers.
std::unique_ptr<Kernel> make_narrow_cast(const NodeSpec& node, std::string* why_not) {
  const Operand& x = node.in(0);
  const DType to = node.out(0).dtype;
  const auto mode = rounding_mode(node.attrs.string("round_mode"));
  if (!mode) return decline(why_not, "round_mode is neither up, down nor nearest");
  const Rounding rounding{node.attrs.integer("saturate") != 0, *mode};
  const Convert widen = find_convert(x.dtype, DType::f64);
  const auto from = static_cast<int64_t>(size_of(x.dtype));
  return kernel_from([=, n = x.size()](const KernelArgs& args) {
    parallel_for(n, 4096, [&](int64_t begin, int64_t end) {
      std::array<double, 256> wide{};
      auto* y = args.output<uint8_t>(0);
      for (int64_t i = begin; i < end; i += 256) {
        const int64_t count = std::min<int64_t>(256, end - i);
        widen(args.input<char>(0) + i * from, wide.data(), count);
        for (int64_t k = 0; k < count; ++k)
          y[i + k] = narrow_bits(to, wide[static_cast<size_t>(k)], rounding);
      }
    });
  });
}

std::unique_ptr<Kernel> make_cast(const NodeSpec& node, std::string* why_not) {
  const Operand& x = node.in(0);
  const Operand& y = node.out(0);
  if (is_narrow_float(y.dtype) && x.dtype != y.dtype) return make_narrow_cast(node, why_not);
  const Convert convert = find_convert(x.dtype, y.dtype);
  const auto from = static_cast<int64_t>(size_of(x.dtype));
  const auto to = static_cast<int64_t>(size_of(y.dtype));
  auto run = [convert, from, to, n = x.size()](const KernelArgs& args) {
    parallel_for(n, 32768, [&](int64_t begin, int64_t end) {
      convert(args.input<char>(0) + begin * from, args.output<char>(0) + begin * to, end - begin);
    });
  };
  std::vector<std::pair<int, int>> share;
  if (from == to) share = {{0, 0}};
  return kernel_from(run, 0, share);
}

std::unique_ptr<Kernel> make_bit_cast(const NodeSpec& node, std::string* why_not) {
  const Operand& x = node.in(0);
  const DType to = node.out(0).dtype;
  if (bits_of(x.dtype) != bits_of(to)) {
    return decline(why_not, "{} has {} bits and {} has {}", name_of(x.dtype), bits_of(x.dtype),
                   name_of(to), bits_of(to));
  }
  const size_t bytes = static_cast<size_t>(x.size()) * size_of(to);
  auto copy = [bytes](const KernelArgs& args) {
    if (bytes != 0) std::memmove(args.out[0], args.in[0], bytes);
  };
  return kernel_from(copy, 0, {{0, 0}});
}

}  // namespace

void register_cast(std::vector<Candidate>& list) {
  list.push_back({"BitCast", "copy", make_bit_cast});
  list.push_back({"Cast", "convert", make_cast});
  list.push_back({"CastLike", "convert", make_cast});
}

}  // namespace steep::cpu
