"""The largest GPT-2 that trains within a limit of the system: Steep beside PyTorch's best.

    python bench/largest.py                          4 GiB, every contestant (an hour; root)
    python bench/largest.py --limit 2GiB best int8   two of them

One row of 1,024 tokens, no dropout (with which PyTorch's attention takes more), AdamW, 50,257
tokens, tied embeddings, heads of 64. The ladder has the shapes of GPT-2 (small, medium, large, XL);
between two of them, the depth grows in proportion to the width, and between two widths, layer by
layer. A rung fits if a process within a memory cgroup, without swap, makes the model and trains
three steps. A contestant starts at the rung that the last peak suggests, and ends between one that
fits and the next one, which does not. Libraries count. Two threads.

PyTorch is plain `torch`, without `transformers`: `default` as it comes; `best` with blocks that are
checkpointed, a loss by chunks of rows that adds up its gradients in place, each weight updated in
backward as soon as its gradient is there, AdamW states of 8 bits in blocks of 256 (written below:
the same bytes as those of bitsandbytes, which need not be installed), and malloc that gives memory
back. `best-bf16` has bfloat16 weights as well, rounded at random. Steep's are sessions of an ONNX
file with external data, with `memory_limit="least"` and 8-bit states: `int8` with float32 weights,
`int8-bf16` with bfloat16 weights, rounded at random; `disk` is `int8` with its states in a file.
`trainer` is `steep.trainer` of the PyTorch model.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from largest_models import DOES_NOT_FIT, HEAD, TOKENS, VOCABULARY, train, write_onnx

GIVE_BACK = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
CONTESTANTS: dict[str, tuple[str, dict[str, str]]] = {
    "default": ("PyTorch, default", {}),
    "best": ("PyTorch, best combination", GIVE_BACK),
    "best-bf16": ("PyTorch, best combination, weights in bfloat16", GIVE_BACK),
    "trainer": ("Steep, trainer, int8 states", {}),
    "int8": ("Steep, session, int8 states", {}),
    "int8-bf16": ("Steep, session, int8 states, weights in bfloat16", {}),
    "disk": ("Steep, session, int8 states in a file", {}),
}
OF_FILE = ("int8", "int8-bf16", "disk")
NAMED = ((12, 12), (16, 24), (20, 36), (25, 48))  # heads and layers of small, medium, large, XL
CGROUPS = Path("/sys/fs/cgroup")


@dataclasses.dataclass(frozen=True)
class Shape:
    heads: int
    layers: int

    @property
    def weights(self) -> int:
        d = HEAD * self.heads
        return self.layers * (12 * d * d + 13 * d) + (VOCABULARY + TOKENS + 2) * d

    def __str__(self) -> str:
        return f"{self.layers} × {HEAD * self.heads}"


def ladder() -> list[Shape]:
    """Return the shapes from small to twice the depth of XL, each with more weights."""
    depth = {NAMED[0][0]: NAMED[0][1]}
    for (h0, l0), (h1, l1) in itertools.pairwise(NAMED):
        depth |= {h: round(l0 + (l1 - l0) * (h - h0) / (h1 - h0)) for h in range(h0 + 1, h1 + 1)}
    rungs = []
    for heads, first in depth.items():
        wider = depth.get(heads + 1)
        top = Shape(heads + 1, wider).weights if wider else Shape(heads, 2 * first).weights
        layers = range(first, 2 * first)
        rungs += [s for n in layers if (s := Shape(heads, n)).weights < top]
    return rungs


@contextlib.contextmanager
def cgroup(limit: int) -> Iterator[Path]:
    """Make a memory cgroup without swap, of version 1 or 2."""
    name = f"steep-largest-{os.getpid()}"
    if (CGROUPS / "memory" / "memory.limit_in_bytes").exists():
        group = CGROUPS / "memory" / name
        values = [("memory.limit_in_bytes", limit), ("memory.swappiness", 0)]
        values.append(("memory.memsw.limit_in_bytes", limit))
    else:
        group = CGROUPS / name
        values = [("memory.max", limit), ("memory.swap.max", 0)]
    try:
        if group.parent == CGROUPS:
            (CGROUPS / "cgroup.subtree_control").write_text("+memory")
        group.mkdir()
        for file, value in values:
            if file.startswith("memory.memsw") and not (group / file).exists():
                continue  # the system does not count swap, or has none
            (group / file).write_text(str(value))
    except OSError as error:
        with contextlib.suppress(OSError):
            group.rmdir()
        raise SystemExit(f"no memory cgroup can be made, which needs root: {error}") from error
    try:
        yield group
    finally:
        group.rmdir()


def trial(name: str, shape: Shape, limit: int, folder: Path) -> float | None:
    """Train in a process within the limit; return its peak in MiB, or None if it does not fit."""
    command = [sys.executable, str(Path(__file__).resolve()), "--child", name]
    command += [str(shape.heads), str(shape.layers), str(folder)]
    enter = 'echo $$ > "$0"/cgroup.procs && exec "$@"'
    environment = {**os.environ, **CONTESTANTS[name][1], "STEEP_CACHE": "off"}
    environment["STEEP_MAX_BYTES"] = str(limit)  # by default three quarters of the memory
    with cgroup(limit) as group:
        ran = subprocess.run(
            ["sh", "-c", enter, str(group), *command],
            capture_output=True,
            text=True,
            env=environment,
            check=False,
        )
    if ran.returncode in (-9, DOES_NOT_FIT):
        return None
    if ran.returncode != 0:
        raise SystemExit(f"{name}, {shape}: status {ran.returncode}\n{ran.stderr}")
    return float(json.loads(ran.stdout)["peak"])


def largest(
    rungs: list[Shape], limit: int, guess: int, fits: Callable[[Shape], float | None]
) -> int:
    """Return the index of the largest rung that fits, or -1; `fits` returns a peak, or None.

    guess: the first rung to try.
    """
    low, high = -1, len(rungs)
    while high - low > 1:
        peak = fits(rungs[guess])
        if peak is None:
            high = guess
        else:
            low = guess
        if peak is None or high - low <= 2:
            guess = (low + high) // 2
            continue
        room = rungs[low].weights * limit / (peak * 2**20)
        within = [i for i in range(low + 1, high) if rungs[i].weights <= room]
        guess = max(within, default=low + 1)
    return low


def bytes_of(text: str) -> int:
    """Read "4GiB" or "512MiB"."""
    units = {"MiB": 2**20, "GiB": 2**30}
    if text[-3:] not in units or not text[:-3].isdigit():
        raise argparse.ArgumentTypeError(f"a limit is like 4GiB or 512MiB, not {text}")
    return int(text[:-3]) * units[text[-3:]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("contestants", nargs="*", help=f"of {', '.join(CONTESTANTS)}")
    parser.add_argument("--limit", type=bytes_of, default="4GiB")
    parser.add_argument("--start", type=float, default=0, help="of so many million weights")
    parser.add_argument("--ladder", action="store_true", help="print the rungs, and train nothing")
    parser.add_argument("--folder", type=Path, help="for the models; not in memory")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        name, heads, layers, folder = args.child
        return train(name, int(heads), int(layers), Path(folder))
    if unknown := set(args.contestants) - set(CONTESTANTS):
        parser.error(f"no such contestant: {', '.join(sorted(unknown))}")
    rungs = ladder()
    if args.ladder:
        for shape in rungs:
            print(f"{shape}: {shape.weights / 1e6:.0f} million")
        return None
    print("| contestant | largest | million weights | of PyTorch's best | peak MiB |")
    print("|---|---|---|---|---|")
    best: int | None = None
    start = max((i for i, s in enumerate(rungs) if s.weights <= args.start * 1e6), default=0)
    for name in args.contestants or CONTESTANTS:
        peaks: dict[Shape, float | None] = {}

        def fits(shape: Shape, name: str = name, peaks: dict = peaks) -> float | None:
            with tempfile.TemporaryDirectory(dir=args.folder) as folder:
                if name in OF_FILE:
                    write_onnx(shape.heads, shape.layers, Path(folder), name.endswith("bf16"))
                peaks[shape] = trial(name, shape, args.limit, Path(folder))
            peak = peaks[shape]
            text = "does not fit" if peak is None else f"peak {peak:.0f} MiB"
            million = f"{shape.weights / 1e6:.0f} million"
            print(f"{name}, {shape}, {million}: {text}", file=sys.stderr, flush=True)
            return peak

        at = largest(rungs, args.limit, start, fits)
        if at < 0:
            print(f"| {CONTESTANTS[name][0]} | none | | | |", flush=True)
            continue
        shape = rungs[at]
        best = shape.weights if name == "best" else best
        ratio = f"{shape.weights / best:.2f}" if best else ""
        cells = [CONTESTANTS[name][0], str(shape), f"{shape.weights / 1e6:.0f}", ratio]
        print(f"| {' | '.join(cells)} | {peaks[shape]:.0f} |", flush=True)
    return None


if __name__ == "__main__":
    main()
