"""Train the tutorial's transformer language model, the whole step compiled by Steep.

python examples/transformer_lm/train.py [--data FOLDER] [--out FOLDER] [--resume] [--short]
"""

import signal

if __name__ == "__main__":
    # Before the slow imports: Ctrl-C outside training just ends the program. Others import this
    # file, too, and keep their own ways.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import argparse
import json
import math
import time
from pathlib import Path
from types import FrameType
from typing import Any

import data
import torch
from model import TransformerModel, causal_mask
from progress import ProgressLine, Records, clock, perplexity, plot
from torch import Tensor, nn

import steep

LOG_EVERY = 10  # steps
SAFE = 0.9  # part of the time limit that the planned epochs may fill


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, help="folder with WikiText-2's train.txt, test.txt, ..."
    )
    parser.add_argument("--out", type=Path, default=Path("runs/transformer_lm"), help="run folder")
    parser.add_argument("--resume", action="store_true", help="continue the run in --out")
    parser.add_argument("--short", action="store_true", help="a few seconds only")
    parser.add_argument("--epochs", type=int, help="default: what fits the time on two cores")
    parser.add_argument("--minutes", type=float, default=2.0, help="stop training after this time")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--dropout", type=float, default=0.2)
    parser.add_argument("--batch", type=int, default=20)
    parser.add_argument("--bptt", type=int, default=35, help="words of context")
    parser.add_argument("--seed", type=int, default=1234)
    parser.add_argument("--provider", type=Path, help="library of a plug-in to run on")
    return parser.parse_args()


class Interrupt:
    """Within it, Ctrl-C lets the present step end; a second one ends the program."""

    def __enter__(self) -> "Interrupt":
        self.asked = False
        signal.signal(signal.SIGINT, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def planned_epochs(args: argparse.Namespace, words: int, steps: int) -> int:
    """Epochs that fit the time limit on two cores, by the cost of a step at this vocabulary.

    A text of a hundred thousand words has nothing new to say after a dozen.
    """
    seconds = 0.012 + 4.5e-6 * words
    return max(1, min(12, int(SAFE * 60 * args.minutes / seconds / steps)))


def rate(step: int, total: int, peak: float) -> float:
    """Linear warm-up over the first 5 %, then a cosine down to a twentieth."""
    warmup = max(1, total // 20)
    if step < warmup:
        return peak * (step + 1) / warmup
    progress = (step - warmup) / max(1, total - warmup)
    return peak * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * progress)))


def evaluate(trainer: Any, columns: Tensor, bptt: int) -> float:
    """Mean loss per word."""
    total, words = 0.0, 0
    for source, target in data.batches(columns, bptt):
        loss, _ = trainer.evaluate(source, causal_mask(len(source)), target)
        total += float(loss) * len(target)
        words += len(target)
    return total / words


def largest_difference(trainer: Any, source: Tensor, target: Tensor, path: Path) -> float | None:
    """Between our evaluation and stock onnxruntime's run of the exported file."""
    try:
        import onnxruntime
    except ImportError:
        return None
    mask = causal_mask(len(source))
    _, ours = trainer.evaluate(source, mask, target)
    stock = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    feeds = {"src": source.numpy(), "mask": mask.numpy()}
    theirs = stock.run(None, {i.name: feeds[i.name] for i in stock.get_inputs()})[0]
    return float((ours.flatten() - torch.from_numpy(theirs).flatten()).abs().max())


def main() -> None:
    """Set up, train, and leave the run folder behind."""
    args = arguments()
    checkpoint = args.out / "checkpoint"
    if args.resume:
        if not (args.out / "run.json").exists() or not checkpoint.exists():
            raise SystemExit(f"there is nothing to resume in {args.out}")
        record = json.loads((args.out / "run.json").read_text())
        record.update({k: record.get(k) and Path(record[k]) for k in ("data", "provider")})
        vars(args).update(record)
    args.out.mkdir(parents=True, exist_ok=True)

    torch.manual_seed(args.seed)
    corpus = data.load(args.data)
    train = data.columns(corpus.train, args.batch)
    valid = data.columns(corpus.valid, args.batch)
    if args.short:
        train, valid = train[: 60 * args.bptt + 1], valid[: 8 * args.bptt + 1]
        args.epochs = args.epochs or 2
    per_epoch = math.ceil((len(train) - 1) / args.bptt)
    args.epochs = args.epochs or planned_epochs(args, len(corpus.words), per_epoch)
    total = per_epoch * args.epochs
    settings = {
        k: str(v) if isinstance(v, Path) else v
        for k, v in vars(args).items()
        if k not in ("out", "resume", "minutes")
    }
    (args.out / "run.json").write_text(json.dumps(settings, indent=2))

    model = TransformerModel(len(corpus.words), dropout=args.dropout)
    weights = sum(p.numel() for p in model.parameters())
    print(
        f"text     {corpus.name}: {corpus.train.numel():,} + {corpus.valid.numel():,} words, "
        f"{len(corpus.words):,} different"
    )
    print(f"model    {weights:,} weights, {args.epochs} epochs of {per_epoch} steps")

    cross_entropy = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
    trainer = steep.trainer(
        model,
        lambda scores, target: cross_entropy(scores.view(-1, len(corpus.words)), target),
        optimizer,
        clip_norm=0.5,
        predictions=False,
        seed=args.seed,
        providers=[steep.register_provider(args.provider)] if args.provider else None,
    )
    start = time.monotonic()
    source, target = next(data.batches(train, args.bptt))
    trainer.compile(source, causal_mask(len(source)), target)
    print(f"compiled the step in {time.monotonic() - start:.1f} s")

    state = {"step": 0, "seconds": 0.0, "sum": 0.0}
    if args.resume:
        state = trainer.load_checkpoint(checkpoint)
        print(f"resuming at step {state['step']} of {total}")
    records = Records(args.out, state["step"])
    with Interrupt() as interrupt:
        finished = run(
            args, trainer, optimizer, train, valid, state, total, per_epoch, records, interrupt
        )
    records.close()
    plot(
        records.rows,
        args.out / "loss.png",
        "Transformer language model, trained by Steep",
        f"{corpus.name} · {len(corpus.words):,} words · {weights:,} weights · "
        f"{state['step']:,} steps in {clock(state['seconds'])}",
    )
    if not finished:
        print(
            f"stopped at step {state['step']}; the checkpoint is in {checkpoint}\n"
            f"resume with: python examples/transformer_lm/train.py --resume --out {args.out}"
        )
        return
    onnx_file = args.out / "model.onnx"
    trainer.save_as_onnx(onnx_file)
    difference = largest_difference(trainer, source, target, onnx_file)
    print(f"the run is in {args.out}: checkpoint/ model.onnx metrics.csv tensorboard/ loss.png")
    if difference is not None:
        print(f"largest difference from stock onnxruntime on the exported model: {difference:.1e}")


def run(  # noqa: PLR0917
    args: argparse.Namespace,
    trainer: Any,
    optimizer: torch.optim.Optimizer,
    train: Tensor,
    valid: Tensor,
    state: dict[str, Any],
    total: int,
    per_epoch: int,
    records: Records,
    interrupt: Interrupt,
) -> bool:
    """Train from `state` on, and keep it up to date. False when Ctrl-C ended it."""
    line = ProgressLine()
    limit = 60 * args.minutes
    start, before = time.monotonic(), state["seconds"]
    window, words = time.monotonic(), 0
    speed, loss = 0.0, float("nan")
    batches = list(data.batches(train, args.bptt))
    masks = {len(source): causal_mask(len(source)) for source, _ in batches}
    out_of_time = False
    while state["step"] < total and not out_of_time:
        step = state["step"]
        source, target = batches[step % per_epoch]
        optimizer.param_groups[0]["lr"] = rate(step, total, args.lr)
        loss = float(trainer.step(source, masks[len(source)], target))
        words += len(target)
        state["step"] = step = step + 1
        state["sum"] += loss
        state["seconds"] = before + time.monotonic() - start
        epoch = (step - 1) // per_epoch + 1
        if step % LOG_EVERY == 0:
            now = time.monotonic()
            speed = words / (now - window)
            mean, state["sum"] = state["sum"] / LOG_EVERY, 0.0
            window, words = now, 0
            records.add(
                step=step,
                epoch=epoch,
                split="train",
                loss=mean,
                learning_rate=optimizer.param_groups[0]["lr"],
                words_per_second=speed,
            )
        seconds = (total - step) * state["seconds"] / step
        speed = speed or words / (time.monotonic() - window)
        line.show(
            step / total,
            f"epoch {epoch}/{args.epochs}  loss {loss:.3f}  "
            f"ppl {perplexity(loss):,.0f}  {speed:,.0f} words/s  {clock(seconds)} left",
        )
        out_of_time = state["seconds"] > limit
        if step % per_epoch == 0 or out_of_time:
            value = evaluate(trainer, valid, args.bptt)
            records.add(step=step, epoch=epoch, split="valid", loss=value)
            line.note(
                f"epoch {epoch:2d}  {clock(state['seconds'])}  loss {loss:.3f}  "
                f"validation loss {value:.3f}  perplexity {perplexity(value):,.1f}"
            )
            trainer.save_checkpoint(args.out / "checkpoint", state)
            window, words = time.monotonic(), 0
        if interrupt.asked:
            line.note("")
            trainer.save_checkpoint(args.out / "checkpoint", state)
            return False
    if out_of_time:
        line.note(f"the time limit of {args.minutes:g} minutes is reached")
    return True


if __name__ == "__main__":
    main()
