"""The losses of both, how far apart they are, and their time, in one picture."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from race import PYTORCH, STEEP, Result

INK, QUIET, GRID = "#1f2933", "#616e7c", "#e4e7eb"
COLOURS = {STEEP: "#2f6fde", PYTORCH: "#e8590c"}


def draw(result: Result, tokens: int, path: Path, title: str, subtitle: str) -> bool:
    """Draw a PNG; tokens: of a step. Returns False where matplotlib is missing."""
    try:
        import matplotlib as mpl
    except ImportError:
        return False
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    style = {
        "font.family": "DejaVu Sans",
        "font.size": 10,
        "text.color": INK,
        "axes.labelcolor": INK,
        "axes.titlecolor": INK,
        "xtick.color": QUIET,
        "ytick.color": QUIET,
    }
    with plt.rc_context(style):
        figure = plt.figure(figsize=(10, 5.4), dpi=160)
        grid = figure.add_gridspec(
            2, 2, width_ratios=(2.5, 1), height_ratios=(3, 1.15), wspace=0.22, hspace=0.16
        )
        losses = figure.add_subplot(grid[0, 0])
        _losses(losses, result)
        _apart(figure.add_subplot(grid[1, 0], sharex=losses), result)
        _time(figure.add_subplot(grid[:, 1]), result, tokens)
        figure.text(0.065, 0.945, title, fontsize=13, fontweight="bold")
        figure.text(0.065, 0.9, subtitle, fontsize=9, color=QUIET)
        figure.subplots_adjust(left=0.065, right=0.98, top=0.84, bottom=0.1)
        figure.savefig(path)
        plt.close(figure)
    return True


def _plain(axes: Any, grid: str) -> None:
    axes.grid(axis=grid, color=GRID)
    axes.set_axisbelow(True)
    axes.tick_params(length=0)
    for side in ("top", "left", "right", "bottom"):
        axes.spines[side].set_visible(False)


def _losses(axes: Any, result: Result) -> None:
    steps = range(1, result.steps + 1)
    looks = {PYTORCH: {"linewidth": 5, "alpha": 0.35}, STEEP: {"linewidth": 1.6}}
    for each in (result.torch, result.steep):  # the thin line over the broad one
        axes.plot(
            steps,
            each.losses[: result.steps],
            color=COLOURS[each.name],
            label=each.name,
            solid_capstyle="round",
            **looks[each.name],
        )
    axes.set_title("loss", loc="left", fontsize=10)
    axes.legend(frameon=False, loc="upper right")
    axes.tick_params(labelbottom=False)
    axes.margins(x=0.01)
    _plain(axes, "y")


def _apart(axes: Any, result: Result) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

    none = 1e-8  # stands for no difference: the next loss in float32 is further away
    points = [(i, d) for i, d in enumerate(result.differences(), 1) if math.isfinite(d)]
    axes.semilogy([i for i, _ in points], [max(d, none) for _, d in points], ".", color=INK, ms=4)
    axes.set_title("difference of the two losses", loc="left", fontsize=10)
    axes.set_ylim(none / 2, max([2e-3, *(3 * d for _, d in points)]))
    axes.set_xlabel("step")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_locator(FixedLocator([none, 1e-6, 1e-4, 1e-2, 1, 100]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:.0e}" if y > none else "none"))
    _plain(axes, "y")


def _time(axes: Any, result: Result, tokens: int) -> None:
    both = (result.torch, result.steep)
    seconds = [sum(each.seconds[1 : result.steps]) for each in both]
    bars = axes.bar(
        [each.name for each in both], seconds, color=[COLOURS[e.name] for e in both], width=0.66
    )
    for bar, value in zip(bars, seconds, strict=True):
        speed = f"\n{tokens * (result.steps - 1) / value:,.0f} tokens/s" if value else ""
        axes.annotate(
            f"{value:.1f} s{speed}" if value >= 1 else f"{1000 * value:.2g} ms{speed}",
            (bar.get_x() + bar.get_width() / 2, value),
            xytext=(0, 5),
            textcoords="offset points",
            ha="center",
            fontsize=9,
        )
    ratio = result.times_faster()
    if ratio:
        axes.annotate(
            f"{ratio:.2f} ×\nas fast",
            (1, seconds[1] / 2),
            ha="center",
            va="center",
            color="white",
            fontweight="bold",
        )
    timed = result.steps - 1
    axes.set_title(f"time of {timed} step{'s' * (timed != 1)}", loc="left", fontsize=10)
    axes.set_ylim(0, max(*seconds, 1e-9) * 1.15)
    axes.set_yticks([])  # the bars say it
    axes.tick_params(axis="x", labelcolor=INK)
    _plain(axes, "x")
    axes.grid(visible=False)
