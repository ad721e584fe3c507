"""The losses of a run, in one picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def draw(losses: Sequence[float], title: str, path: Path) -> bool:
    """Draw a PNG. Returns False where matplotlib is missing."""
    try:
        import matplotlib as mpl
    except ImportError:
        return False
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 3.6), dpi=160)
    axes.semilogy(range(1, len(losses) + 1), losses, color="#2f6fde")
    axes.set(title=title, xlabel="step", ylabel="mean squared error")
    axes.grid(color="#e4e7eb")
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)
    return True
