#include "parallel/gradient_buckets.h"

#include <fmt/format.h>

#include <set>
#include <utility>

namespace steep {

GradientBuckets::GradientBuckets(std::shared_ptr<Peers> peers,
                                 const std::vector<std::string>& order, const Shares& shares,
                                 const TrainingSession& session, Size size, size_t most_waiting)
    : peers_(std::move(peers)), next_(0), thread_(peers_->any_thread(), most_waiting) {
  std::map<std::string, size_t> owners;
  for (size_t rank = 0; rank < shares.size(); ++rank) {
    for (const std::string& name : shares[rank]) owners[name] = rank;
  }
  std::set<size_t> all, there;  // owners: of some parameter; of one in the last bucket
  for (const auto& owner : owners) {
    if (size.of_all_owners) all.insert(owner.second);
  }
  size_t bytes = 0;  // of it
  for (const std::string& name : order) {
    const Tensor state = session.state(name);
    const DType dtype = dtype_of_gradient(state);
    Item item{name, shares.empty() ? 0 : owners.at(name), dtype, state.dims()};
    const size_t own = static_cast<size_t>(state.size()) * size_of(dtype);
    if (buckets_.empty() || (bytes + own > size.bytes && there.size() >= all.size())) {
      buckets_.emplace_back();
      bytes = 0;
      there.clear();
    }
    bytes += own;
    there.insert(item.owner);
    places_[name] = {buckets_.size() - 1, buckets_.back().items.size()};
    buckets_.back().items.push_back(std::move(item));
  }
  next_ = buckets_.size();
}

DType GradientBuckets::dtype_of_gradient(const Tensor& parameter) {
  return parameter.dtype() == DType::f64 ? DType::f64 : DType::f32;
}

const GradientBuckets::Item& GradientBuckets::item_of(const std::string& parameter) const {
  const auto [bucket, index] = places_.at(parameter);
  return buckets_[bucket].items[index];
}

std::vector<std::string> GradientBuckets::parameters() const {
  std::vector<std::string> names;
  for (const auto& place : places_) names.push_back(place.first);
  return names;
}

void GradientBuckets::begin_run(double factor) {
  factor_ = factor;
  next_ = 0;
  for (Bucket& bucket : buckets_) bucket.missing = bucket.items.size();
  thread_.take_ended();
}

void GradientBuckets::complete(const std::string& parameter) {
  if (next_ == buckets_.size()) return;
  --buckets_[places_.at(parameter).first].missing;
  while (next_ < buckets_.size() && buckets_[next_].missing == 0) start_next();
}

void GradientBuckets::start_next() {
  const std::vector<Item>& items = buckets_[next_].items;
  Exchange exchange{.name = fmt::format("bucket {}: {}", next_, items[0].parameter),
                    .bucket = static_cast<int64_t>(next_)};
  if (items.size() > 1) exchange.name += fmt::format(" and {} more", items.size() - 1);
  for (const Item& item : items) {
    size_t bytes = size_of(item.dtype);
    for (const int64_t extent : item.dims) bytes *= static_cast<size_t>(extent);
    exchange.bytes += bytes;
  }
  thread_.start(std::move(exchange), [this, run = exchange_of(items)] {
    peers_->agree("gradients of a step", {});
    run();
  });
  ++next_;
}

void GradientBuckets::end() {
  while (next_ < buckets_.size()) start_next();
  thread_.wait();
}

void GradientBuckets::drop() noexcept {
  next_ = buckets_.size();
  try {
    thread_.wait();
  } catch (...) {  // the caller has an error already
    return;
  }
}

}  // namespace steep
