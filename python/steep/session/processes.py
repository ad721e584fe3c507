"""Detects whether a launcher started several processes, and lets them train together."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from steep.errors import DataError, ModelError, ProviderError

if TYPE_CHECKING:
    from steep.parallel.ranks import Ranks

ALONE = "STEEP_ALONE"  # 1: each process intentionally trains by itself

# Launcher, its variable for the number of processes, and another variable that it must have set.
_LAUNCHERS = (
    ("steep launch", "STEEP_SIZE", "STEEP_RANK"),
    ("torchrun", "WORLD_SIZE", "RANK"),
    ("mpirun of Open MPI", "OMPI_COMM_WORLD_SIZE", ""),
    ("mpiexec of MPICH or Intel MPI", "PMI_SIZE", ""),
    ("mpirun of MVAPICH", "MV2_COMM_WORLD_SIZE", ""),
    ("srun", "SLURM_STEP_NUM_TASKS", ""),
    ("Flux", "FLUX_JOB_SIZE", "FLUX_TASK_RANK"),
    ("jsrun", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_RANK"),
    ("Horovod", "HOROVOD_SIZE", "HOROVOD_RANK"),
)


def find_launcher(environ: Mapping[str, str]) -> str:
    """Return which launcher started several processes, and how many; "" for one process."""
    for launcher, variable, beside in _LAUNCHERS:
        size = _number(environ.get(variable))
        if size > 1 and (not beside or beside in environ):
            return f"{variable}={size}, of {launcher}"
    # The script of a batch job is one process, even if the job has many tasks.
    script = environ.get("ENVIRONMENT") == "BATCH"
    task = "SLURM_PROCID" in environ and "SLURM_STEP_NUM_TASKS" not in environ
    tasks = _number(environ.get("SLURM_NTASKS"))
    return f"SLURM_NTASKS={tasks}, of srun" if task and not script and tasks > 1 else ""


def require_alone(what: str) -> None:
    """Raise ProviderError if there are several processes, and each would train alone.

    DataError: ``STEEP_ALONE`` is neither 0 nor 1.

    Launchers are detected by their environment variables, PyTorch's process group by its size.

    Args:
        what: the name of what trains, for the message.
    """
    alone = os.environ.get(ALONE, "")
    if alone not in ("", "0", "1"):
        raise DataError(
            "An environment variable has a value that is not supported.",
            node=ALONE,
            expected="1, if each process is to train a model of its own, or 0",
            received=alone,
            remedy="correct the variable, or unset it",
        )
    if alone == "1":
        return
    received = find_launcher(os.environ) or _group()
    if received:
        raise ProviderError(
            "Several processes were started, and each would train alone and overwrite the "
            "files of the others.",
            node=what,
            expected="one process",
            received=received,
            remedy="start one process, which uses all processors; to divide the rows among "
            'processes, parallel="torch" of steep.trainer, "torch", "gloo" or "mpi" of '
            "TrainingSession, or DistributedDataParallel(steep.ORTModule(module)); where each "
            f"is to train a model of its own, to files of its own, set {ALONE}=1",
        )


def _group() -> str:
    """Return the size of PyTorch's process group as text, if it has several processes; else ""."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return ""
    size = distributed.get_world_size()
    return f"a process group of {size}" if size > 1 else ""


def _number(text: str | None) -> int:
    """Return the number that a launcher's variable contains; 0 for any other text."""
    return int(text) if text is not None and text.isdecimal() else 0


def join_processes(
    parallel: str | Ranks, zero: int, full_checkpoints: bool, wire_precision: str
) -> Ranks:
    """Return this process's part of a training in several processes; raise as ``connect``."""
    if not isinstance(parallel, str):
        return parallel  # a trainer passes one object to all of its sessions
    from steep.parallel.ranks import Ranks

    return Ranks(parallel, zero, full_checkpoints, wire_precision)


def require_whole(zero: int, wire_precision: str) -> None:
    """Raise ModelError for states that one process would divide, and gradients for nobody."""
    if wire_precision != "float32":
        raise ModelError(
            "Gradients are exchanged between processes, and there is one only.",
            node="wire_precision",
            expected='"float32", or parallel',
            received=repr(wire_precision),
            remedy='add parallel="gloo", "mpi" or "torch"',
        )
    if zero:
        raise ModelError(
            "The optimizer's states are divided among processes, and there is one only.",
            node="zero",
            expected="0, or parallel",
            received=repr(zero),
            remedy='add parallel="gloo", "mpi" or "torch"',
        )
