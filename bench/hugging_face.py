"""Hugging Face's Trainer with and without the line, end to end: data loading, steps, evaluation.

    python bench/hugging_face.py
    python bench/hugging_face.py gpt2 --precision bf16 --turns 5

A turn trains a model for some steps with `transformers.Trainer` and evaluates it: 8 rows of 128
tokens a step, by a DataLoader from a list of rows, two batches of evaluation for each step of
training. Contestants are processes that take turns, as in bench/run.py: PyTorch as it comes ("torch
default"), PyTorch with malloc kept from giving memory back and fused AdamW, eager and compiled
("strong" is the better one), and `ORTModule` around the model with the same arguments as "strong".
A first, uncounted run of each compiles or captures; its seconds stand in the last column.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

from run import KEEP_MEMORY, STRONG, Contestant, say, times_faster
from works import bert_model, gpt2_model

ROWS, LENGTH = 8, 128
EVALUATED = 2  # batches for each step of training
RUNNERS: dict[str, dict[str, str]] = {
    "ort-module": {},
    "default": {},
    **dict.fromkeys(STRONG, KEEP_MEMORY),
}


MODELS = {"bert": bert_model, "gpt2": gpt2_model}


def rows(count: int, vocabulary: int) -> list[dict[str, Any]]:
    import torch

    ids = torch.randint(0, vocabulary, (count, LENGTH))
    return [{"input_ids": row, "labels": row.clone()} for row in ids]


class Run:
    """One contestant's model, trained on by a new Trainer at each call."""

    def __init__(self, work: str, runner: str, precision: str, folder: str) -> None:
        self._model = MODELS[work]()
        self._vocabulary = self._model.config.vocab_size
        self._options = {
            "output_dir": folder,
            "per_device_train_batch_size": ROWS,
            "per_device_eval_batch_size": ROWS,
            "bf16": precision == "bf16",
            "optim": "adamw_torch" if runner == "default" else "adamw_torch_fused",
            "use_cpu": True,
            "save_strategy": "no",
            "report_to": "none",
            "disable_tqdm": True,
            "logging_strategy": "no",
            "prediction_loss_only": True,
        }
        if runner == "strong compiled":
            self._model.compile()
        if runner == "ort-module":
            from steep import ORTModule

            self._model = ORTModule(self._model)

    def __call__(self, steps: int) -> float:
        """Train and evaluate; return the seconds of both."""
        from transformers import Trainer, TrainingArguments

        trainer = Trainer(
            self._model,
            TrainingArguments(max_steps=steps, **self._options),
            train_dataset=rows(ROWS * steps, self._vocabulary),
            eval_dataset=rows(ROWS * steps * EVALUATED, self._vocabulary),
        )
        start = time.perf_counter()
        trainer.train()
        trainer.evaluate()
        return time.perf_counter() - start


def work_alone(args: argparse.Namespace) -> None:
    """Speak the protocol of bench/worker.py: `step N` is one turn of N steps."""
    import torch

    answers, sys.stdout = sys.stdout, sys.stderr
    warnings.filterwarnings("ignore")
    os.environ.setdefault("STEEP_CACHE", "off")
    torch.set_num_threads(2)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        run = Run(args.works[0], args.child, args.precision[0], folder)
        print(json.dumps({"first_step_s": run(1)}), file=answers, flush=True)
        for line in sys.stdin:
            print(json.dumps([run(int(line.split()[1]))]), file=answers, flush=True)


def measure(work: str, precision: str, args: argparse.Namespace) -> None:
    here = [sys.executable, str(Path(__file__).resolve()), work, "--precision", precision]
    contestants: dict[str, Contestant] = {}
    try:
        for name, environment in RUNNERS.items():
            say(f"{work}, {precision}, {name}: the first steps …")
            shared = {"OMP_NUM_THREADS": "2", **environment}
            contestants[name] = Contestant(name, [*here, "--child", name], shared)
        for turn in range(args.turns):
            say(f"{work}, {precision}: turn {turn + 1} of {args.turns}")
            for contestant in contestants.values():
                contestant.turns.append(contestant.ask(f"step {args.steps}"))
    finally:
        say("")
        for contestant in contestants.values():
            contestant.close()
    ours = contestants["ort-module"]
    best = min(STRONG, key=lambda name: contestants[name].median_ms())
    for name, contestant in contestants.items():
        ratio = times_faster(ours.medians(), contestant.medians())
        seconds = contestant.median_ms() / 1e3
        mark = " (strong)" if name == best else ""
        cells = (work, precision, name + mark, f"{seconds:.2f}", f"{ratio:.2f}")
        print(f"| {' | '.join(cells)} | {contestant.first_step_s:.1f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("works", nargs="*", default=[*MODELS])
    parser.add_argument("--precision", nargs="+", default=["fp32", "bf16"])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4, help="of training in a turn")
    parser.add_argument("--child", choices=RUNNERS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return work_alone(args)
    print("| model | precision | Trainer with | s a turn | Steep is faster by | first run s |")
    print("|---|---|---|---|---|---|")
    for work in args.works:
        for precision in args.precision:
            measure(work, precision, args)
    return None


if __name__ == "__main__":
    main()
