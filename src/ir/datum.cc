#include "ir/datum.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>

#include "steep/error.h"

namespace steep {
namespace {

/// The set of bytes that tensors occupy, as disjoint ranges.
class Taken {
 public:
  void add(const Datum& datum) {
    if (datum.is_tensor()) {
      add(datum.tensor());
    } else if (datum.is_sequence()) {
      for (const Datum& d : datum.items()) add(d);
    }
  }

  /// Adds the bytes of `datum` and returns it, or returns a copy when some of the bytes are in the
  /// set already.
  Datum take(const Datum& datum) {
    if (datum.is_sequence()) {
      Datum::Items items;
      for (const Datum& d : datum.items()) items.push_back(take(d));
      return items;
    }
    if (!datum.is_tensor()) return datum;
    return add(datum.tensor()) ? datum : Datum(datum.tensor().clone());
  }

 private:
  /// Adds the bytes of `t`. Returns false when some of them were in the set already.
  bool add(const Tensor& t) {
    if (t.nbytes() == 0) return true;
    auto begin = reinterpret_cast<uintptr_t>(t.data()), end = begin + t.nbytes();
    auto last = ranges_.lower_bound(end), first = last;
    while (first != ranges_.begin() && std::prev(first)->second > begin) --first;
    const bool free = first == last;
    if (!free) {
      begin = std::min(begin, first->first);
      end = std::max(end, std::prev(last)->second);
    }
    ranges_.erase(first, last);
    ranges_.emplace(begin, end);
    return free;
  }

  std::map<uintptr_t, uintptr_t> ranges_;  // begin → end
};

}  // namespace

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

void keep_apart(std::vector<Datum>& results, std::span<const Datum> inputs) {
  Taken memory;
  for (const Datum& d : inputs) memory.add(d);
  for (Datum& d : results) d = memory.take(d);
}

namespace {

bool shares(const Datum& datum, std::span<const Tensor> others) {
  if (datum.is_sequence()) {
    return std::ranges::any_of(datum.items(), [&](const Datum& d) { return shares(d, others); });
  }
  if (!datum.is_tensor() || datum.tensor().nbytes() == 0) return false;
  const auto begin_of = [](const Tensor& t) { return reinterpret_cast<uintptr_t>(t.data()); };
  const uintptr_t begin = begin_of(datum.tensor()), end = begin + datum.tensor().nbytes();
  return std::ranges::any_of(others, [&](const Tensor& t) {
    return begin < begin_of(t) + t.nbytes() && begin_of(t) < end;
  });
}

Datum copied_if_of(std::span<const Tensor> others, const Datum& datum) {
  if (!shares(datum, others)) return datum;
  if (datum.is_tensor()) return datum.tensor().clone();
  Datum::Items items;
  for (const Datum& d : datum.items()) items.push_back(copied_if_of(others, d));
  return items;
}

}  // namespace

void copy_if_of(std::span<const Tensor> others, std::vector<Datum>& results) {
  for (Datum& d : results) d = copied_if_of(others, d);
}

}  // namespace steep
