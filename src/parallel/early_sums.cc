#include "parallel/early_sums.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "parallel/divided_gradients.h"
#include "runtime/counted.h"

namespace steep {
namespace {

/// The last bucket is sent when backward has ended: an eighth of all is a small part. Below 1 MiB
/// the start of a message would take longer than its bytes. Above 25 MiB it would wait for long.
constexpr size_t kBuckets = 8, kLeastBytes = 1u << 20, kMostBytes = 25u << 20;

size_t bytes_of_bucket(const TrainingSession& session, const std::vector<std::string>& names) {
  size_t bytes = 0;
  for (const std::string& name : names) bytes += session.state(name).nbytes();
  return std::clamp(bytes / kBuckets, kLeastBytes, kMostBytes);
}

}  // namespace

EarlySums::EarlySums(std::shared_ptr<Peers> peers, const std::vector<std::string>& order,
                     const Shares& shares, const TrainingSession& session, DType wire,
                     size_t bucket_bytes)
    : GradientBuckets(std::move(peers), order, shares, session,
                      {.bytes = bucket_bytes > 0 ? bucket_bytes : bytes_of_bucket(session, order),
                       // Whoever owns nothing of a bucket would only wait.
                       .of_all_owners = true},
                      SIZE_MAX),
      wire_(wire),
      owned_(!shares.empty()) {}

void EarlySums::begin(std::map<std::string, Tensor> sums, bool /*fresh*/, double factor) {
  sums_ = std::move(sums);
  begin_run(factor);
}

std::function<void()> EarlySums::exchange_of(const std::vector<Item>& items) {
  Peers::Owned owned(owned_ ? static_cast<size_t>(peers().size()) : 1);
  for (const Item& item : items) owned[item.owner].push_back(sums_.at(item.parameter));
  return [this, owned = std::move(owned), factor = factor()] {
    if (owned_) return peers().add_to_owners(owned, factor, wire_);
    peers().add(owned[0], factor, wire_);
  };
}

// --- DataParallel --------------------------------------------------------------------------------

GradientBuckets* DataParallel::buckets() const {
  if (gradients_) return gradients_.get();
  return whole_ ? early_.get() : nullptr;
}

/// Names, dtypes and extents, whatever their order.
std::string DataParallel::types_of_parameters() const {
  std::vector<std::string> types;
  for (const std::string& name : session_->parameter_names()) {
    const Tensor state = session_->state(name);
    types.push_back(fmt::format("{} {} {}", name, name_of(state.dtype()), state.dims()));
  }
  std::sort(types.begin(), types.end());
  return fmt::format("{}", fmt::join(types, "\n"));
}

/// Whether this process has no buckets of these parameters yet.
bool DataParallel::needs_order() const {
  if (gradients_ || !peers_->any_thread()) return false;
  return early_ == nullptr || (moved_ && summed_ != types_of_parameters());
}

/// Divides gradients into the same buckets everywhere, the order of parameters being that of rank
/// 0. All processes call it where they have agreed that they train the same parameters. `anew`: one
/// of them needs the order.
void DataParallel::set_order(bool anew) {
  if (anew) {
    const std::vector<std::string> names = session_->parameter_names();
    const std::string first = peers_->gather_texts(nlohmann::json(names).dump())[0];
    auto order = nlohmann::json::parse(first).get<std::vector<std::string>>();
    std::reverse(order.begin(), order.end());  // backward begins with the last
    early_ = std::make_shared<EarlySums>(peers_, order, shares_, *session_, wire_);
    summed_ = types_of_parameters();
    moved_ = true;
  }
  if (!moved_ || early_ == nullptr) return;
  session_->on_sum([early = early_](const std::string& parameter) { early->complete(parameter); });
  moved_ = false;
}

void DataParallel::clear_sums() {
  for (auto& [name, sum] : session_->accumulated_gradients().sums) {
    if (sum.nbytes() > 0) std::memset(sum.data(), 0, sum.nbytes());
  }
}

/// An error in the midst of backward has dropped the sums of the parts before.
void DataParallel::require_parts() {
  if (!lost_) return;
  const DataError error(
      ErrorParts{.what = "Gradients of this step were lost by an error in one of its parts; no "
                         "weight was changed.",
                 .expected = "the gradients of " + counted(parts_, "part"),
                 .received = "none of the parts before the error",
                 .remedy = "Accumulate all parts again; call drop_gradients() on all ranks after "
                           "an error."});
  peers_->tell(error);
  throw error;
}

/// Does an exchange, and shows it in the trace.
void DataParallel::record(const char* name, size_t bytes, const std::function<void()>& exchange) {
  Exchange done{.name = name, .bytes = bytes};
  done.start = std::chrono::steady_clock::now();
  exchange();
  done.end = std::chrono::steady_clock::now();
  session_->record(done);
}

}  // namespace steep
