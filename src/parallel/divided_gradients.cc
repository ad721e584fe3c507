#include "parallel/divided_gradients.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/zeros.h"

namespace steep {
namespace {

template <typename T>
void add_scaled(const Tensor& to, const Tensor& from, double factor) {
  auto* sums = const_cast<T*>(to.data<T>());
  const T* values = from.data<T>();
  for (int64_t i = 0; i < to.size(); ++i) sums[i] += static_cast<T>(values[i] * factor);
}

/// Of the gradient of a parameter.
DType dtype_for(const Tensor& parameter) {
  return parameter.dtype() == DType::f64 ? DType::f64 : DType::f32;
}

void set_zero(const Tensor& tensor) {
  if (tensor.nbytes() > 0) std::memset(const_cast<void*>(tensor.data()), 0, tensor.nbytes());
}

}  // namespace

DividedGradients::DividedGradients(Peers& peers,
                                   const std::vector<std::vector<std::string>>& shares,
                                   const TrainingSession& session, DType wire, size_t bucket_bytes)
    : peers_(peers), wire_(wire) {
  std::map<std::string, size_t> owners;
  for (size_t rank = 0; rank < shares.size(); ++rank) {
    for (const std::string& name : shares[rank]) owners[name] = rank;
  }
  // Backward makes the gradients of the last parameters first.
  std::vector<std::string> names = session.parameter_names();
  std::reverse(names.begin(), names.end());
  size_t bytes = 0;
  for (const std::string& name : names) {
    const Tensor state = session.state(name);
    Item item{name, owners.at(name), dtype_for(state), state.dims()};
    const size_t own = static_cast<size_t>(state.size()) * size_of(item.dtype);
    if (buckets_.empty() || bytes + own > bucket_bytes) {
      buckets_.emplace_back();
      bytes = 0;
    }
    bytes += own;
    places_[name] = {buckets_.size() - 1, buckets_.back().items.size()};
    buckets_.back().items.push_back(std::move(item));
  }
}

void DividedGradients::require_types(const TrainingSession& session) const {
  const auto text = [](DType dtype, const Dims& dims) {
    return fmt::format("{}{}", name_of(dtype), to_string(dims));
  };
  for (const Bucket& bucket : buckets_) {
    for (const Item& item : bucket.items) {
      const Tensor now = session.state(item.parameter);
      if (dtype_for(now) == item.dtype && now.dims() == item.dims) continue;
      throw ModelError(ErrorParts{
          .what = "A parameter has another type than before, by which gradients are divided among "
                  "the processes.",
          .node = item.parameter,
          .expected = text(item.dtype, item.dims),
          .received = text(dtype_for(now), now.dims()),
          .remedy = "Load the state into a new trainer or session, or use zero = 1."});
    }
  }
}

void DividedGradients::begin(std::map<std::string, Tensor> sums, bool fresh, double factor) {
  sums_ = std::move(sums);
  waiting_.clear();
  factor_ = factor;
  next_ = 0;
  for (Bucket& bucket : buckets_) bucket.missing = bucket.items.size();
  if (!fresh) return;
  for (const auto& named : sums_) set_zero(named.second);
}

void DividedGradients::take(const std::string& parameter, const Tensor& gradient) {
  const auto [at, index] = places_.at(parameter);
  Bucket& bucket = buckets_[at];
  const Item& item = bucket.items[index];
  Tensor sum;
  if (item.owner == static_cast<size_t>(peers_.rank())) {
    sum = sums_.at(parameter);
  } else {
    sum = waiting_[parameter] = untouched_zeros(item.dtype, item.dims);
  }
  (item.dtype == DType::f64 ? add_scaled<double> : add_scaled<float>)(sum, gradient, factor_);
  --bucket.missing;
  while (next_ < buckets_.size() && buckets_[next_].missing == 0) send_next();
}

void DividedGradients::send_next() {
  peers_.agree("gradients of a step", {});
  Peers::Owned owned(static_cast<size_t>(peers_.size()));
  for (const Item& item : buckets_[next_].items) {
    const bool own = item.owner == static_cast<size_t>(peers_.rank());
    const auto there = waiting_.find(item.parameter);
    owned[item.owner].push_back(own                       ? sums_.at(item.parameter)
                                : there == waiting_.end() ? untouched_zeros(item.dtype, item.dims)
                                                          : there->second);
  }
  peers_.add_to_owners(owned, 1, wire_);
  for (const Item& item : buckets_[next_].items) waiting_.erase(item.parameter);
  ++next_;
}

void DividedGradients::end() {
  while (next_ < buckets_.size()) send_next();
}

}  // namespace steep
