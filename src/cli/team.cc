#include "cli/team.h"

#include <cstring>
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

void add_parallel_option(CLI::App& app, std::string& way) {
  app.add_option(
         "--parallel", way,
         "Divide the rows of each batch among the processes that were started together:\n"
         "gloo, by `steep launch -n 4 train …`; mpi, by `mpirun -n 4 steep train …`. Rank 0\n"
         "writes the results, which are those of one process up to rounding")
      ->check(one_of({"gloo", "mpi"}));
}

Team::Team(const std::string& way)
    : peers_(way.empty() ? std::make_shared<Alone>() : connect(way)) {}

bool Team::any(bool asked) const { return alone() ? asked : sum(asked ? 1 : 0) != 0; }

double Team::sum(double number) const {
  if (alone()) return number;
  double total = 0;
  for (const std::vector<double>& of : peers_->agree("a sum", {&number, 1})) total += of[0];
  return total;
}

double Team::of_lead(const std::function<double()>& find) const {
  if (alone()) return find();
  const double own = leads() ? find() : 0;
  return peers_->agree("a number of rank 0", {&own, 1})[0][0];
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

}  // namespace steep::cli
