#include "cli/late_rows.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "data/convert.h"
#include "steep/data.h"

namespace steep::cli {

FarRows::FarRows(Joined parts, DType dtype) : joined_(std::move(parts)), dtype_(dtype) {
  const std::vector<Tensor>& all = joined_.parts;
  const DType first = all[0].dtype();
  if (std::all_of(all.begin(), all.end(), [&](const Tensor& t) { return t.dtype() == first; }))
    dtype_ = first;
  int64_t end = 0;
  for (const Tensor& part : all) ends_.push_back(end += part.dims()[0]);
}

Tensor FarRows::numbers() const {
  Tensor numbers = Tensor::empty(DType::i64, {ends_.back()});
  std::iota(numbers.data<int64_t>(), numbers.data<int64_t>() + numbers.size(), int64_t{0});
  return numbers;
}

Tensor FarRows::take(const Tensor& numbers) const {
  struct Chosen {
    std::vector<int64_t> rows{}, places{};
  };
  std::vector<Chosen> chosen(joined_.parts.size());
  for (int64_t i = 0; i < numbers.size(); ++i) {
    const int64_t row = numbers.data<int64_t>()[i];
    const auto part =
        static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), row) - ends_.begin());
    chosen[part].rows.push_back(part == 0 ? row : row - ends_[part - 1]);
    chosen[part].places.push_back(i);
  }
  Dims dims = joined_.parts[0].dims();
  dims[0] = numbers.size();
  Tensor result = Tensor::empty(dtype_, dims);
  for (size_t p = 0; p < chosen.size(); ++p) {
    const Chosen& of = chosen[p];
    if (of.rows.empty()) continue;
    const Tensor rows = convert(take_rows(joined_.parts[p], of.rows), dtype_, joined_.paths[p]);
    const size_t bytes = rows.nbytes() / of.rows.size();
    for (size_t i = 0; bytes > 0 && i < of.places.size(); ++i) {
      std::memcpy(static_cast<char*>(result.data()) + static_cast<size_t>(of.places[i]) * bytes,
                  static_cast<const char*>(rows.data()) + i * bytes, bytes);
    }
  }
  return result;
}

Tensor LateRows::read(size_t input, const Tensor& batch) const {
  if (images.set != nullptr && images.input == input) return images_at(images, batch);
  const auto found = far.find(input);
  return found == far.end() ? batch : found->second.take(batch);
}

std::vector<Tensor> LateRows::read(std::vector<Tensor> batch) const {
  for (size_t i = 0; i < batch.size(); ++i) batch[i] = read(i, batch[i]);
  return batch;
}

}  // namespace steep::cli
