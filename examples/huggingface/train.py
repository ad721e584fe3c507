"""Fine-tune a Hugging Face model by its Trainer, in Steep and in PyTorch, turn by turn.

python examples/huggingface/train.py bert
python examples/huggingface/train.py all --text FOLDER --steps 200
python examples/huggingface/train.py gpt2 --full --bf16
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import json
import math
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

import picture
import race
import texts
from contestant import Plan

# No model and no text comes from elsewhere; the processes that train inherit this.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

HERE = Path(__file__).resolve().parent
NAMES = sorted(f.stem for f in (HERE / "configs").glob("*.json"))
PACKAGES = ("torch", "transformers", "accelerate", "rich", "steep")
LINES_EVERY = 10.0  # seconds, where there is no terminal


def arguments(words: list[str] | None) -> argparse.Namespace:
    """Read the command line; what is wrong with it ends the program with status 2."""
    parser = argparse.ArgumentParser(
        prog="train.py", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "models",
        nargs="+",
        metavar="MODEL",
        help=f"{', '.join(NAMES)};\nall; or a file like those in {HERE.name}/configs",
    )
    parser.add_argument(
        "--text", type=Path, help="file of UTF-8 text, or folder; default: Python's documentation"
    )
    parser.add_argument("--full", action="store_true", help="the published size")
    parser.add_argument("--bf16", action="store_true", help="bfloat16 mixed precision, in both")
    parser.add_argument("--steps", type=count_of, help="default: 60, with --full 20")
    parser.add_argument("--batch", type=count_of, default=8, help="rows of a step")
    parser.add_argument("--length", type=count_of, default=128, help="tokens of a row")
    parser.add_argument("--turn", type=count_of, default=5, help="steps of a turn")
    parser.add_argument("--lr", type=float, help="learning rate; default: the configuration's")
    parser.add_argument("--seed", type=int, default=1234)
    parser.add_argument("--out", type=Path, default=Path("runs/huggingface"), help="run folder")
    args = parser.parse_args(words)
    args.steps = args.steps or (20 if args.full else 60)
    if args.length < 16:
        parser.error("--length must be 16 or more: of fewer tokens too few are left to guess")
    try:
        names = NAMES if "all" in args.models else args.models
        args.configurations = {Path(name).stem: configuration(name) for name in names}
        if len(args.configurations) < len(set(names)):
            raise ValueError("two models of one name would write to one folder: rename a file")
        for name, config in args.configurations.items():
            if args.length > config.get("longest", args.length):
                raise ValueError(
                    f"{name} takes rows of at most {config['longest']}: --length is more"
                )
        args.name, args.paragraphs = texts.read(args.text)
    except (ValueError, texts.TextError) as error:
        parser.error(str(error))
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        parser.error(f"not installed: {', '.join(missing)}")
    return args


def count_of(text: str) -> int:
    """Read a whole number of 1 or more; argparse says what is wrong with others."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return number


def configuration(name: str) -> dict[str, Any]:
    """Read the configuration of a name, or a file of the user's own.

    Raises ValueError where there is none of the name, or something is missing in it.
    """
    if name not in NAMES and not name.endswith(".json"):
        raise ValueError(f"there is no model {name}: choose of {', '.join(NAMES)}, or all")
    file = HERE / "configs" / f"{name}.json" if name in NAMES else Path(name)
    try:
        config = dict(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} is no configuration: {error}") from None
    keys = ("model", "tokenizer", "task", "always", "small", "full", "learning_rate")
    absent = [key for key in keys if key not in config]
    if absent:
        raise ValueError(f"{file} has no {', '.join(absent)}: see those in {HERE / 'configs'}")
    if config["task"] not in texts.TASKS:
        raise ValueError(f"{file} has the task {config['task']}, not of {', '.join(texts.TASKS)}")
    return config


def make_plan(args: argparse.Namespace, name: str, setup: dict[str, Any]) -> Plan:
    """Train the tokenizer, cut the text into rows, and say all that is to be done.

    Raises TextError where the text is too short.
    """
    size = "full" if args.full else "small"
    config = {**setup["always"], **setup[size]}
    tokenizer = texts.train_tokenizer(setup["tokenizer"], args.paragraphs, config["vocab_size"])
    rows = texts.Rows(tokenizer, args.paragraphs, args.length, args.seed)
    print(
        f"{name}: {setup['model']}, {size}; {len(tokenizer):,} words by {setup['tokenizer']}, "
        f"{rows.size:,} tokens of text",
        flush=True,
    )
    plan = Plan(
        model=setup["model"],
        config=config | texts.special_numbers(tokenizer, setup["task"]),
        rows=rows.make(setup["task"], args.steps * args.batch),
        batch=args.batch,
        steps=args.steps,
        learning_rate=args.lr or setup["learning_rate"][size],
        bf16=args.bf16,
        seed=args.seed,
        out=args.out / name / "model",
    )
    plan.out.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(plan.out)
    return plan


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


class Watch:
    """Two bars on a terminal; elsewhere a line now and then."""

    def __init__(self, plan: Plan) -> None:
        from rich import progress

        self._tokens = tokens_of(plan)
        self._shown = time.monotonic()
        self._bars = progress.Progress(
            progress.TextColumn("{task.description:8}"),
            progress.BarColumn(bar_width=30),
            progress.MofNCompleteColumn(),
            progress.TextColumn("{task.fields[text]}"),
            refresh_per_second=4,
        )
        self._live = self._bars.console.is_terminal
        self._tasks = {
            name: self._bars.add_task(name, total=plan.steps, text="waits for its first step")
            for name in (race.STEEP, race.PYTORCH)
        }

    def __enter__(self) -> Watch:
        if self._live:
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._bars.stop()

    def show(self, each: race.Contestant) -> None:
        """Say how far it is."""
        step, task = len(each.losses), self._tasks[each.name]
        speed = self._tokens / each.seconds[-1]
        text = f"loss {each.losses[-1]:.3f}  {speed:,.0f} tokens/s"
        self._bars.update(task, completed=step, text=text)
        now = time.monotonic()
        if not self._live and now - self._shown > LINES_EVERY:
            self._shown = now
            print(f"{each.name:8} step {step}  {text}", flush=True)


def tokens_of(plan: Plan) -> int:
    """Tokens that the model reads in a step."""
    return int(plan.rows["input_ids"][: plan.batch].size)


def report(args: argparse.Namespace, name: str, plan: Plan, result: race.Result) -> bool:
    """Print what came of it, write losses.csv and the picture. Returns whether losses agree."""
    folder = args.out / name
    precision = "bfloat16" if args.bf16 else "float32"
    _table(plan, result)
    apart = result.differences()
    print(
        f"losses   {race.largest(apart[: race.CLOSE])} apart at most in the first "
        f"{len(apart[: race.CLOSE])} steps, {race.largest(apart)} in all {len(apart)}"
    )
    ready, summary = result.steep.ready, result.steep.done
    if summary:
        whole = (
            "and nothing in PyTorch" if summary["whole"] else f"and PyTorch:\n{summary['report']}"
        )
        print(f"engine   {summary['graphs']} graph{'s' * (summary['graphs'] != 1)}, {whole}")
    write_losses(folder / "losses.csv", result)
    drawn = result.steps > 1 and picture.draw(
        result,
        tokens_of(plan),
        folder / "race.png",
        f"{plan.model}: Hugging Face's Trainer with Steep and with PyTorch",
        f"{args.name} · {ready['weights'] / 1e6:,.1f} M weights · {plan.batch} × {args.length} "
        f"tokens a step · {precision} · threads: {ready['threads']}",
    )
    where = (
        "race.png losses.csv" if drawn else "losses.csv (race.png needs two steps and matplotlib)"
    )
    print(f"written  {folder}: {where}{' model/' if summary else ''}", flush=True)
    step = result.parted_at(precision)
    if step is None:
        return True
    ours, theirs = result.steep.losses[step - 1], result.torch.losses[step - 1]
    if math.isfinite(ours) or math.isfinite(theirs):
        print(
            f"The losses differ at step {step}, by more than rounding explains: {ours} in Steep, "
            f"{theirs} in PyTorch.\nSTEEP_VERIFY=1 in the environment finds the place.",
            file=sys.stderr,
        )
    else:
        print(f"Both losses are {ours} at step {step}: try a smaller --lr.", file=sys.stderr)
    return False


def write_losses(path: Path, result: race.Result) -> None:
    """Write a line for each step that both have made."""
    both = (result.steep.losses, result.torch.losses, result.steep.seconds, result.torch.seconds)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["step", "steep", "pytorch", "steep_seconds", "pytorch_seconds"])
        writer.writerows([step, *row] for step, row in enumerate(zip(*both, strict=False), 1))


def _table(plan: Plan, result: race.Result) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("Trainer with")
    steps = result.steps - 1
    for heading in (f"s, {steps} steps", "tokens/s", "× PyTorch", "first step s", "MiB", "loss"):
        table.add_column(heading, justify="right")
    faster = {race.PYTORCH: 1.0, race.STEEP: result.times_faster()}
    for each in (result.torch, result.steep):
        seconds = sum(each.seconds[1 : result.steps])
        table.add_row(
            each.name,
            f"{seconds:.2f}" if steps else "",
            f"{tokens_of(plan) * steps / seconds:,.0f}" if steps else "",
            f"{faster[each.name]:.2f}" if steps else "",
            f"{each.seconds[0]:.1f}",
            f"{each.done['memory_mib']:,}" if each.done else "",
            f"{each.losses[result.steps - 1]:.4f}",
        )
    Console(width=88).print(table)


def main(words: list[str] | None = None) -> int:
    """Train each model. Returns 0; 1: losses differ, or one fails; 2: wrong input; 130: Ctrl-C."""
    args = arguments(words)
    race.prepare()
    agree = True
    for name, config in args.configurations.items():
        try:
            plan = make_plan(args, name, config)
            with Interrupt() as interrupt, Watch(plan) as watch:
                result = race.run(plan, args.turn, watch.show, lambda: interrupt.asked)
        except (texts.TextError, OSError) as error:
            print(f"train.py: error: {error}", file=sys.stderr)
            return 2
        except race.RaceError as error:
            print(f"train.py: error: {error}", file=sys.stderr)
            agree = False
            continue
        if result.steps:
            agree &= report(args, name, plan, result)
        if interrupt.asked:
            print(f"stopped after {result.steps} of {plan.steps} steps")
            return 130
    return 0 if agree else 1


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # outside training Ctrl-C just ends the program
    sys.exit(main())
