"""Losses and times of runs, as pictures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

BLUE = "#2f6fde"


@contextmanager
def axes_of(path: Path, **settings: str) -> Iterator[Any]:
    """Give axes, and save their picture; None where matplotlib is missing."""
    try:
        import matplotlib as mpl
    except ImportError:
        yield None
        return
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 3.6), dpi=160)
    axes.set(**settings)
    axes.grid(color="#e4e7eb")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    yield axes
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def draw(
    runs: Mapping[str, Sequence[float]], title: str, path: Path, loss: str = "mean squared error"
) -> bool:
    """Draw losses by step, a line for each run. Returns False where matplotlib is missing."""
    with axes_of(path, title=title, xlabel="step", ylabel=loss) as axes:
        if axes is None:
            return False
        styles = ["-", "--", ":"]
        for (name, losses), style in zip(runs.items(), styles, strict=False):
            axes.semilogy(range(1, len(losses) + 1), losses, style, label=name)
        if len(runs) > 1:
            axes.legend(frameon=False)
    return True


def draw_times(times: Mapping[str, float], title: str, path: Path) -> bool:
    """Draw milliseconds as bars. Returns False where matplotlib is missing."""
    with axes_of(path, title=title, xlabel="milliseconds for an epoch") as axes:
        if axes is None:
            return False
        bars = axes.barh(list(times), list(times.values()), color=BLUE)
        axes.bar_label(bars, fmt="%.3g", padding=3)
        axes.margins(x=0.12)  # for the label of the longest bar
        axes.grid(visible=False, axis="y")  # whose lines would cross out the labels
        axes.invert_yaxis()
    return True
