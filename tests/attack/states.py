"""Checkpoints of every door, damaged: a load gives what was saved, or a typed error and no change.

    python tests/attack/states.py [--cases 300] [--seed 0]

Of ``TrainingSession``, ``steep.trainer``, and the old package's ``CheckpointState``: bytes flipped,
files cut off, removed, swapped with those of another step or of another model. Prints lines ATTACK.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

os.environ["STEEP_CACHE"] = "off"

import numpy as np
import onnx
import onnx.parser
import torch
from torch import nn
from tqdm import tqdm

import steep
from steep.compat.on_device.training_module import Module
from steep.compat.on_device.training_optimizer import Optimizer
from steep.compat.on_device.training_state import CheckpointState
from steep.compat.onnxblock import artifacts

State = dict[str, np.ndarray]


class Door(NamedTuple):
    """How one kind of checkpoint is written, and loaded into what exists already."""

    save: Callable[[Path, int, int], State]  # (path, step, width) → what was saved
    load: Callable[[Path], State]  # → what is there afterwards
    now: Callable[[], State]  # what is there


def line(width: int) -> onnx.ModelProto:
    weights = ", ".join(f"{i}.5" for i in range(width))
    return onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["": 21]>
        line (float[n, {width}] x) => (float[n, 1] y) <float[{width}, 1] w = {{{weights}}}> {{
            y = MatMul (x, w)
        }}""")


def session_door() -> Door:
    def make(width: int) -> steep.TrainingSession:
        return steep.TrainingSession(line(width), loss="mse", optimizer="adam")

    def step(session: steep.TrainingSession, width: int) -> None:
        session.step(np.ones((2, width), np.float32), np.zeros((2, 1), np.float32))

    def state(session: steep.TrainingSession) -> State:
        return {k: np.array(v) for k, v in session.weights().items()}

    target = make(3)
    step(target, 3)

    def save(path: Path, steps: int, width: int) -> State:
        session = make(width)
        for _ in range(steps):
            step(session, width)
        session.save_checkpoint(path)
        return state(session)

    def load(path: Path) -> State:
        target.load_checkpoint(path)
        return state(target)

    return Door(save, load, lambda: state(target))


def trainer_door() -> Door:
    def make(width: int) -> tuple[nn.Module, Any]:
        torch.manual_seed(0)
        net = nn.Linear(width, 1)
        return net, steep.trainer(net, nn.MSELoss(), torch.optim.Adam(net.parameters()))

    def state(net: nn.Module) -> State:
        return {k: v.detach().numpy().copy() for k, v in net.named_parameters()}

    net, target = make(3)
    target.step(torch.ones(2, 3), torch.zeros(2, 1))

    def save(path: Path, steps: int, width: int) -> State:
        other, trainer = make(width)
        for _ in range(steps):
            trainer.step(torch.ones(2, width), torch.zeros(2, 1))
        trainer.save_checkpoint(path)
        return state(other)

    def load(path: Path) -> State:
        target.load_checkpoint(path)
        return state(net)

    return Door(save, load, lambda: state(net))


def old_door(folder: Path) -> Door:
    def make(width: int) -> Path:
        made = folder / f"artifacts{width}"
        if not made.exists():
            made.mkdir()
            artifacts.generate_artifacts(
                line(width),
                requires_grad=["w"],
                loss=artifacts.LossType.MSELoss,
                optimizer=artifacts.OptimType.AdamW,
                artifact_directory=str(made),
            )
        return made

    def save(path: Path, steps: int, width: int) -> State:
        made = make(width)
        state = CheckpointState.load_checkpoint(made / "checkpoint")
        module = Module(made / "training_model.onnx", state, made / "eval_model.onnx")
        optimizer = Optimizer(made / "optimizer_model.onnx", module)
        for _ in range(steps):
            module.train()
            module(np.ones((2, width), np.float32), np.zeros((2, 1), np.float32))
            optimizer.step()
            module.lazy_reset_grad()
        path.mkdir()
        CheckpointState.save_checkpoint(state, path / "state", include_optimizer_state=True)
        return {"w": np.array(state.parameters["w"].data)}

    def load(path: Path) -> State:
        state = CheckpointState.load_checkpoint(path / "state")
        return {"w": np.array(state.parameters["w"].data)}

    return Door(save, load, dict)


def damage(path: Path, others: list[Path], rng: random.Random) -> str:
    """Change one file of a checkpoint; say how."""
    file = rng.choice(sorted(p for p in path.rglob("*") if p.is_file()))
    content = file.read_bytes()
    kind = rng.choice(["flip", "flip", "flip", "cut", "removed", "other", "longer"])
    if kind == "flip":
        i = rng.randrange(len(content))
        flipped = content[i] ^ (1 << rng.randrange(8))
        file.write_bytes(content[:i] + bytes([flipped]) + content[i + 1 :])
        kind = f"flip of byte {i}"
    elif kind == "cut":
        file.write_bytes(content[: rng.randrange(len(content))])
    elif kind == "removed":
        file.unlink()
    elif kind == "longer":
        file.write_bytes(content + rng.randbytes(rng.randrange(1, 100)))
    else:
        other = rng.choice(others) / file.relative_to(path)
        if other.exists():
            shutil.copyfile(other, file)
    return f"{kind}, {file.name}"


def same(a: State, b: State) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[k], b[k]) for k in a)


def attack(name: str, door: Door, folder: Path, cases: int, rng: random.Random) -> int:
    """Damage a checkpoint so often; return the number of findings."""
    begin, findings = time.monotonic(), 0
    good, others = folder / f"{name}-good", [folder / f"{name}-later", folder / f"{name}-wider"]
    saved = [door.save(good, 2, 3), door.save(others[0], 5, 3), door.save(others[1], 2, 4)]
    assert same(door.load(good), saved[0])
    for case in (bar := tqdm(range(cases), desc=name)):
        copy = folder / f"{name}-{case}"
        shutil.copytree(good, copy)
        how, before = damage(copy, others, rng), door.now()
        said = ""
        try:
            # a file of another checkpoint, whole, may be what is loaded
            if not any(same(door.load(copy), s) for s in saved):
                said = "other numbers"
        except steep.InternalError as error:
            said = f"InternalError: {error}"
        except steep.Error:
            if not same(door.now(), before):
                said = "refused, but something changed"
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
        if said:
            findings += 1
            bar.write(f"{name}: {how}: {' '.join(said.split())[:200]}", file=sys.stdout)
        shutil.rmtree(copy)
    print(f"ATTACK states/{name} {cases} {findings} {time.monotonic() - begin:.1f}", flush=True)
    return findings


def main() -> int:
    """Attack every door."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng, found = random.Random(options.seed), 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for kind, door in (
            ("session", session_door()),
            ("trainer", trainer_door()),
            ("old", old_door(folder)),
        ):
            found += attack(kind, door, folder, options.cases, rng)
    return found > 0


if __name__ == "__main__":
    sys.exit(main())
