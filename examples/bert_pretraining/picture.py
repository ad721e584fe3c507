"""The losses of both phases in one picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

INK, QUIET, GRID = "#1f2933", "#616e7c", "#e4e7eb"
LOOKS = {
    "masked_words": ("masked words", "#2f6fde"),
    "next_sentence": ("next sentence", "#e8590c"),
}


def draw(records: list[dict[str, Any]], path: Path, title: str, subtitle: str) -> bool:
    """Draw a PNG. Returns False where matplotlib is missing, or there is nothing to draw."""
    try:
        import matplotlib as mpl
    except ImportError:
        return False
    if len(records) < 2:
        return False
    mpl.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import MaxNLocator

    style = {
        "font.family": "DejaVu Sans",
        "font.size": 10,
        "text.color": INK,
        "axes.labelcolor": INK,
        "xtick.color": QUIET,
        "ytick.color": QUIET,
    }
    with plt.rc_context(style):
        figure, axes = plt.subplots(figsize=(9, 5.2), dpi=160)
        steps = range(1, len(records) + 1)
        for key, (label, colour) in LOOKS.items():
            values = [row[key] for row in records]
            axes.plot(steps, values, color=colour, alpha=0.25, linewidth=0.9)
            axes.plot(steps, _smooth(values), color=colour, linewidth=2, label=label)
        for i in range(1, len(records)):
            if records[i]["phase"] != records[i - 1]["phase"]:
                axes.axvline(i + 0.5, color=QUIET, linewidth=1, linestyle="--")
                axes.text(  # above the curves and the legend
                    *(i + 0.5, 1.005, f"phase {records[i]['phase']}"),
                    transform=axes.get_xaxis_transform(),
                    ha="center",
                    va="bottom",
                    color=QUIET,
                )
        axes.set_xlabel("step")
        axes.set_ylabel("cross entropy")
        axes.set_ylim(bottom=0)
        axes.grid(axis="y", color=GRID)
        axes.set_axisbelow(True)
        axes.margins(x=0.01)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        for side in ("top", "left", "right"):
            axes.spines[side].set_visible(False)
        axes.tick_params(length=0)
        # A frame that hides the line between phases behind it.
        axes.legend(loc="upper right", edgecolor="none", framealpha=1)
        figure.text(0.065, 0.955, title, fontsize=13, fontweight="bold")
        figure.text(0.065, 0.912, subtitle, fontsize=9, color=QUIET)
        figure.subplots_adjust(left=0.065, right=0.97, top=0.88, bottom=0.1)
        figure.savefig(path)
        plt.close(figure)
    return True


def _smooth(values: list[float], window: float = 0.9) -> list[float]:
    """Exponential mean, corrected for its start."""
    out, mean = [], 0.0
    for i, value in enumerate(values, 1):
        mean = window * mean + (1 - window) * value
        out.append(mean / (1 - window**i))
    return out
