// TfIdfVectorizer on numbers: counts, in each row, the n-grams of a pool.
#include <map>
#include <vector>

#include "providers/cpu/build_kernel.h"
#include "providers/cpu/convert.h"
#include "providers/cpu/cpu.h"

namespace steep::cpu {
namespace {

struct TfIdf {
  std::map<std::vector<int64_t>, size_t> pool;  // n-gram → its number
  std::vector<int64_t> place;                   // number → column of the result
  std::vector<float> weight;                    // by number
  int64_t shortest, longest, most_skips;
  bool counts, weighs;  // TF: counts; IDF: weighs; TFIDF: both
  int64_t rows, length, columns;
  Convert converter;
  int64_t bytes;

  void operator()(const KernelArgs& args) const {
    auto* y = args.output<float>(0);
    std::fill(y, y + rows * columns, 0.0F);
    std::vector<int64_t> x(static_cast<size_t>(length));
    for (int64_t row = 0; row < rows; ++row, y += columns) {
      converter(args.input<char>(0) + row * length * bytes, x.data(), length);
      for (const auto& [number, count] : occurrences(x)) {
        const float times = counts ? static_cast<float>(count) : 1;
        y[place[number]] = times * (weighs ? weight[number] : 1);
      }
    }
  }

  std::map<size_t, int64_t> occurrences(const std::vector<int64_t>& x) const {
    std::map<size_t, int64_t> counts;
    std::vector<int64_t> gram;
    for (int64_t n = shortest; n <= longest; ++n) {
      for (int64_t stride = 1; stride <= (n == 1 ? 1 : most_skips + 1); ++stride) {
        for (int64_t first = 0; first + (n - 1) * stride < length; ++first) {
          gram.clear();
          for (int64_t i = 0; i < n; ++i)
            gram.push_back(x[static_cast<size_t>(first + i * stride)]);
          if (auto it = pool.find(gram); it != pool.end()) ++counts[it->second];
        }
      }
    }
    return counts;
  }
};

std::unique_ptr<Kernel> make(const NodeSpec& node, std::string* why_not) {
  const Operand& x = node.in(0);
  const Attrs& attrs = node.attrs;
  if (x.rank() < 1 || x.rank() > 2) return decline(why_not, "the input is neither 1-D nor 2-D");
  if (node.out(0).dtype != DType::f32) return decline(why_not, "the result is not float32");
  const Ints pool = attrs.ints("pool_int64s"), starts = attrs.ints("ngram_counts");
  const std::string mode = attrs.string("mode");
  constexpr int64_t kMost = 1 << 20;
  TfIdf kernel{.pool = {},
               .place = attrs.ints("ngram_indexes"),
               .weight = {},
               .shortest = attrs.integer("min_gram_length"),
               .longest = attrs.integer("max_gram_length"),
               .most_skips = attrs.integer("max_skip_count"),
               .counts = mode != "IDF",
               .weighs = mode != "TF",
               .rows = x.rank() == 2 ? x.dims[0] : 1,
               .length = x.dims.back(),
               .columns = node.out(0).dims.back(),
               .converter = find_convert(x.dtype, DType::i64),
               .bytes = static_cast<int64_t>(size_of(x.dtype))};
  if (mode != "TF" && mode != "IDF" && mode != "TFIDF") return decline(why_not, "mode is {}", mode);
  if (kernel.shortest < 1 || kernel.longest > kMost || kernel.most_skips < 0 ||
      kernel.most_skips > kMost) {
    return decline(why_not, "a length of n-grams or a number of skips is out of range");
  }
  size_t at = 0;
  for (size_t n = 1; n <= starts.size(); ++n) {
    const auto end = n < starts.size() ? static_cast<size_t>(starts[n]) : pool.size();
    if (static_cast<size_t>(starts[n - 1]) != at || end < at || end > pool.size() ||
        (end - at) % n != 0) {
      return decline(why_not, "ngram_counts do not divide the pool");
    }
    for (; at < end; at += n) {
      const auto first = pool.begin() + static_cast<int64_t>(at);
      kernel.pool.emplace(std::vector<int64_t>(first, first + static_cast<int64_t>(n)),
                          kernel.pool.size());
    }
  }
  if (kernel.pool.size() != kernel.place.size())
    return decline(why_not, "ngram_indexes are not one for each n-gram of a pool of numbers");
  for (int64_t column : kernel.place) {
    if (column < 0 || column >= kernel.columns) return decline(why_not, "an index is out of range");
  }
  kernel.weight.assign(kernel.place.size(), 1);
  if (const Attr* weights = attrs.find("weights")) {
    const auto& values = std::get<Floats>(*weights);
    if (values.size() != kernel.weight.size()) return decline(why_not, "a weight is missing");
    kernel.weight.assign(values.begin(), values.end());
  }
  return kernel_from(std::move(kernel));
}

}  // namespace

void register_tf_idf_vectorizer(std::vector<Candidate>& list) {
  list.push_back({"TfIdfVectorizer", "reference", make});
}

}  // namespace steep::cpu
