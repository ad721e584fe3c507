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

void set_zero(const Tensor& tensor) {
  if (tensor.nbytes() > 0) std::memset(const_cast<void*>(tensor.data()), 0, tensor.nbytes());
}

/// Backward makes the gradients of the last parameters first.
std::vector<std::string> reversed(std::vector<std::string> names) {
  std::reverse(names.begin(), names.end());
  return names;
}

/// Buckets that wait take memory, which divided gradients are to save.
constexpr size_t kMostWaiting = 2;

}  // namespace

DividedGradients::DividedGradients(std::shared_ptr<Peers> peers, const Shares& shares,
                                   const TrainingSession& session, DType wire, size_t bucket_bytes)
    : GradientBuckets(std::move(peers), reversed(session.parameter_names()), shares, session,
                      {.bytes = bucket_bytes, .of_all_owners = false}, kMostWaiting),
      wire_(wire) {}

void DividedGradients::require_types(const TrainingSession& session) const {
  const auto text = [](DType dtype, const Dims& dims) {
    return fmt::format("{}{}", name_of(dtype), to_string(dims));
  };
  for (const std::string& name : parameters()) {
    const Item& item = item_of(name);
    const Tensor now = session.state(name);
    if (dtype_of_gradient(now) == item.dtype && now.dims() == item.dims) continue;
    throw ModelError(ErrorParts{
        .what = "A parameter has another type than before, by which gradients are divided among "
                "the processes.",
        .node = name,
        .expected = text(item.dtype, item.dims),
        .received = text(dtype_of_gradient(now), now.dims()),
        .remedy = "Load the state into a new trainer or session, or use zero = 1."});
  }
}

void DividedGradients::begin(std::map<std::string, Tensor> sums, bool fresh, double factor) {
  sums_ = std::move(sums);
  waiting_.clear();
  begin_run(factor);
  if (!fresh) return;
  for (const auto& named : sums_) set_zero(named.second);
}

void DividedGradients::take(const std::string& parameter, const Tensor& gradient) {
  const Item& item = item_of(parameter);
  Tensor sum;
  if (item.owner == static_cast<size_t>(peers().rank())) {
    sum = sums_.at(parameter);
  } else {
    sum = waiting_[parameter] = untouched_zeros(item.dtype, item.dims);
  }
  (item.dtype == DType::f64 ? add_scaled<double> : add_scaled<float>)(sum, gradient, factor());
  complete(parameter);
}

std::function<void()> DividedGradients::exchange_of(const std::vector<Item>& items) {
  Peers::Owned owned(static_cast<size_t>(peers().size()));
  for (const Item& item : items) {
    const bool own = item.owner == static_cast<size_t>(peers().rank());
    const auto there = waiting_.find(item.parameter);
    owned[item.owner].push_back(own                       ? sums_.at(item.parameter)
                                : there == waiting_.end() ? untouched_zeros(item.dtype, item.dims)
                                                          : there->second);
    waiting_.erase(item.parameter);
  }
  return [this, owned = std::move(owned)] { peers().add_to_owners(owned, 1, wire_); };
}

}  // namespace steep
