// Programs that start several processes of one command.
#pragma once

namespace steep::cli {

/// Throws ProviderError, which names the variable and the remedy, if variables of a launcher
/// (mpirun, srun, torchrun) say that this process is one of several. Each process would train alone
/// on all of the data, and overwrite the others' results. STEEP_ALONE=1 allows it. Keep in step
/// with python/steep/session/processes.py.
void refuse_several_processes();

}  // namespace steep::cli
