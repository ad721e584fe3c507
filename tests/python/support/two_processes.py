"""Two processes over gloo, for tests of what spans them."""

import socket
import traceback

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def in_two_processes(work):
    """Run ``work(rank)`` in both; fail with what either raises."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    failures = mp.get_context("spawn").SimpleQueue()
    mp.spawn(_in_one, (port, failures, work), nprocs=2)
    assert failures.empty(), failures.get()


def _in_one(rank, port, failures, work):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    try:
        work(rank)
    except BaseException:
        failures.put(traceback.format_exc())
        raise
    dist.destroy_process_group()


def assert_same_state(actual, expected, what):
    states = actual.state_dict(), expected.state_dict()
    assert list(states[0]) == list(states[1])
    for name, value in states[1].items():
        torch.testing.assert_close(
            states[0][name], value, rtol=1e-5, atol=1e-6, msg=lambda m, n=name: f"{what}: {n}: {m}"
        )
