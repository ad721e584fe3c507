// Uniform and normal random numbers. Element i uses word i % 4 of its group of four; a normal
// number uses a pair of words. Results depend only on seed, run, stream and i.
#include <cmath>
#include <numbers>

#include "providers/cpu/build_kernel.h"
#include "providers/cpu/convert.h"
#include "providers/cpu/cpu.h"
#include "providers/cpu/parallel.h"
#include "providers/cpu/philox.h"

namespace steep::cpu {
namespace {

/// A number in [0, 1), exact in float.
double fraction(uint32_t word) { return (word >> 8) * 0x1p-24; }

struct Uniform {
  double low, width;
  void operator()(const PhiloxWords& words, double* four) const {
    for (size_t i = 0; i < 4; ++i) four[i] = low + width * fraction(words[i]);
  }
};

struct Normal {
  double mean, scale;
  void operator()(const PhiloxWords& words, double* four) const {
    for (size_t i = 0; i < 4; i += 2) {
      const double radius = scale * std::sqrt(-2 * std::log(1 - fraction(words[i])));
      const double angle = 2 * std::numbers::pi * fraction(words[i + 1]);
      four[i] = mean + radius * std::cos(angle);
      four[i + 1] = mean + radius * std::sin(angle);
    }
  }
};

template <typename Draw>
std::unique_ptr<Kernel> fill(const NodeSpec& node, Draw draw) {
  const DType dtype = node.out(0).dtype;
  const Convert store = find_convert(DType::f64, dtype);
  const int64_t stream = node.attrs.integer("stream");
  const auto bytes = static_cast<int64_t>(size_of(dtype));
  return kernel_from([=, n = node.out(0).size()](const KernelArgs& args) {
    parallel_for((n + 3) / 4, 1024, [&](int64_t begin, int64_t end) {
      for (int64_t group = begin; group < end; ++group) {
        double four[4];
        draw(philox_group(args.input<int64_t>(0), stream, static_cast<uint64_t>(group)), four);
        store(four, args.output<char>(0) + group * 4 * bytes, std::min<int64_t>(4, n - group * 4));
      }
    });
  });
}

std::unique_ptr<Kernel> make_uniform(const NodeSpec& node, std::string* why_not) {
  if (!is_float(node.out(0).dtype)) return decline(why_not, "the result is not a float");
  const double low = node.attrs.real("low");
  return fill(node, Uniform{low, node.attrs.real("high") - low});
}

std::unique_ptr<Kernel> make_normal(const NodeSpec& node, std::string* why_not) {
  if (!is_float(node.out(0).dtype)) return decline(why_not, "the result is not a float");
  return fill(node, Normal{node.attrs.real("mean"), node.attrs.real("scale")});
}

}  // namespace

void register_random(std::vector<Candidate>& list) {
  list.push_back({"steep.RandomNormal", "philox", make_normal});
  list.push_back({"steep.RandomUniform", "philox", make_uniform});
}

}  // namespace steep::cpu
