"""`steep train` opens each file of data once, however many epochs it reads it for."""

import ctypes
import os
import struct
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from steep_program import linear, steep

IN_ACCESS, IN_CLOSE_NOWRITE, IN_OPEN = 0x01, 0x10, 0x20
EVENT = struct.Struct("iIII")  # watch, mask, cookie, length of the name behind it


class Opened:
    """Counts how often files are opened within a ``with`` block, by Linux's inotify.

    Events that are equal and follow each other may be one. So reads are watched, too: they come
    between two openings, unless these are at the same time.
    """

    def __init__(self, *paths: Path) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd = libc.inotify_init1(os.O_CLOEXEC)
        assert self._fd >= 0, os.strerror(ctypes.get_errno())
        self._names = {}
        for path in paths:
            mask = IN_ACCESS | IN_CLOSE_NOWRITE | IN_OPEN
            watch = libc.inotify_add_watch(self._fd, os.fsencode(path), mask)
            assert watch > 0, os.strerror(ctypes.get_errno())
            self._names[watch] = path.name
        self.counts: Counter[str] = Counter()

    def __enter__(self) -> "Opened":
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()
        return self

    def _read(self) -> None:
        os.set_blocking(self._fd, False)
        while True:
            last = self._stop.is_set()
            try:
                events = os.read(self._fd, 1 << 16)
            except BlockingIOError:
                if last:
                    return
                self._stop.wait(0.001)
                continue
            at = 0
            while at < len(events):
                watch, mask, _, length = EVENT.unpack_from(events, at)
                at += EVENT.size + length
                if mask & IN_OPEN:
                    self.counts[self._names[watch]] += 1

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        os.close(self._fd)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    onnx.save(linear.linear_model(10), tmp_path / "linear.onnx")
    data = linear.linear_data(64, 10)
    np.savez(tmp_path / "linear.npz", **data)
    np.savez_compressed(tmp_path / "compressed.npz", **data)
    for name, values in data.items():
        np.save(tmp_path / f"{name}.npy", values)
    return tmp_path


def test_openings_are_counted(folder: Path) -> None:
    one, two = folder / "x.npy", folder / "label.npy"
    with Opened(one, two) as opened:
        one.read_bytes()
        one.read_bytes()
        two.read_bytes()
    assert opened.counts == {"x.npy": 2, "label.npy": 1}


@pytest.mark.parametrize("data", ["linear.npz", "compressed.npz", "x.npy label.npy"])
def test_training_opens_its_data_once(folder: Path, data: str) -> None:
    model, names = folder / "linear.onnx", data.split()
    given = [folder / name for name in names]
    options = ("--loss", "mse", "--optimizer", "sgd", "--lr", 0.1, "--out", folder / "out.onnx")
    with Opened(*given) as opened:
        text = steep("train", model, "--data", *given, *options, "--epochs", 3, "--batch", 8)
    assert "epoch 3/3" in text
    assert opened.counts == dict.fromkeys(names, 1)
