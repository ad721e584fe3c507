// Programs that start several processes of one command.
#pragma once

namespace steep::cli {

/// Throws ProviderError when the variables of a launcher (mpirun, srun, torchrun) say that this
/// process is one of several: each would train alone, on all of the data, and write over the
/// others' results. Names the launcher's variable and what to do. STEEP_ALONE=1 allows it. Keep in
/// step with python/steep/session/processes.py.
void refuse_several_processes();

}  // namespace steep::cli
