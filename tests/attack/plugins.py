"""A plug-in that fails at each of its calls, or lies in what it hands over, behind every door.

    python tests/attack/plugins.py BUILD [--only LIE …]

BUILD has the plug-ins of tests/providers/plugins, and the program. The lies are those that
``liar.cc`` knows; each is told at the first call, the second and the fifth. What follows is a typed
error or a result, and the CPU computes afterwards as before; no signal, no exception of another
kind. Prints findings and a line ATTACK.
"""

from __future__ import annotations

import argparse
import multiprocessing
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
from tqdm import tqdm

import steep

LIAR = Path(__file__).parents[1] / "providers" / "plugins" / "liar.cc"
AFTER = (0, 1, 4)
SECONDS = 120
X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
MODEL = """<ir_version: 10, opset_import: ["": 21]>
    m (float[3, 4] x) => (float[3, 4] y) <float[4] w = {1, 2, 3, 4}> {
        a = Mul (x, w)
        y = Softmax (a)
    }"""
Choice = tuple[str, dict[str, str]]


def model() -> bytes:
    made: bytes = onnx.parser.parse_model(MODEL).SerializeToString()
    return made


def run(choice: Choice) -> None:
    session = steep.InferenceSession(model(), providers=[choice])
    for _ in range(3):
        session.run(None, {"x": X})
    session.plan({"x": X})


def step(choice: Choice) -> None:
    for precision in ("fp32", "bf16"):
        session = steep.TrainingSession(
            model(), loss="mse", trainable=["w"], precision=precision, providers=[choice]
        )
        for _ in range(3):
            session.step(X, X)
        session.eval(X, X)
        session.dump(X, X)


def gradients(choice: Choice) -> None:
    session = steep.GradientSession(model(), ["x", "w"], providers=[choice])
    for _ in range(3):
        _, made = session.forward({"x": X})
        session.backward(made, {"y": X})


DOORS: dict[str, Callable[[Choice], None]] = {"run": run, "step": step, "gradients": gradients}


def lies() -> list[str]:
    """What liar.cc gets wrong, as its own text has it."""
    found = re.findall(r'(?:throw_at\(|at == )"([^"]+)"', LIAR.read_text())
    return list(dict.fromkeys(found))


def in_process(link: Connection, library: str, lie: str) -> None:
    """Send what was found of each door and call."""
    name = steep.register_provider(library)
    expected = steep.InferenceSession(model()).run(None, {"x": X})[0]
    for door, use in DOORS.items():
        for after in AFTER:
            said = ""
            try:
                use((name, {"at": lie, "after": str(after)}))
            except steep.InternalError as error:
                said = f"InternalError: {error}"
            except (steep.ProviderError, steep.OutOfMemoryError):
                pass
            except Exception as error:
                said = f"{type(error).__name__}: {error}"
            now = steep.InferenceSession(model()).run(None, {"x": X})[0]
            if not np.array_equal(now, expected):
                said += " and the CPU computes something else"
            link.send((f"{door}, call {after + 1}", said))
    link.send(None)


def by_program(build: Path, library: str, lie: str, folder: Path) -> str:
    """Train by the program; return what was wrong about how it ended."""
    (folder / "m.onnx").write_bytes(model())
    np.savez(folder / "d.npz", x=X, label=X)
    files = [folder / "m.onnx", "--data", folder / "d.npz", "--out", folder / "o.onnx"]
    how = ["--loss", "mse", "--train", "w", "--provider", f"{library},at={lie}"]
    done = subprocess.run(
        [build / "steep", "train", *files, *how],
        check=False,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=SECONDS,
    )
    typed = done.returncode == 4 and "steep: " in done.stderr
    return "" if done.returncode == 0 or typed else f"{done.returncode} {done.stderr[-200:]}"


def findings(build: Path, library: str, lie: str, folder: Path) -> tuple[int, list[str]]:
    """Tell one lie at all doors; return the number of cases and what was found."""
    link, end = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    worker = context.Process(target=in_process, args=(end, library, lie), daemon=True)
    worker.start()
    end.close()
    cases, found, last = 1, [], "no door"
    try:
        while link.poll(SECONDS) and (told := link.recv()) is not None:
            cases, last = cases + 1, told[0]
            found += [f"{told[0]}: {told[1]}"] if told[1] else []
        worker.join(SECONDS)
        if worker.is_alive():
            found.append(f"no end after {last}")
        elif worker.exitcode:
            found.append(f"the process ended with {worker.exitcode} after {last}")
    except EOFError:
        worker.join()
        found.append(f"the process ended with {worker.exitcode} after {last}")
    worker.kill()
    if said := by_program(build, library, lie, folder):
        found.append(f"program: {said}")
    return cases, found


def main() -> int:
    """Tell each lie, print what was found and a row for scripts/attack."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=Path)
    parser.add_argument("--only", nargs="+", metavar="LIE", help="these alone")
    options = parser.parse_args()
    begin, cases, total = time.monotonic(), 0, 0
    library = str(options.build.resolve() / "tests" / "providers" / "plugins" / "libliar.so")
    with tempfile.TemporaryDirectory() as folder:
        for lie in (bar := tqdm(options.only or ["nothing", *lies()], unit="lie")):
            tried, found = findings(options.build, library, lie, Path(folder))
            cases, total = cases + tried, total + len(found)
            for said in found:
                bar.write(f"{lie}: {' '.join(said.split())[:300]}", file=sys.stdout)
    print(f"ATTACK plugins {cases} {total} {time.monotonic() - begin:.1f}")
    return bool(total)


if __name__ == "__main__":
    sys.exit(main())
