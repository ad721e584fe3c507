// DataParallel with an optimizer whose states are divided among the processes (ZeRO-1).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "parallel/describe.h"
#include "steep/parallel.h"
#include "train/step.h"

namespace steep {
namespace {

/// Assigns parameters to ranks: the largest first, each to the rank that has least. The same
/// everywhere, since all processes have the same parameters.
std::vector<std::vector<std::string>> shares_of(const TrainingSession& session, int ranks) {
  const std::vector<std::string> names = session.parameter_names();
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

}  // namespace

void DataParallel::divide(int zero) {
  if (zero != 0 && zero != 1) {
    throw ModelError(ErrorParts{.what = "States cannot be divided in this way.",
                                .node = "zero",
                                .expected =
                                    "0 (all processes keep all of them) or 1 (ZeRO-1: those "
                                    "of the optimizer are divided)",
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
  describe();
  for (const std::vector<double>& of : peers_->agree("the division of states", {&digest_, 1})) {
    if (of[0] != digest_) explain_difference();
  }
  peers_->copy_from(0, states(state_names()));
  std::vector<std::vector<std::string>> shares = shares_of(*session_, peers_->size());
  session_->hold_states_of(shares[static_cast<size_t>(peers_->rank())]);
  shares_ = std::move(shares);
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

/// `every`: the numbers that open() exchanges.
void DataParallel::require_same_checkpoint(const std::vector<std::vector<double>>& every) {
  for (size_t i = 0; i < every.size(); ++i) {
    if (every[i][7] == every[0][7]) continue;
    throw DataError(ErrorParts{
        .what = "The processes have not loaded the same checkpoint, and each keeps a part of the "
                "optimizer's states; no weight was changed.",
        .node = fmt::format("rank {}", i),
        .expected = "the checkpoint of rank 0, or none where rank 0 has loaded none",
        .received = "another one",
        .remedy = "Load the same checkpoint on every rank."});
  }
}

void DataParallel::sum_gradients(const std::map<std::string, Tensor>& sums, double factor) {
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

/// The norm of the gradient of all parameters; 0 if no step needs it here.
double DataParallel::norm_of_all(const std::map<std::string, Tensor>& sums) {
  if (shares_.empty() || !wants_norm(session_->options())) return 0;
  double own = 0, all = 0;
  for (const std::string& name : shares_[static_cast<size_t>(peers_->rank())]) {
    own += squares_of(sums.at(name));
  }
  for (const auto& of : peers_->agree("the norm of the gradients", {&own, 1})) all += of[0];
  return std::sqrt(all);
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
  peers_->copy_from_owners(weights);
  session_->complete_update();
  return result;
}

std::map<std::string, Tensor> DataParallel::gather_states() {
  std::map<std::string, Tensor> others;
  if (shares_.empty()) return others;
  const auto own = static_cast<size_t>(peers_->rank());
  Peers::Owned owned(shares_.size());
  try {
    for (size_t rank = 1; rank < shares_.size(); ++rank) {
      if (own != 0 && own != rank) continue;
      for (const std::string& parameter : shares_[rank]) {
        for (const TensorInfo& info : session_->states_of(parameter)) {
          owned[rank].push_back(own == 0 ? Tensor::empty(info.dtype, info.dims)
                                         : session_->state(info.name));
          if (own == 0) others[info.name] = owned[rank].back();
        }
      }
    }
  } catch (const std::exception& error) {
    peers_->tell(error);
    throw;
  }
  peers_->agree("a checkpoint", {});
  peers_->copy_to_first(owned);
  return others;
}

void DataParallel::save_checkpoint(const std::filesystem::path& path, const std::string& user) {
  const std::map<std::string, Tensor> others = gather_states();
  if (peers_->rank() == 0) session_->save_checkpoint(path, user, others);
}

}  // namespace steep
