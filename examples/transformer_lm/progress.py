"""What the user watches, and what a run leaves behind: progress line, CSV, TensorBoard, plot."""

import csv
import math
import shutil
import sys
import time
from pathlib import Path
from typing import Any

COLUMNS = ["step", "epoch", "split", "loss", "perplexity", "learning_rate", "words_per_second"]


def perplexity(loss: float) -> float:
    """Exponential of the loss, bounded so that it can be printed."""
    return math.exp(min(loss, 50.0))


class ProgressLine:
    """One line, rewritten in place on a terminal; plain lines, now and then, elsewhere."""

    def __init__(self) -> None:
        self.live = sys.stdout.isatty()
        self._shown = 0.0

    def show(self, fraction: float, text: str) -> None:
        """fraction: of the whole run."""
        now = time.monotonic()
        if now - self._shown < (0.1 if self.live else 10.0):
            return
        self._shown = now
        if not self.live:
            print(f"{fraction:4.0%}  {text}", flush=True)
            return
        columns = shutil.get_terminal_size().columns
        width = max(10, min(24, columns - len(text) - 8))
        filled = fraction * width
        bar = "█" * int(filled) + "▏▎▍▌▋▊▉"[int(filled % 1 * 7)] * (int(filled) < width)
        print(f"\r\x1b[K{bar:·<{width}} {fraction:4.0%}  {text}"[: columns + 4], end="", flush=True)

    def note(self, text: str) -> None:
        """Print a line that stays."""
        print(f"\r\x1b[K{text}" if self.live else text, flush=True)


def clock(seconds: float) -> str:
    """1:05."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


class Records:
    """Writes metrics.csv and TensorBoard events; resuming drops what came after the checkpoint."""

    def __init__(self, folder: Path, step: int) -> None:
        self._path = folder / "metrics.csv"
        self.rows = [r for r in read_metrics(self._path) if r["step"] <= step] if step else []
        self._file = self._path.open("w", newline="", encoding="utf-8")
        self._csv = csv.DictWriter(self._file, COLUMNS)
        self._csv.writeheader()
        self._csv.writerows(self.rows)
        try:
            from torch.utils.tensorboard import SummaryWriter

            self._board: Any = SummaryWriter(str(folder / "tensorboard"), purge_step=step or None)
        except ImportError:
            self._board = None

    def add(self, **row: Any) -> None:
        """Write one row; names as in COLUMNS."""
        row["perplexity"] = perplexity(row["loss"])
        self.rows.append(row)
        self._csv.writerow({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()})
        self._file.flush()
        if self._board is not None:
            for name in ("loss", "perplexity", "learning_rate", "words_per_second"):
                if name in row:
                    self._board.add_scalar(f"{row['split']}/{name}", row[name], row["step"])

    def close(self) -> None:
        """Finish the files."""
        self._file.close()
        if self._board is not None:
            self._board.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Rows of an earlier run's metrics.csv."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return [
            {
                k: v if k == "split" else int(v) if k in ("step", "epoch") else float(v)
                for k, v in row.items()
                if v not in ("", None)
            }
            for row in csv.DictReader(file)
        ]


def plot(rows: list[dict[str, Any]], path: Path, title: str, subtitle: str) -> bool:
    """Draw the loss curves. Returns False where matplotlib is missing."""
    try:
        import matplotlib as mpl
    except ImportError:
        return False
    mpl.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    train = [(r["step"], r["loss"]) for r in rows if r["split"] == "train"]
    valid = [(r["step"], r["loss"], r["epoch"]) for r in rows if r["split"] == "valid"]
    ink, grid, blue, orange = "#1f2933", "#e4e7eb", "#2f6fde", "#e8590c"
    style = {
        "font.family": "DejaVu Sans",
        "font.size": 10,
        "text.color": ink,
        "axes.labelcolor": ink,
        "xtick.color": "#616e7c",
        "ytick.color": "#616e7c",
    }
    with plt.rc_context(style):
        figure, axes = plt.subplots(figsize=(9, 5.2), dpi=160)
        steps, losses = [s for s, _ in train], [v for _, v in train]
        axes.plot(steps, losses, color=blue, alpha=0.25, linewidth=0.9)
        axes.plot(steps, _smooth(losses), color=blue, linewidth=2, label="training, smoothed")
        if valid:
            xs, ys = [s for s, _, _ in valid], [v for _, v, _ in valid]
            best = min(range(len(ys)), key=ys.__getitem__)
            looks = {"color": orange, "marker": "o", "markersize": 4.5, "markeredgewidth": 1.5}
            axes.plot(
                *(xs, ys),
                **looks,
                linewidth=2,
                markerfacecolor="white",
                label=f"validation, best perplexity {perplexity(ys[best]):,.0f}",
            )
            axes.plot(xs[best], ys[best], **looks)  # filled: the best
        axes.set_xlabel("step")
        axes.set_ylabel("cross entropy per word")
        axes.grid(axis="y", color=grid)
        axes.set_axisbelow(True)
        axes.margins(x=0.01)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        right = axes.secondary_yaxis("right")
        right.set_ylabel("perplexity")
        right.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{perplexity(y):,.0f}"))
        for side in ("top", "left", "right"):
            axes.spines[side].set_visible(False)
        right.spines["right"].set_visible(False)
        right.tick_params(length=0)
        axes.tick_params(length=0)
        axes.legend(frameon=False, loc="upper right")
        figure.text(0.065, 0.955, title, fontsize=13, fontweight="bold")
        figure.text(0.065, 0.912, subtitle, fontsize=9, color="#616e7c")
        figure.subplots_adjust(left=0.065, right=0.93, top=0.88, bottom=0.1)
        # Numbers of more digits need more room at the right side.
        figure.savefig(path, bbox_inches="tight", pad_inches=0.2)
        plt.close(figure)
    return True


def _smooth(values: list[float], window: float = 0.9) -> list[float]:
    """Exponential mean, corrected for its start."""
    out, mean = [], 0.0
    for i, value in enumerate(values, 1):
        mean = window * mean + (1 - window) * value
        out.append(mean / (1 - window**i))
    return out
