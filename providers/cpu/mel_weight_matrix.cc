// MelWeightMatrix: triangles over the bins of a spectrum, with edges evenly spaced on the mel
// scale.
#include <cmath>
#include <vector>

#include "providers/cpu/build_kernel.h"
#include "providers/cpu/convert.h"
#include "providers/cpu/cpu.h"

namespace steep::cpu {
namespace {

double to_mel(double hertz) { return 2595 * std::log10(1 + hertz / 700); }
double to_hertz(double mel) { return 700 * (std::pow(10, mel / 2595) - 1); }

struct MelWeightMatrix {
  NodeId id;
  Convert converters[5];
  Convert store;
  int64_t bins, mels;  // rows and columns
  size_t bytes;        // per element

  /// The bins at the edges of the triangles.
  std::vector<int64_t> edges(const KernelArgs& args) const {
    double numbers[5];  // number of mel bins, DFT length, sample rate, lower and upper edge
    for (size_t i = 0; i < 5; ++i) converters[i](args.in[i], &numbers[i], 1);
    const double low = to_mel(numbers[3]);
    const double step = (to_mel(numbers[4]) - low) / static_cast<double>(mels + 2);
    std::vector<int64_t> edges;
    for (int64_t i = 0; i < mels + 2; ++i) {
      const double hertz = to_hertz(low + step * static_cast<double>(i));
      const double bin = std::floor((numbers[1] + 1) * hertz / numbers[2]);
      const bool last = i == mels + 1;  // writes nothing
      if (!(bin >= (edges.empty() ? 0 : static_cast<double>(edges.back()))) ||
          bin >= static_cast<double>(bins + (last ? 1 : 0))) {
        id.data_error("An edge of a mel filter lies outside the spectrum.",
                      fmt::format("edges that rise within {} bins", bins), fmt::format("{}", bin),
                      "Check the sample rate and the edges in hertz.");
      }
      edges.push_back(static_cast<int64_t>(bin));
    }
    return edges;
  }

  void operator()(const KernelArgs& args) const {
    const std::vector<int64_t> edge = edges(args);
    std::vector<double> row(static_cast<size_t>(mels));
    for (int64_t bin = 0; bin < bins; ++bin) {
      for (size_t m = 0; m < row.size(); ++m) {
        const int64_t low = edge[m], peak = edge[m + 1], high = edge[m + 2];
        double weight = 0;
        if (bin >= low && bin < peak)
          weight = static_cast<double>(bin - low) / static_cast<double>(peak - low);
        if (bin == peak) weight = 1;
        if (bin > peak && bin < high)
          weight = static_cast<double>(high - bin) / static_cast<double>(high - peak);
        row[m] = weight;
      }
      store(row.data(), args.output<char>(0) + static_cast<size_t>(bin * mels) * bytes, mels);
    }
  }
};

std::unique_ptr<Kernel> make(const NodeSpec& node, std::string* why_not) {
  const Operand& y = node.out(0);
  if (y.rank() != 2 || node.inputs.size() != 5)
    return decline(why_not, "the result is not a matrix");
  MelWeightMatrix kernel{NodeId(node), {},        find_convert(DType::f64, y.dtype),
                         y.dims[0],    y.dims[1], size_of(y.dtype)};
  for (size_t i = 0; i < 5; ++i) {
    if (node.in(i).size() != 1) return decline(why_not, "input {} is not a scalar", i);
    kernel.converters[i] = find_convert(node.in(i).dtype, DType::f64);
  }
  return kernel_from(kernel);
}

}  // namespace

void register_mel_weight_matrix(std::vector<Candidate>& list) {
  list.push_back({"MelWeightMatrix", "reference", make});
}

}  // namespace steep::cpu
