#include "train/unit_labels.h"

#include <fmt/format.h>

#include <algorithm>

#include "data/convert.h"
#include "steep/data.h"
#include "steep/error.h"

namespace steep {
namespace {

/// Also NaN is not.
template <typename T>
bool is_unit(T label) {
  return label >= 0 && label <= 1;
}

/// Index of the first label that is not from 0 to 1; `count` if there is none.
template <typename T>
int64_t first_beyond(const T* labels, int64_t count) {
  return std::find_if_not(labels, labels + count, is_unit<T>) - labels;
}

[[noreturn]] void refuse(double label, int64_t row, const std::string& name) {
  throw DataError(ErrorParts{
      .what = "A label of a binary cross entropy is not from 0 to 1.",
      .node = name,
      .expected = "0 to 1",
      .received = fmt::format("{:g} in row {}, where rows count from 0", label, row),
      .remedy = label == -1 ? "Give 0 and 1 instead of -1 and 1: (labels + 1) / 2."
                            : "Correct the labels, or choose another loss, such as mse."});
}

}  // namespace

void check_unit_labels(const Tensor& labels, const std::string& loss, const std::string& name) {
  if (loss != "binary_cross_entropy" && loss != "binary_cross_entropy_with_logits") return;
  if (labels.data() == nullptr || labels.size() == 0 || labels.dims().empty()) return;
  const int64_t in_row = std::max<int64_t>(labels.size() / labels.dims()[0], 1);
  if (labels.dtype() == DType::f32) {
    const auto* p = labels.data<float>();
    const int64_t at = first_beyond(p, labels.size());
    if (at < labels.size()) refuse(static_cast<double>(p[at]), at / in_row, name);
    return;
  }
  if (!converts(labels.dtype(), DType::f64)) return;
  constexpr int64_t kAtOnce = 1 << 16;
  const int64_t count = labels.dims()[0], step = std::max<int64_t>(kAtOnce / in_row, 1);
  for (int64_t begin = 0; begin < count; begin += step) {
    const Tensor part =
        convert(rows(labels, begin, std::min(begin + step, count)), DType::f64, name);
    const auto* p = part.data<double>();
    const int64_t at = first_beyond(p, part.size());
    if (at < part.size()) refuse(p[at], begin + at / in_row, name);
  }
}

}  // namespace steep
