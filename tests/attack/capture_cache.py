"""The cache of captured graphs under damage: a run's numbers and its success depend on none of it.

    python tests/attack/capture_cache.py [--flips 400] [--seed 0]

Bytes of an entry are flipped, entries are cut off, swapped, given right checksums over changed
graphs; the folder vanishes, fills up, belongs to somebody else; two processes write at once. Each
time a module is captured anew, and must give what it gives without a cache. Prints lines ATTACK.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn
from tqdm import tqdm

import steep
from steep.lowering import cache

MAGIC = cache._MAGIC


class Net(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, width), nn.Linear(width, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(x))).softmax(-1)


def captured(width: int = 6) -> list[np.ndarray]:
    """Result and gradients of a module that is captured anew."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    net = steep.ORTModule(Net(width), fallback=None)
    y = net(torch.linspace(-1, 1, 12).view(3, 4))
    (y * torch.tensor([1.0, -2.0])).sum().backward()
    return [y.detach().numpy().copy(), *(p.grad.numpy().copy() for p in net.parameters())]


def entries() -> list[Path]:
    found = cache.folder()
    return sorted(found.glob("*.entry")) if found and found.is_dir() else []


class Attack:
    """Counts what was tried and what was found, by name."""

    def __init__(self, name: str) -> None:
        self.name, self.cases, self.findings, self.begin = name, 0, 0, time.monotonic()
        self.expected = without_cache(captured)

    def expect(self, what: str) -> None:
        """Capture once more; anything but the right numbers is a finding."""
        self.cases += 1
        try:
            found = captured()
        except Exception as error:
            return self.found(f"{what}: {type(error).__name__}: {error}")
        if not all(np.array_equal(a, b) for a, b in zip(found, self.expected, strict=True)):
            self.found(f"{what}: other numbers")

    def found(self, what: str) -> None:
        self.findings += 1
        print(" ".join(what.split())[:300], flush=True)

    def end(self) -> int:
        seconds = time.monotonic() - self.begin
        print(f"ATTACK cache/{self.name} {self.cases} {self.findings} {seconds:.1f}", flush=True)
        return self.findings


def without_cache(function: Callable[[], list[np.ndarray]]) -> list[np.ndarray]:
    kept = os.environ["STEEP_CACHE"]
    os.environ["STEEP_CACHE"] = "off"
    try:
        return function()
    finally:
        os.environ["STEEP_CACHE"] = kept


def fresh() -> dict[Path, bytes]:
    """An empty folder filled by one capture; what is in it."""
    base = cache.folder()
    assert base is not None
    shutil.rmtree(base, ignore_errors=True)
    captured()
    return {path: path.read_bytes() for path in entries()}


def flips(count: int, rng: random.Random) -> int:
    attack = Attack("flips")
    good = fresh()
    assert good, "nothing was cached"
    for _ in tqdm(range(count), unit="flip"):
        path, content = rng.choice(sorted(good.items()))
        i = rng.randrange(len(content))
        path.write_bytes(
            content[:i] + bytes([content[i] ^ (1 << rng.randrange(8))]) + content[i + 1 :]
        )
        attack.expect(f"byte {i} of {path.name}")
        path.write_bytes(content)
    return attack.end()


def checksums(count: int, rng: random.Random) -> int:
    """Changed graphs under right checksums: they may compute anything, but end no run."""
    attack = Attack("checksums")
    good = fresh()
    for _ in tqdm(range(count), unit="graph"):
        path, content = rng.choice(sorted(good.items()))
        payload = bytearray(content[len(MAGIC) + 32 :])
        for _ in range(rng.choice([1, 1, 4, 64])):
            payload[rng.randrange(len(payload))] = rng.randrange(256)
        path.write_bytes(MAGIC + hashlib.sha256(payload).digest() + payload)
        attack.cases += 1
        try:
            captured()
        except Exception as error:
            attack.found(f"{type(error).__name__}: {error}")
        path.write_bytes(content)
    return attack.end()


def folders() -> int:
    attack = Attack("folders")
    base = cache.folder()
    assert base is not None
    for path, content in fresh().items():
        for length in (0, 1, len(MAGIC), len(MAGIC) + 16, len(MAGIC) + 32, len(content) - 1):
            path.write_bytes(content[:length])
            attack.expect(f"cut off at {length}")
        path.unlink()
        path.mkdir()
        attack.expect("a folder in place of an entry")
        path.rmdir()
        os.mkfifo(path)
        attack.expect("a FIFO in place of an entry")
        path.unlink()
        path.symlink_to("/dev/zero")
        attack.expect("a link to a device")
        path.unlink()
    shutil.rmtree(base)
    attack.expect("no folder")
    shutil.rmtree(base)
    base.write_bytes(b"")
    attack.expect("a file in place of the folder")
    base.unlink()
    for folder in ("/dev/null/x", "~nobody-of-this-name/x", "/proc/steep", "\0", "x" * 5000, ""):
        try:
            os.environ["STEEP_CACHE"] = folder
        except ValueError:
            continue
        attack.expect(f"STEEP_CACHE={folder[:30]}")
    os.environ["STEEP_CACHE"] = str(base)
    for limit in ("inf", "nan", "-1", "0", "1e400", "many", ""):
        os.environ["STEEP_CACHE_MIB"] = limit
        attack.expect(f"STEEP_CACHE_MIB={limit}")
    del os.environ["STEEP_CACHE_MIB"]
    if os.geteuid() == 0:
        fresh()
        os.chown(base, 12345, 12345)
        attack.expect("another owner")
        os.chown(base, 0, 0)
        shutil.rmtree(base)
        base.mkdir()
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=4k,mode=700", "none", str(base)], check=False
        )
        if mounted.returncode == 0:
            try:
                base.joinpath("filling").write_bytes(bytes(4096))
                attack.expect("a full disk")
                if left := [p.name for p in base.iterdir() if p.name != "filling"]:
                    attack.found(f"a full disk: {left} was left")
            finally:
                subprocess.run(["umount", str(base)], check=True)
    return attack.end()


def _write_often(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        base = cache.folder()
        captured()
        if base and random.random() < 0.3:
            shutil.rmtree(base, ignore_errors=True)


def writers(seconds: float) -> int:
    attack = Attack("writers")
    other = multiprocessing.get_context("spawn").Process(target=_write_often, args=(seconds,))
    other.start()
    while other.is_alive():
        attack.expect("two writers")
    return attack.end()


def main() -> int:
    """Run the attacks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--flips", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["STEEP_CACHE"] = str(Path(folder, "cache"))
        found = flips(options.flips, rng) + checksums(options.flips, rng)
        found += folders() + writers(options.flips / 10)
    return found > 0


if __name__ == "__main__":
    sys.exit(main())
