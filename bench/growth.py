"""How step time and memory grow: a small GPT-2 against sequence length, batch, depth, vocabulary.

Steep (ORTModule, trainer) beside PyTorch (default; strong: malloc kept from giving memory back).
Every point of every contestant is a process of its own; the contestants of a point take turns.
Writes growth.json after each point, and growth.png: above the median times, below the peak memory.

    python bench/growth.py                        all sweeps, a quarter of an hour
    python bench/growth.py length --points 128 512   two points of one

The sweep "nodes" is of compile time: a chain v = v + tanh(v) of so many nodes, whose first step
(planned, built, run once) is timed from the ONNX file, in processor seconds. It has a file of its
own, growth-nodes.json and .png.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from run import KEEP_MEMORY, Contestant, say
from works import Task, with_labels

HERE = Path(__file__).resolve().parent
WIDTH, HEADS = 256, 4
CONTESTANTS: dict[str, tuple[str, dict[str, str]]] = {
    "ort-module": ("ort-module", {}),
    "trainer": ("trainer", {}),
    "default": ("torch", {}),
    "strong": ("torch", KEEP_MEMORY),
}
LOOKS = {
    "default": ("PyTorch, default", "#b8bcc4", "o-"),
    "strong": ("PyTorch, strong eager", "#7d8594", "o-"),
    "ort-module": ("Steep, ORTModule", "#1f77b4", "s-"),
    "trainer": ("Steep, trainer", "#0b3d66", "s-"),
}


@dataclasses.dataclass(frozen=True)
class Shape:
    length: int = 128
    batch: int = 4
    layers: int = 4
    vocabulary: int = 4000

    def task(self) -> Task:
        from transformers import GPT2Config, GPT2LMHeadModel

        config = GPT2Config(
            n_layer=self.layers,
            n_embd=WIDTH,
            n_head=HEADS,
            vocab_size=self.vocabulary,
            n_positions=max(1024, self.length),
        )
        model = GPT2LMHeadModel(config)
        return with_labels(model, (self.batch, self.length))


# what varies → the rest, the points
SWEEPS: dict[str, tuple[Shape, list[int]]] = {
    "length": (Shape(batch=1), [128, 256, 512, 1024, 2048]),
    "batch": (Shape(), [1, 2, 4, 8, 16, 32, 64]),
    "layers": (Shape(), [2, 4, 8, 12, 24]),
    "vocabulary": (Shape(), [1000, 4000, 16000, 64000, 128000]),
}
TITLES = {
    "length": "sequence length (batch 1)",
    "batch": "batch",
    "layers": "layers",
    "vocabulary": "vocabulary",
}

NODES = [2000, 5000, 10000, 20000, 50000, 100000]
STAGES = {
    "inference": "InferenceSession and first run",
    "training": "TrainingSession and first step",
    "gradient": "steep.grad",
}


def chain(nodes: int) -> bytes:
    """y = v after v = v + tanh(v) again and again, of a parameter times x."""
    from onnx import TensorProto, helper, numpy_helper

    nodes_of_graph = [helper.make_node("Mul", ["x", "w"], ["v0"])]
    for i in range(nodes // 2):
        nodes_of_graph.append(helper.make_node("Tanh", [f"v{i}"], [f"t{i}"]))
        nodes_of_graph.append(helper.make_node("Add", [f"v{i}", f"t{i}"], [f"v{i + 1}"]))
    graph = helper.make_graph(
        nodes_of_graph,
        "chain",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info(f"v{nodes // 2}", TensorProto.FLOAT, ["n", 4])],
        [numpy_helper.from_array(np.full(4, 0.5, np.float32), "w")],
    )
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return bytes(model.SerializeToString())


def compile_seconds(nodes: int) -> dict[str, float]:
    """Processor seconds of each stage, in this process."""
    import steep

    model, x = chain(nodes), np.zeros((2, 4), np.float32)
    seconds: dict[str, float] = {}
    start = time.process_time()
    for stage in STAGES:
        if stage == "inference":
            steep.InferenceSession(model).run(None, {"x": x})
        elif stage == "training":
            steep.TrainingSession(model, loss="mse", optimizer="adamw", lr=1e-3).step(x, x)
        else:
            steep.grad(model, wrt=["w"])
        seconds[stage] = time.process_time() - start
        start = time.process_time()
    return seconds


def sweep_nodes(points: list[int], out: Path) -> None:
    """Every point in a process of its own."""
    print("| nodes | " + " | ".join(STAGES.values()) + " |\n|---" + "|---" * len(STAGES) + "|")
    seconds: dict[int, dict[str, float]] = {}
    for nodes in points:
        command = [sys.executable, __file__, "--compile", str(nodes)]
        process = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
        seconds[nodes] = json.loads(process.stdout)
        print(
            f"| {nodes:,} | " + " | ".join(f"{s:.2f} s" for s in seconds[nodes].values()) + " |",
            flush=True,
        )
        (out / "growth-nodes.json").write_text(json.dumps(seconds, indent=2) + "\n")
    plot_nodes(seconds, out / "growth-nodes.png")


def plot_nodes(seconds: dict[int, dict[str, float]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(4.6, 3.6))
    for (stage, label), style in zip(STAGES.items(), ("o-", "s-", "^-"), strict=True):
        axes.plot(list(seconds), [p[stage] for p in seconds.values()], style, label=label, ms=4)
    axes.set(xscale="log", yscale="log", xlabel="nodes of the model", ylabel="processor seconds")
    axes.set_xticks(list(seconds), [f"{n:,}" for n in seconds], fontsize=8, rotation=30)
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)


def measure(shape: Shape, args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    point: dict[str, dict[str, Any]] = {}
    running: dict[str, Contestant] = {}
    text = ",".join(str(v) for v in dataclasses.astuple(shape))
    try:
        for name, (runner, environment) in CONTESTANTS.items():
            say(f"{shape}, {name}: first step …")
            command = [sys.executable, str(HERE / "worker.py"), f"growth:{text}", runner]
            command += ["--precision", args.precision, "--threads", str(args.threads)]
            threads = {"OMP_NUM_THREADS": str(args.threads)}
            try:
                running[name] = Contestant(name, command, {**threads, **environment})
            except RuntimeError as error:
                point[name] = {"failed": str(error)}
        for turn in range(args.turns):
            say(f"{shape}: turn {turn + 1} of {args.turns}")
            for contestant in running.values():
                contestant.turn(args.steps)
        for name, c in running.items():
            point[name] = {
                "step_ms": c.median_ms(),
                "first_step_s": c.first_step_s,
                "peak_mib": c.ask("memory"),
            }
    finally:
        say("")
        for contestant in running.values():
            contestant.close()
    return point


def line(sweep: str, value: int, point: dict[str, dict[str, Any]]) -> str:
    cells = [
        f"{point[n]['step_ms']:.1f} ms, {point[n]['peak_mib']:.0f} MiB"
        if "step_ms" in point[n]
        else point[n]["failed"]
        for n in CONTESTANTS
    ]
    return f"| {sweep} {value} | " + " | ".join(cells) + " |"


def plot(sweeps: dict[str, dict[int, dict[str, dict[str, Any]]]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(2, len(sweeps), figsize=(3.6 * len(sweeps), 6.4), squeeze=False)
    for column, (sweep, points) in enumerate(sweeps.items()):
        for axes, what, unit in (
            (panels[0][column], "step_ms", "ms a step"),
            (panels[1][column], "peak_mib", "peak MiB"),
        ):
            for name, (label, colour, style) in LOOKS.items():
                values = [(v, p[name][what]) for v, p in points.items() if what in p[name]]
                if values:
                    axes.plot(*zip(*values, strict=True), style, color=colour, label=label, ms=4)
            axes.set(xscale="log", yscale="log", xlabel=TITLES[sweep])
            axes.set_xticks(list(points), [f"{v:,}" for v in points], fontsize=8, rotation=30)
            axes.minorticks_off()
            axes.grid(alpha=0.3)
            if column == 0:
                axes.set_ylabel(unit)
    panels[0][0].legend(frameon=False, fontsize=8)
    figure.suptitle(f"One training step of a GPT-2 of width {WIDTH} on CPU", fontsize=11)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "sweeps", nargs="*", default=[*SWEEPS, "nodes"], help=", ".join([*SWEEPS, "nodes"])
    )
    parser.add_argument("--points", nargs="+", type=int, help="of every sweep named")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3, help="steps of each contestant in a turn")
    parser.add_argument("--precision", default="fp32", choices=["fp32", "bf16"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=HERE.parent / "runs/bench")
    parser.add_argument("--compile", type=int, help=argparse.SUPPRESS)  # one point of "nodes"
    args = parser.parse_args()
    if args.compile:
        return print(json.dumps(compile_seconds(args.compile)))
    args.out.mkdir(parents=True, exist_ok=True)
    if "nodes" in args.sweeps:
        sweep_nodes(args.points or NODES, args.out)
    sweeps = [s for s in args.sweeps if s != "nodes"]
    if not sweeps:
        return
    results: dict[Shape, dict[str, dict[str, Any]]] = {}  # sweeps cross
    results_of: dict[str, dict[int, dict[str, dict[str, Any]]]] = {}
    print("| point | " + " | ".join(LOOKS[n][0] for n in CONTESTANTS) + " |")
    print("|---" * (1 + len(CONTESTANTS)) + "|")
    suffix = "" if args.precision == "fp32" else f"-{args.precision}"
    for sweep in sweeps:
        base, points = SWEEPS[sweep]
        for value in args.points or points:
            shape = dataclasses.replace(base, **{sweep: value})
            if shape not in results:
                results[shape] = measure(shape, args)
            results_of.setdefault(sweep, {})[value] = results[shape]
            print(line(sweep, value, results[shape]), flush=True)
            (args.out / f"growth{suffix}.json").write_text(json.dumps(results_of, indent=2) + "\n")
            plot(results_of, args.out / f"growth{suffix}.png")
    print(f"\nwritten to {args.out / 'growth'}{suffix}.json and .png")


if __name__ == "__main__":
    main()
