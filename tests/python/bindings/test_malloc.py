"""What happens to memory that is freed between steps."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# Page faults of touching 64 MiB a second time.
SCRIPT = """
import ctypes, resource
from steep._steep import keep_freed_memory

kept = keep_freed_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = libc.free.argtypes = None
def touch():
    block = ctypes.c_void_p(libc.malloc(ctypes.c_size_t(64 << 20)))
    ctypes.memset(block, 1, 64 << 20)
    libc.free(block)
touch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
touch()
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


# MiB that leave the process.
RETURNED = """
import ctypes
from pathlib import Path
from steep._steep import keep_freed_memory, return_freed_memory

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 >> 20

kept = keep_freed_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = libc.free.argtypes = None
block = ctypes.c_void_p(libc.malloc(ctypes.c_size_t(64 << 20)))
ctypes.memset(block, 1, 64 << 20)
libc.free(block)
before = resident()
return_freed_memory()
print(kept, before - resident())
"""


def run(script: str = SCRIPT, **environment: str) -> tuple[bool, int]:
    """Whether malloc was changed, and the number that the script prints."""
    base = {
        k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_", "STEEP_"))
    }
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**base, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    kept, number = done.stdout.split()
    return kept == "True", int(number)


def test_freed_memory_is_kept() -> None:
    kept, faults = run()
    if not kept:
        pytest.skip("malloc is not glibc's")
    assert faults < 16


def test_freed_memory_is_returned_on_request() -> None:
    kept, returned = run(RETURNED)
    if not kept:
        pytest.skip("malloc is not glibc's")
    assert returned >= 60
    assert run(RETURNED, STEEP_MALLOC="system") == (False, 0)


@pytest.mark.parametrize(
    "setting", [{"STEEP_MALLOC": "system"}, {"MALLOC_TRIM_THRESHOLD_": "131072"}]
)
def test_the_environment_has_the_last_word(setting: dict[str, str]) -> None:
    kept, faults = run(**setting)
    assert not kept
    assert faults > 16
