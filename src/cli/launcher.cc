#include "cli/launcher.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <string_view>

#include "steep/error.h"

namespace steep::cli {
namespace {

struct Launcher {
  const char* name;
  const char* size;  ///< the variable that holds the number of processes
  const char* rank;  ///< of this process; some launchers set `size` even for a single process
};

constexpr Launcher kLaunchers[] = {
    {"steep launch", "STEEP_SIZE", "STEEP_RANK"},
    {"Open MPI's mpirun", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},
    {"MPICH's or Intel MPI's mpirun", "PMI_SIZE", "PMI_RANK"},
    {"MVAPICH's mpirun", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"},
    {"SLURM's srun", "SLURM_NTASKS", "SLURM_PROCID"},
    {"SLURM's srun", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"},
    {"Flux", "FLUX_JOB_SIZE", "FLUX_TASK_RANK"},
    {"jsrun", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_RANK"},
    {"Horovod", "HOROVOD_SIZE", "HOROVOD_RANK"},
    {"torchrun", "WORLD_SIZE", "RANK"},
};

/// The number in a variable; 0 if it is not set or not a number.
long number_in(const char* variable) {
  const char* text = std::getenv(variable);
  if (text == nullptr) return 0;
  const std::string_view word = text;
  long number = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  return error == std::errc{} && end == word.data() + word.size() ? number : 0;
}

}  // namespace

void refuse_several_processes() {
  const auto is = [](const char* variable, std::string_view value) {
    const char* text = std::getenv(variable);
    return text != nullptr && text == value;
  };
  if (is("STEEP_ALONE", "1")) return;
  if (const char* alone = std::getenv("STEEP_ALONE");
      alone != nullptr && *alone != 0 && !is("STEEP_ALONE", "0")) {
    throw DataError(
        ErrorParts{.what = "The environment variable STEEP_ALONE has an unknown value.",
                   .node = "STEEP_ALONE",
                   .expected = "1, if each process is to train a model of its own, or 0",
                   .received = alone,
                   .remedy = "Correct the variable, or unset it."});
  }
  // SLURM runs the script of a batch job as one process, however many tasks the job has.
  const bool script = is("ENVIRONMENT", "BATCH") && std::getenv("SLURM_STEP_NUM_TASKS") == nullptr;
  for (const Launcher& launcher : kLaunchers) {
    const long size = number_in(launcher.size);
    if (size <= 1 || std::getenv(launcher.rank) == nullptr) continue;
    if (script && launcher.size == std::string_view("SLURM_NTASKS")) continue;
    throw ProviderError(ErrorParts{
        .what = "Several processes were started: each would train alone and overwrite the results "
                "of the others.",
        .expected = "one process",
        .received = fmt::format("{}={}, {}={} (of {})", launcher.size, size, launcher.rank,
                                std::getenv(launcher.rank), launcher.name),
        .remedy =
            "Start it once, without the launcher or with one process (mpirun -n 1, "
            "srun -n 1); its threads are OMP_NUM_THREADS. To divide the rows of each batch "
            "among processes, use `steep launch -n 2 train …`, or give --parallel mpi under "
            "Open MPI's mpirun. For runs that are meant to be apart, each with results of its "
            "own, set STEEP_ALONE=1."});
  }
}

}  // namespace steep::cli
