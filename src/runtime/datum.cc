#include "runtime/datum.h"

#include <fmt/format.h>

#include "steep/error.h"

namespace steep {

const Tensor& Datum::tensor() const {
  if (const Tensor* t = std::get_if<Tensor>(&value_)) return *t;
  throw DataError({.what = "A tensor was needed.",
                   .expected = "a tensor",
                   .received = text(),
                   .remedy = "Feed a tensor, or ask OptionalHasElement first."});
}

const Datum::Items& Datum::items() const {
  if (const auto* s = std::get_if<std::shared_ptr<const Items>>(&value_)) return **s;
  throw DataError({.what = "A sequence was needed.",
                   .expected = "a sequence",
                   .received = text(),
                   .remedy = "Feed a list of arrays, or ask OptionalHasElement first."});
}

size_t Datum::nbytes() const {
  if (is_tensor()) return tensor().nbytes();
  size_t bytes = 0;
  if (is_sequence()) {
    for (const Datum& d : items()) bytes += sizeof(Datum) + d.nbytes();
  }
  return bytes;
}

std::string Datum::text() const {
  if (is_tensor()) return to_string(Type{tensor().dtype(), to_shape(tensor().dims())});
  return is_sequence() ? fmt::format("sequence of {}", items().size()) : "nothing";
}

bool fits(const Datum& datum, Kind kind) {
  switch (kind) {
    case Kind::tensor: return datum.is_tensor();
    case Kind::sequence: return datum.is_sequence();
    case Kind::optional: return !datum.is_sequence();
    case Kind::optional_sequence: return !datum.is_tensor();
  }
  return false;
}

std::vector<Tensor> to_tensors(std::span<const Datum> data) {
  std::vector<Tensor> tensors;
  for (const Datum& d : data) tensors.push_back(d.tensor());
  return tensors;
}

}  // namespace steep
