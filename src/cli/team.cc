#include "cli/team.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "cli/command_line.h"
#include "steep/error.h"

namespace steep::cli {
namespace {

/// One process, which has no others to exchange with.
class Alone : public Peers {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }

 protected:
  void gather_bytes(const void* own, void* every, size_t bytes) override {
    std::memcpy(every, own, bytes);
  }
  void sum(float* /*values*/, size_t /*count*/) override {}
  void sum(double* /*values*/, size_t /*count*/) override {}
  void broadcast(void* /*bytes*/, size_t /*count*/, int /*from*/) override {}
};

}  // namespace

void add_parallel_options(CLI::App& app, std::string& way, int64_t& zero, bool& full,
                          std::string& wire) {
  CLI::Option* parallel = app.add_option(
      "--parallel", way,
      "Divide the rows of each batch among the processes that were started together:\n"
      "gloo, by `steep launch -n 4 train …`; mpi, by `mpirun -n 4 steep train …`. Rank 0\n"
      "writes the results, which are those of one process up to rounding");
  parallel->check(one_of({"gloo", "mpi"}));
  app.add_option(
         "--zero", zero,
         "1: divide the optimizer's states, too, as in --zero 1: each process keeps those of\n"
         "its share of the weights, with the same results and the same bytes sent; 2: the\n"
         "sums of gradients as well, which are sent while backward runs, and again for each\n"
         "part of --accumulate")
      ->needs(parallel)
      ->capture_default_str()
      ->transform(whole(0, 2));
  app.add_flag(
         "--full-checkpoints", full,
         "With --zero: rank 0 collects the optimizer's states, and writes checkpoints alone.\n"
         "Without it, each process writes its shard, and all must see the folder")
      ->needs(parallel);
  app.add_option("--wire-precision", wire,
                 "bfloat16: send gradients in half the bytes, rounded; all processes still have\n"
                 "the same weights")
      ->needs(parallel)
      ->capture_default_str()
      ->check(one_of({"float32", "bfloat16"}));
}

const char* divided_by(int64_t zero) {
  return zero == 2 ? ", and the optimizer's states and gradients" : ", and the optimizer's states";
}

Team::Team(const std::string& way)
    : peers_(way.empty() ? std::make_shared<Alone>() : connect(way)) {}

bool Team::any(bool asked) const { return alone() ? asked : sum({asked ? 1.0 : 0.0})[0] != 0; }

std::vector<double> Team::sum(std::vector<double> numbers) const {
  if (alone()) return numbers;
  std::vector<double> totals(numbers.size());
  for (size_t at = 0; at < numbers.size(); at += Peers::kNumbers) {
    const size_t count = std::min(Peers::kNumbers, numbers.size() - at);
    for (const std::vector<double>& of : peers_->agree("a sum", {&numbers[at], count})) {
      for (size_t i = 0; i < count; ++i) totals[at + i] += of[i];
    }
  }
  return totals;
}

double Team::of_lead(const std::function<double()>& find) const {
  if (alone()) return find();
  const double own = leads() ? find() : 0;
  return peers_->agree("a number of rank 0", {&own, 1})[0][0];
}

std::string Team::text_of_lead(const std::string& text) const {
  peers_->agree("a text of rank 0", {});
  return peers_->gather_texts(text)[0];
}

int Team::together(const std::function<int()>& run) const {
  if (alone()) return run();
  try {
    const int code = run();
    peers_->agree("the end", {});
    return code;
  } catch (const std::exception& error) {
    if (!peers_->failed_together()) peers_->tell(error);
    throw;
  }
}

void PartLosses::add(double loss, double weight, int64_t counts) {
  parts_.push_back({loss, weight, counts});
}

PartLosses::Sum PartLosses::take(const Team& team) {
  std::vector<double> sums;
  for (const Part& part : parts_) {
    sums.push_back(part.loss * part.weight);
    sums.push_back(part.weight);
  }
  sums = team.sum(std::move(sums));
  Sum result;
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (sums[2 * i + 1] == 0) continue;
    result.loss += sums[2 * i] / sums[2 * i + 1] * static_cast<double>(parts_[i].counts);
    result.counts += parts_[i].counts;
  }
  clear();
  return result;
}

}  // namespace steep::cli
