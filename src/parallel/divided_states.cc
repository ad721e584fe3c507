// DataParallel with an optimizer whose states are divided among the processes (ZeRO-1), and with
// gradients that are, too (ZeRO-2).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "checkpoint/checkpoint.h"
#include "parallel/describe.h"
#include "parallel/divided_gradients.h"
#include "runtime/counted.h"
#include "runtime/digest.h"
#include "runtime/zeros.h"
#include "steep/parallel.h"
#include "train/step.h"

namespace steep {
namespace {

/// Assigns parameters to ranks: the largest first, each to the rank that has least. The same
/// everywhere, since all processes have the same parameters, if not in the same order.
std::vector<std::vector<std::string>> shares_of(const TrainingSession& session, int ranks) {
  std::vector<std::string> names = session.parameter_names();
  std::sort(names.begin(), names.end());
  std::vector<size_t> sizes, order(names.size());
  for (const std::string& name : names) sizes.push_back(session.state(name).nbytes());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return sizes[a] > sizes[b]; });
  std::vector<std::vector<std::string>> shares(static_cast<size_t>(ranks));
  std::vector<size_t> loads(shares.size());
  for (const size_t i : order) {
    const auto least = std::min_element(loads.begin(), loads.end()) - loads.begin();
    loads[static_cast<size_t>(least)] += sizes[i];
    shares[static_cast<size_t>(least)].push_back(names[i]);
  }
  return shares;
}

double squares_of(const Tensor& tensor) {
  double sum = 0;
  const auto add = [&](const auto* values) {
    for (int64_t i = 0; i < tensor.size(); ++i) {
      sum += static_cast<double>(values[i]) * static_cast<double>(values[i]);
    }
  };
  tensor.dtype() == DType::f64 ? add(tensor.data<double>()) : add(tensor.data<float>());
  return sum;
}

/// `folder`: rank 0 has made it.
void require_folder(const std::filesystem::path& folder) {
  std::error_code error;
  if (std::filesystem::is_directory(folder, error)) return;
  throw IoError(ErrorParts{
      .what = "A process does not see the folder in which all write a sharded checkpoint.",
      .expected = folder.string(),
      .received = "no such folder",
      .remedy = "Give all ranks one path, on a disk that all of them see; or let rank 0 write it "
                "alone (full_checkpoints, --full-checkpoints)."});
}

}  // namespace

void DataParallel::divide(int zero) {
  if (zero < 0 || zero > 2) {
    throw ModelError(ErrorParts{.what = "States cannot be divided in this way.",
                                .node = "zero",
                                .expected =
                                    "0 (all processes keep all of them), 1 (ZeRO-1: those of "
                                    "the optimizer are divided) or 2 (ZeRO-2: gradients, too)",
                                .received = std::to_string(zero)});
  }
  if (zero == 0 || peers_->size() == 1) return;
  if (!peers_->exchanges()) {
    throw ProviderError(ErrorParts{.what = "This way to communicate cannot divide states.",
                                   .node = "zero",
                                   .expected = "Peers with exchange()",
                                   .received = "Peers without",
                                   .remedy = "Use gloo or mpi, or zero = 0."});
  }
  zero_ = zero;
  describe();
  for (const std::vector<double>& of : peers_->agree("the division of states", {&digest_, 1})) {
    if (of[0] != digest_) explain_difference();
  }
  peers_->copy_from(0, states(state_names()));
  std::vector<std::vector<std::string>> shares = shares_of(*session_, peers_->size());
  if (zero == 2) gradients_ = std::make_shared<DividedGradients>(peers_, shares, *session_, wire_);
  facts_.erase(kOrder);  // a session in this one's place may have another
  set_digest();
  session_->hold_states_of(shares[static_cast<size_t>(peers_->rank())], receive());
  shares_ = std::move(shares);
  early_ = nullptr;
  moved_ = true;
  loaded_hash_.clear();
}

TrainingSession::Receive DataParallel::receive() const {
  if (!gradients_) return {};
  return [gradients = gradients_](const std::string& parameter, const Tensor& gradient) {
    gradients->take(parameter, gradient);
  };
}

/// For a session in the place of the one whose states were divided.
void DataParallel::hold_share_of(TrainingSession& session) const {
  if (session.held_parameters()) return;  // it comes back
  std::vector<std::string> before, now = session.parameter_names(), others;
  for (const auto& share : shares_) before.insert(before.end(), share.begin(), share.end());
  std::sort(before.begin(), before.end());
  std::sort(now.begin(), now.end());
  std::set_symmetric_difference(before.begin(), before.end(), now.begin(), now.end(),
                                std::back_inserter(others));
  if (!others.empty()) {
    throw ModelError(ErrorParts{
        .what = "Other parameters are trained than before, by which the optimizer's states are "
                "divided among the processes.",
        .node = others[0],
        .expected = fmt::format("the same {}", counted(before.size(), "parameter")),
        .received = std::binary_search(now.begin(), now.end(), others[0]) ? "one more" : "one less",
        .remedy = "Load the state into a new trainer or session, or do not divide (zero = 0)."});
  }
  if (gradients_) gradients_->require_types(session);
  session.hold_states_of(shares_[static_cast<size_t>(peers_->rank())], receive());
}

std::string DataParallel::loaded_states() {
  if (std::string hash = session_->checkpoint_hash(); !hash.empty()) loaded_hash_ = std::move(hash);
  return loaded_hash_ + " " + loaded_text_;
}

/// The optimizer's states, as they are kept.
std::vector<std::string> DataParallel::state_names() const {
  std::vector<std::string> names = session_->optimizer_state_names();
  for (const std::string& parameter : session_->parameter_names()) {
    for (TensorInfo& info : session_->states_of(parameter)) names.push_back(std::move(info.name));
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

/// `every`: numbers of all processes, of which `at` is the digest of loaded_states().
void DataParallel::require_same_checkpoint(const std::vector<std::vector<double>>& every,
                                           size_t at) {
  for (size_t i = 0; i < every.size(); ++i) {
    if (every[i][at] == every[0][at]) continue;
    throw DataError(ErrorParts{
        .what = "The processes have not loaded the same checkpoint or state, and each keeps a "
                "part of the optimizer's states; no weight was changed.",
        .node = fmt::format("rank {}", i),
        .expected = "that of rank 0, or none where rank 0 has loaded none",
        .received = "another one",
        .remedy = "Load the same checkpoint, or the state of rank 0, on every rank."});
  }
}

void DataParallel::sum_gradients(const std::map<std::string, Tensor>& sums, double factor) {
  size_t bytes = 0;
  for (const auto& named : sums) bytes += named.second.nbytes();
  record("sum of gradients", bytes, [&] { sum_all(sums, factor); });
}

void DataParallel::sum_all(const std::map<std::string, Tensor>& sums, double factor) {
  if (!shares_.empty()) {
    Peers::Owned owned;
    for (const std::vector<std::string>& share : shares_) {
      owned.emplace_back();
      for (const std::string& name : share) owned.back().push_back(sums.at(name));
    }
    return peers_->add_to_owners(owned, factor, wire_);
  }
  std::vector<Tensor> all;
  for (const auto& named : sums) all.push_back(named.second);
  peers_->add(all, factor, wire_);
}

/// The norm of the gradient of all parameters, which are the sums by `weight`; 0 if no step needs
/// it here.
double DataParallel::norm_of_all(const std::map<std::string, Tensor>& sums, double weight) {
  if (shares_.empty() || !wants_norm(session_->options())) return 0;
  double own = 0, all = 0;
  for (const std::string& name : shares_[static_cast<size_t>(peers_->rank())]) {
    own += squares_of(sums.at(name));
  }
  for (const auto& of : peers_->agree("the norm of the gradients", {&own, 1})) all += of[0];
  return std::sqrt(all) / weight;
}

StepResult DataParallel::apply(double norm) {
  if (shares_.empty()) return session_->apply_gradients();
  StepResult result;
  try {
    result = session_->apply_held_gradients(norm);
  } catch (const std::exception& error) {
    peers_->tell(error);
    throw;
  }
  peers_->agree(kUpdateCall, {});
  Peers::Owned weights;
  for (const std::vector<std::string>& share : shares_) {
    weights.emplace_back();
    for (const std::string& name : share) weights.back().push_back(session_->state(name));
  }
  size_t bytes = 0;
  for (const auto& share : weights) {
    for (const Tensor& weight : share) bytes += weight.nbytes();
  }
  record("copy of weights", bytes, [&] { peers_->copy_from_owners(weights); });
  session_->complete_update();
  return result;
}

/// On rank 0, what the others have of the parameters that they own, by name; else nothing. `call`:
/// whose part this is, as processes in different calls send different states; `types`: of all of a
/// parameter; `own`: the value of one. The counts of steps on rank 0 become the owners', which may
/// have been set there only.
std::map<std::string, Tensor> DataParallel::gather_from_owners(
    const char* call, const std::function<std::vector<TensorInfo>(const std::string&)>& types,
    const std::function<Tensor(const std::string&)>& own) {
  std::map<std::string, Tensor> others;
  const auto rank = static_cast<size_t>(peers_->rank());
  Peers::Owned owned(shares_.size());
  try {
    const std::vector<std::string> states = session_->optimizer_state_names();
    const std::set<std::string> known(states.begin(), states.end());
    for (size_t from = 1; from < shares_.size(); ++from) {
      if (rank != 0 && rank != from) continue;
      for (const std::string& parameter : shares_[from]) {
        for (const TensorInfo& info : types(parameter)) {
          // The memory is given back when they are saved: malloc would keep it.
          owned[from].push_back(rank == 0 ? untouched_zeros(info.dtype, info.dims)
                                          : own(info.name));
          if (rank == 0) others[info.name] = owned[from].back();
        }
        const std::string count = count_name(parameter);
        if (known.count(count) != 0) owned[from].push_back(session_->state(count));
      }
    }
  } catch (const std::exception& error) {
    peers_->tell(error);
    throw;
  }
  const double loaded = digest_of(loaded_states());
  require_same_checkpoint(peers_->agree(call, {&loaded, 1}), 0);
  peers_->copy_to_first(owned);
  return others;
}

std::map<std::string, Tensor> DataParallel::gather_states() {
  if (shares_.empty()) return {};
  return gather_from_owners(
      "a checkpoint of all states", [&](const std::string& of) { return session_->states_of(of); },
      [&](const std::string& name) { return session_->state(name); });
}

std::map<std::string, Tensor> DataParallel::optimizer_state() {
  if (shares_.empty()) return session_->optimizer_state();
  std::map<std::string, Tensor> own;
  const std::vector<std::string> moments = session_->optimizer_state_names();
  const std::set<std::string> known(moments.begin(), moments.end());
  const auto types = [&](const std::string& parameter) {
    std::vector<TensorInfo> infos = session_->states_of(parameter);
    std::erase_if(infos, [&](const TensorInfo& info) { return known.count(info.name) == 0; });
    for (TensorInfo& info : infos) {
      if (info.dtype != DType::f64) info.dtype = DType::f32;  // as optimizer_state() gives it
    }
    return infos;
  };
  const auto value = [&](const std::string& name) {
    if (own.empty()) own = session_->optimizer_state();
    return own.at(name);
  };
  std::map<std::string, Tensor> others = gather_from_owners("the optimizer's states", types, value);
  own = session_->optimizer_state();  // with the counts of the owners
  own.merge(others);
  return own;
}

void DataParallel::save_checkpoint(const std::filesystem::path& path, const std::string& user,
                                   bool full) {
  if (!shares_.empty() && !full) return save_shards(path, user);
  const std::map<std::string, Tensor> others = gather_states();
  if (peers_->rank() == 0) session_->save_checkpoint(path, user, others);
}

void DataParallel::save_shards(const std::filesystem::path& path, const std::string& user) {
  const uint64_t before = peers_->agreements();
  std::optional<PendingCheckpoint> pending;  // until all have left its folder
  try {
    if (peers_->rank() == 0) pending.emplace(path);
    write_shards(path, user, pending ? &*pending : nullptr);
  } catch (const std::exception& error) {
    if (peers_->agreements() == before || !peers_->failed_together()) peers_->tell(error);
    throw;
  }
}

/// Each process writes the states that it keeps, and rank 0, which has `pending`, the rest.
void DataParallel::write_shards(const std::filesystem::path& path, const std::string& user,
                                PendingCheckpoint* pending) {
  const auto no_types = [](const std::string&) { return std::vector<TensorInfo>(); };
  // The counts of steps, which rank 0 writes.
  gather_from_owners("a sharded checkpoint", no_types, {});
  const std::string name =
      peers_->gather_texts(pending != nullptr ? pending->folder().filename().string() : "")[0];
  FileRecord own;
  if (pending != nullptr) {
    session_->save_checkpoint(pending->folder(), user, states_of_others());
  } else {
    const std::filesystem::path folder = folder_beside(path, name);
    require_folder(folder);
    own = write_shard(folder, own_states(), static_cast<size_t>(peers_->rank()), shares_.size());
  }
  const double numbers[] = {static_cast<double>(own.bytes), static_cast<double>(own.crc)};
  std::vector<FileRecord> others;
  for (const std::vector<double>& of : peers_->agree("the shards of a checkpoint", numbers)) {
    others.push_back({static_cast<uint64_t>(of[0]), static_cast<uint32_t>(of[1])});
  }
  others.erase(others.begin());
  if (pending != nullptr) pending->finish(others);
  peers_->agree("the end of a checkpoint", {});
}

/// The moments that this process keeps.
std::map<std::string, Tensor> DataParallel::own_states() const {
  std::map<std::string, Tensor> own;
  for (const std::string& parameter : shares_[static_cast<size_t>(peers_->rank())]) {
    for (const TensorInfo& info : session_->states_of(parameter)) {
      own[info.name] = session_->state(info.name);
    }
  }
  return own;
}

/// The types of what others keep.
std::map<std::string, Tensor> DataParallel::states_of_others() const {
  std::map<std::string, Tensor> others;
  for (size_t rank = 0; rank < shares_.size(); ++rank) {
    if (rank == static_cast<size_t>(peers_->rank())) continue;
    for (const std::string& parameter : shares_[rank]) {
      for (const TensorInfo& info : session_->states_of(parameter)) {
        others[info.name] = Tensor::wrap(info.dtype, info.dims, nullptr, nullptr);
      }
    }
  }
  return others;
}

}  // namespace steep
