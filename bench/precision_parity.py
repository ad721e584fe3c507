"""bfloat16 trains as float32 does: loss against step for the benchmark's models, on WikiText-2.

Same model, text, batches, dropout masks, AdamW and learning rates in both precisions, over several
seeds. Compared are the mean training loss of the last steps and the loss on held-out text. Writes
precision_parity.json and .png; ends with exit code 1 when a loss differs by more than 0.5 %.

    python bench/precision_parity.py --data FOLDER         three works, three seeds, 300 steps
    python bench/precision_parity.py --data FOLDER --works lm --seeds 1 --steps 20
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from works import BATCH, BPTT, WORKS, Task

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "transformer_lm"))

import data

import steep

TOLERANCE = 0.005
# At 1e-3 the losses of the two larger models spike, and those of one seed end up to 2 % apart,
# either way.
PEAK_RATES = {"lm": 1e-3, "bert": 3e-4, "gpt2": 3e-4}
WARMUP = 30
LAST = 20  # steps whose mean loss counts
HELD_OUT = 8  # batches
ROWS, LENGTH = 8, 128
IGNORED = -100
PRECISIONS = ("fp32", "bf16")


def language_model_batches(stream: Tensor) -> Iterator[tuple[Tensor, ...]]:
    from model import causal_mask

    columns = data.columns(stream, BATCH)
    for source, target in data.batches(columns, BPTT):
        if len(source) == BPTT:
            yield source, causal_mask(BPTT), target


def blocks(stream: Tensor) -> Iterator[Tensor]:
    size = ROWS * LENGTH
    for start in range(0, len(stream) - size, size):
        yield stream[start : start + size].view(ROWS, LENGTH)


def gpt2_batches(stream: Tensor) -> Iterator[tuple[Tensor, ...]]:
    for ids in blocks(stream):
        yield ids, ids


def bert_batches(stream: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Every seventh word or so is hidden behind the vocabulary's last one, and asked for."""
    random = torch.Generator().manual_seed(0)
    mask = int(WORKS["bert"].build().model.model.config.vocab_size) - 1
    for ids in blocks(stream):
        gaps = torch.rand(ids.shape, generator=random) < 0.15
        yield ids.masked_fill(gaps, mask), ids.masked_fill(~gaps, IGNORED)


MAKERS = {"lm": language_model_batches, "bert": bert_batches, "gpt2": gpt2_batches}


def make_trainer(task: Task, precision: str, seed: int) -> tuple[Any, torch.optim.Optimizer]:
    optimizer = torch.optim.AdamW(task.model.parameters(), weight_decay=0.01)
    trainer = steep.trainer(
        task.model,
        task.criterion,
        optimizer,
        clip_norm=1.0,
        predictions=False,
        precision=precision,
        seed=seed,
    )
    return trainer, optimizer


def run(work: str, precision: str, seed: int, steps: int, corpus: data.Corpus) -> dict[str, Any]:
    torch.manual_seed(seed)
    trainer, optimizer = make_trainer(WORKS[work].build(), precision, seed)
    batches = list(MAKERS[work](corpus.train))
    held_out = [b for b, _ in zip(MAKERS[work](corpus.valid), range(HELD_OUT), strict=False)]
    order = torch.randperm(len(batches), generator=torch.Generator().manual_seed(seed)).tolist()
    start = time.monotonic()
    losses = []
    for number in range(steps):
        optimizer.param_groups[0]["lr"] = PEAK_RATES[work] * min(1, (number + 1) / WARMUP)
        losses.append(float(trainer.step(*batches[order[number % len(order)]])))
    tested = statistics.mean(float(trainer.evaluate(*batch)[0]) for batch in held_out)
    return {
        "work": work,
        "precision": precision,
        "seed": seed,
        "seconds": time.monotonic() - start,
        "losses": losses,
        "last": statistics.mean(losses[-LAST:]),
        "held_out": tested,
    }


def differences(runs: list[dict[str, Any]], work: str) -> dict[str, float]:
    """By which share bf16's mean over the seeds is above fp32's."""
    result = {}
    for what in ("last", "held_out"):
        mean = {
            p: statistics.mean(r[what] for r in runs if r["work"] == work and r["precision"] == p)
            for p in PRECISIONS
        }
        result[what] = mean["bf16"] / mean["fp32"] - 1
    return result


def plot(runs: list[dict[str, Any]], works: list[str], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(2, len(works), figsize=(4.5 * len(works), 5.5), squeeze=False)
    for column, work in enumerate(works):
        mean = {
            p: torch.tensor(
                [r["losses"] for r in runs if r["work"] == work and r["precision"] == p]
            ).mean(0)
            for p in PRECISIONS
        }
        top, bottom = axes[0][column], axes[1][column]
        top.plot(mean["fp32"], label="fp32", linewidth=2.5, color="tab:gray")
        top.plot(mean["bf16"], label="bf16", linewidth=1, color="tab:red")
        top.set_title(WORKS[work].title, fontsize=9)
        bottom.plot(100 * (mean["bf16"] / mean["fp32"] - 1), linewidth=1, color="tab:red")
        for bound in (-100 * TOLERANCE, 100 * TOLERANCE):
            bottom.axhline(bound, color="tab:gray", linestyle=":")
        bottom.set_xlabel("step")
    axes[0][0].set_ylabel("training loss, mean over seeds")
    axes[1][0].set_ylabel("bf16 against fp32, %")
    axes[0][0].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="folder of WikiText-2; default: Python's topics")
    parser.add_argument("--works", nargs="+", default=list(MAKERS), choices=list(MAKERS))
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/bench"))
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    args.out.mkdir(parents=True, exist_ok=True)
    corpus = data.load(args.data)
    runs: list[dict[str, Any]] = []
    good = True
    for work in args.works:
        for seed in range(args.seeds):
            for precision in PRECISIONS:
                record = run(work, precision, seed, args.steps, corpus)
                runs.append(record)
                print(
                    f"{work:5} seed {seed} {precision}: last {LAST} steps {record['last']:.4f}, "
                    f"held out {record['held_out']:.4f}, {record['seconds']:.0f} s",
                    flush=True,
                )
        changes = differences(runs, work)
        good = good and all(abs(d) <= TOLERANCE for d in changes.values())
        print(
            f"{work:5} bf16 against fp32: last {LAST} steps {100 * changes['last']:+.3f} %, "
            f"held out {100 * changes['held_out']:+.3f} %",
            flush=True,
        )
    summary = {work: differences(runs, work) for work in args.works}
    text = json.dumps({"data": corpus.name, "differences": summary, "runs": runs}, indent=1)
    (args.out / "precision_parity.json").write_text(text + "\n")
    plot(runs, args.works, args.out / "precision_parity.png")
    print(f"wrote {args.out / 'precision_parity.json'} and .png")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
