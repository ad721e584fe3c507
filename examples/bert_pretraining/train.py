"""Pre-train BERT by the recipe of LAMB in two phases, the whole step compiled by Steep.

python examples/bert_pretraining/prepare.py
python examples/bert_pretraining/train.py
torchrun --nproc-per-node 2 examples/bert_pretraining/train.py --precision bf16
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import math
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from picture import draw
from rows import IGNORED, Batch, DataError, Position, Rows, Text
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm

import steep

COLUMNS = ("phase", "step", "loss", "masked_words", "next_sentence", "rate", "tokens_per_second")
SIZES = {  # of transformers.BertConfig
    "tiny": {
        "hidden_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 512,
    },
    "base": {},
    "large": {
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
    },
}


@dataclasses.dataclass(frozen=True)
class Phase:
    """A part of the training, with rows of one length."""

    length: int  # tokens of a row
    steps: int
    rows: int  # of a step, in all processes together
    parts: int  # into which a process divides its rows of a step
    rate: float  # the highest learning rate
    warmup: float  # part of the steps in which the rate rises


SMALL = (Phase(128, 300, 32, 2, 4e-3, 0.28), Phase(512, 60, 8, 2, 2e-3, 0.13))
# NVIDIA's recipe for BERT-large on Wikipedia and books (You et al. 2020 with other batches)
FULL = (Phase(128, 7038, 65536, 0, 6e-3, 0.2843), Phase(512, 1563, 32768, 0, 4e-3, 0.128))
FULL_WEIGHTS = 336e6
DECAY_POWER = 0.5
ENOUGH = 10  # steps, for an estimate from their speed


class Pretraining(nn.Module):
    """BERT with its two losses: masked words, and whether the second segment follows the first."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        from transformers import BertForPreTraining

        self.bert = BertForPreTraining(config)

    def forward(
        self, ids: Tensor, segments: Tensor, mask: Tensor, labels: Tensor, other: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the loss, and the losses of words and of segments; arguments as Rows.batch."""
        result = self.bert(input_ids=ids, token_type_ids=segments, attention_mask=mask)
        scores = result.prediction_logits
        words = F.cross_entropy(scores.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)
        segment = F.cross_entropy(result.seq_relationship_logits, other)
        return words + segment, words, segment


def rate_at(step: int, phase: Phase) -> float:
    """Linear warm-up, then the root of what is left (a polynomial of degree 0.5)."""
    rising = phase.warmup * phase.steps
    if step < rising:
        return phase.rate * (step + 1) / math.ceil(rising)
    return phase.rate * (1 - step / phase.steps) ** DECAY_POWER


def parameter_groups(model: nn.Module) -> list[dict[str, Any]]:
    """Biases and the scales of norms have no weight decay."""
    decayed = [p for p in model.parameters() if p.dim() > 1]
    other = [p for p in model.parameters() if p.dim() <= 1]
    return [{"params": decayed, "weight_decay": 0.01}, {"params": other, "weight_decay": 0.0}]


class Interrupt:
    """Within it, Ctrl-C lets the present step end; a second one ends the program."""

    def __enter__(self) -> Interrupt:
        self.asked = False
        self._before = signal.signal(signal.SIGINT, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    def anywhere(self, parallel: bool) -> bool:
        """Whether a process was asked to end: all end after the same step."""
        asked = torch.tensor(float(self.asked))
        if parallel:
            torch.distributed.all_reduce(asked)
        return bool(asked)


class Run:
    """The training of this process: a trainer for each phase, with one model and optimizer."""

    def __init__(self, args: argparse.Namespace, text: Text, phases: tuple[Phase, ...]) -> None:
        from transformers import BertConfig

        self.args, self.text, self.phases = args, text, phases
        self.parallel = int(os.environ.get("WORLD_SIZE", "1")) > 1
        torch.manual_seed(args.seed)
        longest = max(phase.length for phase in phases)
        config = BertConfig(
            vocab_size=text.words,
            max_position_embeddings=longest,
            hidden_dropout_prob=args.dropout,
            attention_probs_dropout_prob=args.dropout,
            **SIZES[args.size],
        )
        self.model = Pretraining(config)
        self.optimizer = steep.Lamb(parameter_groups(self.model))
        self.state: dict[str, Any] = {"phase": 0, "step": 0, "position": {}}
        self.records: list[dict[str, Any]] = []
        self.tokens = self.seconds = 0.0
        self.rank, self.size = 0, 1

    @property
    def checkpoint(self) -> Path:
        """The folder that rank 0 writes."""
        return self.args.out / "checkpoint"

    def trainer(self, phase: Phase) -> Any:
        """Return a compiled step for a phase, with the state of the last checkpoint, if any."""
        trainer = steep.trainer(
            self.model,
            None,
            self.optimizer,
            clip_norm=1.0,
            precision=self.args.precision,
            seed=self.args.seed,
            parallel="torch" if self.parallel else None,
        )
        if self.parallel:
            self.rank = torch.distributed.get_rank()
            self.size = torch.distributed.get_world_size()
        rows = phase.rows // self.size // phase.parts
        if rows * self.size * phase.parts != phase.rows:
            raise DataError(
                f"{phase.rows} rows of a step cannot be divided among {self.size} processes with "
                f"{phase.parts} parts each: change --processes, or the phases"
            )
        example = Rows(self.text, phase.length, self.args.seed, Position()).batch(rows)
        trainer.compile(*map(torch.from_numpy, example))
        if self.checkpoint.exists():
            self.state = trainer.load_checkpoint(self.checkpoint)
        return trainer

    def train(self, interrupt: Interrupt) -> bool:
        """Train all phases. Returns False if Ctrl-C ended it."""
        while self.state["phase"] < len(self.phases):
            number = self.state["phase"]
            trainer = self.trainer(self.phases[number])
            if not self._phase(trainer, number, interrupt):
                return False
        return True

    def _phase(self, trainer: Any, number: int, interrupt: Interrupt) -> bool:
        phase, state = self.phases[number], self.state
        rows = Rows(self.text, phase.length, self.args.seed, Position(**state["position"]))
        bar = tqdm(
            total=phase.steps,
            initial=state["step"],
            desc=f"phase {number + 1}, {phase.length} tokens",
            unit="step",
            disable=self.rank > 0,
        )
        with bar:
            while state["step"] < phase.steps:
                start = time.monotonic()
                rate = rate_at(state["step"], phase)
                losses = self._step(trainer, rows.batch(phase.rows), phase.parts, rate)
                seconds = time.monotonic() - start
                state["step"] += 1
                if state["step"] > 1:  # not the first, which may wait for others
                    self.seconds += seconds
                    self.tokens += phase.rows * phase.length
                speed = phase.rows * phase.length / seconds
                values = (number + 1, state["step"], *losses, rate, speed)
                self.records.append(dict(zip(COLUMNS, values, strict=True)))
                bar.set_postfix_str(f"loss {losses[0]:.3f}, {speed:,.0f} tokens/s", refresh=False)
                bar.update()
                asked = interrupt.anywhere(self.parallel)
                last = state["step"] == phase.steps
                if last or asked or state["step"] % self.args.save_every == 0:
                    state["position"] = {} if last else dataclasses.asdict(rows.position)
                    after = {"phase": number + 1, "step": 0} if last else {}
                    trainer.save_checkpoint(self.checkpoint, state | after)
                    if self.parallel:
                        torch.distributed.barrier()  # others read it next
                if last:
                    state |= after
                    return not asked
                if asked:
                    return False
        return True

    def _step(self, trainer: Any, batch: Batch, parts: int, rate: float) -> list[float]:
        """Train with this process's share of a batch; return its loss and the parts of it."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        mine = [torch.from_numpy(array[self.rank :: self.size].copy()) for array in batch]
        sums = [0.0, 0.0]
        for part in zip(*(array.chunk(parts) for array in mine), strict=True):
            _, losses = trainer.step(*part, accumulate=True)
            sums = [a + float(b) / parts for a, b in zip(sums, losses, strict=True)]
        return [float(trainer.apply_gradients()), *sums]


def cost_of_the_recipe(weights: int, tokens: float, seconds: float) -> str:
    """Estimate the full recipe from the speed of this run: 6 operations for a weight and token."""
    work = sum(p.steps * p.rows * p.length for p in FULL) * FULL_WEIGHTS
    years = work / (weights * tokens / seconds) / (365 * 24 * 3600)
    return (
        f"the full recipe (BERT-large, {sum(p.steps for p in FULL):,} steps of up to "
        f"{max(p.rows for p in FULL):,} rows) is the work of {years:,.0f} such machines for a year"
    )


def read_records(path: Path, state: dict[str, Any]) -> list[dict[str, Any]]:
    """Read the rows of an earlier run's metrics.csv up to its checkpoint."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        every = [
            {k: int(v) if k in ("phase", "step") else float(v) for k, v in row.items()}
            for row in csv.DictReader(file)
        ]
    here = (state["phase"] + 1, state["step"])
    return [row for row in every if (row["phase"], row["step"]) <= here]


def leave(run: Run) -> None:
    """Write metrics.csv and loss.png."""
    args = run.args
    with (args.out / "metrics.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(run.records)
    weights = sum(p.numel() for p in run.model.parameters())
    lengths = " and ".join(str(phase.length) for phase in run.phases)
    draw(
        run.records,
        args.out / "loss.png",
        "BERT's pre-training with LAMB, by Steep",
        f"{weights / 1e6:,.1f} M weights · rows of {lengths} tokens · {args.precision} · "
        f"{run.size} process{'es' * (run.size > 1)}",
    )
    if len(run.records) >= ENOUGH and run.seconds:
        print(f"speed    {run.tokens / run.seconds:,.0f} tokens/s")
        print(f"cost     {cost_of_the_recipe(weights, run.tokens, run.seconds)}")
    print(f"written  {args.out}: checkpoint/ metrics.csv loss.png")


def phases_of(args: argparse.Namespace) -> tuple[Phase, ...]:
    """Return the phases with the numbers of the command line."""
    given = {"steps": args.steps, "length": args.lengths, "rows": args.rows, "parts": args.parts}
    phases = list(SMALL)
    for name, values in given.items():
        for i, value in enumerate(values or ()):
            phases[i] = dataclasses.replace(phases[i], **{name: value})
    return tuple(phases)


def arguments(words: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="train.py", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    two = {"type": int, "nargs": len(SMALL), "metavar": ("PHASE1", "PHASE2")}
    default = {
        name: " ".join(str(getattr(phase, name)) for phase in SMALL)
        for name in ("steps", "length", "rows", "parts")
    }
    parser.add_argument("--data", type=Path, default=Path("runs/bert/data"), help="of prepare.py")
    parser.add_argument("--out", type=Path, default=Path("runs/bert"), help="run folder")
    parser.add_argument("--resume", action="store_true", help="continue the run in --out")
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--precision", choices=("fp32", "bf16", "fp16"), default="fp32")
    parser.add_argument("--steps", **two, help=f"default: {default['steps']}")
    parser.add_argument("--lengths", **two, help=f"tokens of a row; default: {default['length']}")
    parser.add_argument("--rows", **two, help=f"of a step; default: {default['rows']}")
    parser.add_argument("--parts", **two, help=f"of a step; default: {default['parts']}")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--save-every", type=int, default=50, metavar="STEPS")
    parser.add_argument("--seed", type=int, default=1234)
    args = parser.parse_args(words)
    for name in ("steps", "lengths", "rows", "parts"):
        if min(getattr(args, name) or [1]) < 1:
            parser.error(f"--{name} must be 1 or more")
    if min(args.lengths or [128]) < 16:
        parser.error("--lengths must be 16 or more: of fewer tokens too few are left to guess")
    return args


def main(words: list[str] | None = None) -> int:
    """Train. Returns 0; 2: wrong input; 130: Ctrl-C."""
    args = arguments(words)
    checkpoint = args.out / "checkpoint"
    first = int(os.environ.get("RANK", "0")) == 0
    try:
        if args.resume and not checkpoint.exists():
            raise DataError(f"there is nothing to resume in {args.out}")
        if not args.resume and checkpoint.exists():
            raise DataError(f"{checkpoint} is there: continue by --resume, or give another --out")
        run = Run(args, Text(args.data), phases_of(args))
        args.out.mkdir(parents=True, exist_ok=True)
        with Interrupt() as interrupt:
            finished = run.train(interrupt)
    except (DataError, steep.Error, OSError) as error:
        print(f"train.py: error: {error}", file=sys.stderr)
        return 2
    if first:
        if args.resume:
            begin = run.records[0] if run.records else {"phase": 1, "step": 1}
            before = {"phase": begin["phase"] - 1, "step": begin["step"] - 1}
            run.records = read_records(args.out / "metrics.csv", before) + run.records
        leave(run)
        if not finished:
            print(f"stopped  continue by: train.py --resume --out {args.out}")
    return 0 if finished else 130


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # outside training Ctrl-C just ends the program
    sys.exit(main())
