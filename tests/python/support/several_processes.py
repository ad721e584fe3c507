"""Processes of a gloo group, for tests of what they do together. None may hang."""

import multiprocessing
import os
import socket
import time
import traceback
from unittest import mock

import torch.distributed as dist


def in_processes(count, work, *arguments, seconds=240, dies=()):
    """Run ``work(rank, *arguments)`` in all; fail with what one raises, or if one hangs.

    ``dies`` are ranks that end otherwise.
    """
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    failures = context.SimpleQueue()
    each = [
        context.Process(target=_in_one, args=(rank, failures, work, arguments))
        for rank in range(count)
    ]
    for rank, process in enumerate(each):
        with mock.patch.dict(os.environ, _environment(rank, count, port)):
            process.start()
    end = time.monotonic() + seconds
    for process in each:
        process.join(max(0, end - time.monotonic()))
    hung = [rank for rank, process in enumerate(each) if process.is_alive()]
    for process in each:
        process.kill()
        process.join()
    assert failures.empty(), failures.get()
    assert not hung, f"ranks {hung} hang"
    for rank, process in enumerate(each):
        assert rank in dies or process.exitcode == 0, f"rank {rank}: exit {process.exitcode}"


def _environment(rank, count, port):
    """Return what torchrun sets. What a test trains alone, to compare with, is meant to be so."""
    return {
        **{"RANK": str(rank), "WORLD_SIZE": str(count), "LOCAL_RANK": str(rank)},
        **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)},
        **{"STEEP_ALONE": "1", "OMP_NUM_THREADS": "1"},
    }


def _in_one(rank, failures, work, arguments):
    try:
        work(rank, *arguments)
    except BaseException:
        failures.put(f"rank {rank}: {traceback.format_exc()[-4000:]}")
        raise
    if dist.is_initialized():
        dist.destroy_process_group()
