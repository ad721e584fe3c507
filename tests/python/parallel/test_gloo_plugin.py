"""The plug-in of gloo by its own interface: what `interrupt` does to calls that wait."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from steep_program import built

PLUGIN = Path(built("steep")).with_name("libsteep_comm_gloo.so")
pytestmark = pytest.mark.skipif(not PLUGIN.exists(), reason="gloo was not found (libgloo-dev)")

VOID, INT, SIZE, TEXT = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t, ctypes.c_char_p
ROOM = 512
BYTES = 64


class Options(ctypes.Structure):
    _fields_ = (("rank", INT), ("size", INT), ("folder", TEXT), ("address", TEXT))


INTS = ctypes.POINTER(INT)
OPEN = ctypes.CFUNCTYPE(VOID, ctypes.POINTER(Options), INTS, INTS, TEXT, SIZE)
GATHER = ctypes.CFUNCTYPE(INT, VOID, VOID, VOID, SIZE, TEXT, SIZE)
COPY = ctypes.CFUNCTYPE(INT, VOID, VOID, SIZE, INT, TEXT, SIZE)
EXCHANGE = ctypes.CFUNCTYPE(INT, VOID, VOID, SIZE, INT, VOID, SIZE, INT, TEXT, SIZE)
OF_GROUP = ctypes.CFUNCTYPE(None, VOID)


class Table(ctypes.Structure):
    """`SteepComm` of src/parallel/comm.h."""

    _fields_ = (
        ("size", SIZE),
        ("any_thread", INT),
        ("open", OPEN),
        ("gather", GATHER),
        ("sum_float", VOID),
        ("sum_double", VOID),
        ("copy", COPY),
        ("exchange", EXCHANGE),
        ("sent", VOID),
        ("interrupt", OF_GROUP),
        ("close", OF_GROUP),
    )


def table() -> Table:
    entry = ctypes.CDLL(str(PLUGIN)).steep_comm_3
    entry.restype = ctypes.POINTER(Table)
    return entry().contents


def connect(plugin: Table, folder: Path) -> list[int]:
    """A group of two, both in this process."""
    groups = [0, 0]

    def join(rank: int) -> None:
        options = Options(rank, 2, str(folder).encode(), b"127.0.0.1")
        error = ctypes.create_string_buffer(ROOM)
        ranks = INT(), INT()
        references = [ctypes.byref(r) for r in ranks]
        groups[rank] = plugin.open(ctypes.byref(options), *references, error, ROOM) or 0

    threads = [threading.Thread(target=join, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert all(groups)
    return groups


CALLS: dict[str, Callable[..., int]] = {
    "gather": lambda p, g, data, error: p.gather(g, data, data, BYTES, error, ROOM),
    "copy": lambda p, g, data, error: p.copy(g, data, BYTES, 1, error, ROOM),
    "exchange": lambda p, g, data, error: p.exchange(
        g, data, BYTES, 1, data, BYTES, 1, error, ROOM
    ),
}


@pytest.mark.parametrize("early", [False, True], ids=["while it waits", "before it begins"])
@pytest.mark.parametrize("call", list(CALLS))
def test_an_interruption_ends_a_wait(tmp_path: Path, call: str, early: bool) -> None:
    plugin = table()
    groups = connect(plugin, tmp_path)
    data = ctypes.create_string_buffer(2 * BYTES)
    error = ctypes.create_string_buffer(ROOM)
    results: list[int] = []

    def wait() -> None:
        results.append(CALLS[call](plugin, groups[0], data, error))

    if early:
        plugin.interrupt(groups[0])
    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    if not early:
        thread.join(0.2)
        assert results == []
        plugin.interrupt(groups[0])
    thread.join(20)
    assert results == [1] and error.value != b""
    for group in groups:
        plugin.close(group)


def test_groups_that_are_not_interrupted_work(tmp_path: Path) -> None:
    plugin = table()
    groups = connect(plugin, tmp_path)
    every = [ctypes.create_string_buffer(16) for _ in groups]
    codes = [1, 1]

    def gather(rank: int) -> None:
        own = ctypes.create_string_buffer(str(rank).encode() * 8, 8)
        error = ctypes.create_string_buffer(ROOM)
        codes[rank] = plugin.gather(groups[rank], own, every[rank], 8, error, ROOM)

    threads = [threading.Thread(target=gather, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert codes == [0, 0] and [e.raw for e in every] == [b"0" * 8 + b"1" * 8] * 2
    for group in groups:
        plugin.close(group)
