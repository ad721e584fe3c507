"""Limits of memory end a run by a typed error: the short form of tests/attack/little_memory.py."""

import sys

import pytest
from checkout import ROOT

sys.path.insert(0, str(ROOT))
from tests.attack import little_memory

PROGRAM = ROOT / "build/release/steep"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("models")
    little_memory.write_models(made)
    return made


@pytest.mark.skipif(not PROGRAM.exists(), reason="the program is not built")
@pytest.mark.parametrize("threads", [1, 8])
@pytest.mark.parametrize("name", little_memory.MODELS)
def test_the_program_ends_in_success_or_a_typed_error(folder, name, threads):
    # where threads, kernels and the first run of each met their limits
    for limit in (66, 70, 74, 78, 88, 102, 114, 128):
        assert not little_memory.fault_of_program(PROGRAM, folder, name, threads, limit << 20)


@pytest.mark.parametrize("room", [0, 1, 10, 20, 30])
def test_a_session_does_so_too(folder, room):
    assert not little_memory.fault_of_session(folder, "cnn", 2, room << 20)
