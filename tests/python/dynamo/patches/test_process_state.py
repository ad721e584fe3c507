"""Settings of the process that forward reads are those of the call."""

import gc
import os
import sys
import threading
import time

import pytest

torch = pytest.importorskip("torch")

from steep import ORTModule  # noqa: E402

LAST = [0.0]


def passes(clock):
    def read():
        now, before = clock(), LAST[0]
        LAST[0] = now
        return now > before

    return read


# what forward reads, and what sets it to another value and back
STATE = {
    "recursion limit": (sys.getrecursionlimit, sys.setrecursionlimit, (1500, 2000)),
    "digits": (sys.get_int_max_str_digits, sys.set_int_max_str_digits, (5000, 4300)),
    "threads": (torch.get_num_threads, torch.set_num_threads, (2, 1)),
    "collector": (gc.isenabled, lambda on: (gc.disable, gc.enable)[on](), (False, True)),
    "folder": (lambda: len(os.getcwd()), os.chdir, ("/", "/usr")),
    "precision": (
        lambda: torch.get_float32_matmul_precision() == "high",
        torch.set_float32_matmul_precision,
        ("high", "highest"),
    ),
    "cudnn": (
        lambda: torch.backends.cudnn.benchmark,
        lambda on: setattr(torch.backends.cudnn, "benchmark", on),
        (True, False),
    ),
    "deterministic": (
        torch.are_deterministic_algorithms_enabled,
        torch.use_deterministic_algorithms,
        (True, False),
    ),
    "arguments": (lambda: len(sys.argv), lambda n: setattr(sys, "argv", ["a"] * n), (2, 1)),
    "gradients": (torch.is_grad_enabled, torch.set_grad_enabled, (False, True)),
    "time": (passes(time.perf_counter), lambda value: None, (1, 2)),
    "clock": (passes(time.time), lambda value: None, (1, 2)),
}


class Net(torch.nn.Module):
    def __init__(self, read):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))
        self.read = read

    def forward(self, x):
        return x * self.weight * (1 + self.read())


@pytest.mark.parametrize(("read", "write", "values"), STATE.values(), ids=STATE)
def test_state_of_this_call(read, write, values, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["a", "b", "c"])
    limits = sys.getrecursionlimit(), torch.get_num_threads(), os.getcwd()
    results = []
    try:
        for wrap in (lambda m: m, ORTModule):
            LAST[0] = 0.0
            net, found = wrap(Net(read)), []
            for value in (*values, *values):
                write(value)
                found.append(net(torch.ones(3)).tolist())
            results.append(found)
    finally:
        sys.setrecursionlimit(limits[0])
        torch.set_num_threads(limits[1])
        os.chdir(limits[2])
    assert results[1] == results[0]


def test_thread_of_this_call():
    main = threading.get_ident()
    net, found = ORTModule(Net(lambda: threading.get_ident() == main)), []

    def call():
        found.append(net(torch.ones(1)).tolist()[0])

    for apart in (False, True, False):
        thread = threading.Thread(target=call)
        thread.start() if apart else call()
        thread.join() if apart else None
    assert found == [2.0, 1.0, 2.0]


def test_setting_in_forward():
    """Forward sets what it reads at every call, not at the capture alone."""
    before = sys.get_int_max_str_digits()

    def sets():
        sys.set_int_max_str_digits(sys.get_int_max_str_digits() + 100)
        return sys.get_int_max_str_digits() - before

    net = ORTModule(Net(sets))
    try:
        assert [net(torch.ones(3))[0].item() for _ in range(3)] == [101.0, 201.0, 301.0]
    finally:
        sys.set_int_max_str_digits(before)
