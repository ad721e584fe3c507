"""What bench/run.py found, as a table for Markdown and as a picture."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

NAMES = {
    "default": "PyTorch, default",
    "strong": "PyTorch, strong",
    "ort-module": "Steep, ORTModule",
    "loss-inside": "Steep, ORTModule, loss inside",
    "trainer": "Steep, trainer",
    "session": "Steep, TrainingSession",
    "c++": "Steep, C++",
    "scikit-learn": "scikit-learn",
}
COLOURS = {
    "default": "#b8bcc4",
    "strong": "#7d8594",
    "ort-module": "#1f77b4",
    "loss-inside": "#4a9bd4",
    "trainer": "#0b3d66",
}


@dataclass
class Result:
    """Figures of one contestant in one work."""

    step_ms: float
    first_step_s: float
    peak_mib: float | None
    ratio: dict[str, float] = field(default_factory=dict)
    """How many times faster than PyTorch "default" and "strong"; of Steep's contestants only."""


@dataclass
class Row:
    """Figures of one work."""

    work: str
    title: str
    precision: str
    threads: int
    isa: str | None
    results: dict[str, Result] = field(default_factory=dict)
    strong: str | None = None
    """Which of the strong ones was the fastest: "eager" or "compiled"."""
    limit_ms: float | None = None
    failed: dict[str, str] = field(default_factory=dict)

    def share_of_limit(self, name: str) -> float | None:
        if self.limit_ms is None or not self.results[name].ratio:
            return None
        return self.limit_ms / self.results[name].step_ms


def _duration(ms: float) -> str:
    return f"{ms:.0f} ms" if ms >= 10 else f"{ms:.1f} ms" if ms >= 1 else f"{ms * 1e3:.1f} µs"


def table(rows: list[Row], head: bool = True) -> str:
    lines = []
    if head:
        lines = [
            "| work | run by | a step | vs default | vs strong | share of limit | peak MiB "
            "| first step s |",
            "|---" * 8 + "|",
        ]
    for row in rows:
        title = row.title
        for name, label in NAMES.items():
            if (result := row.results.get(name)) is None:
                continue
            share = row.share_of_limit(name)
            cells = [
                title,
                f"{label} ({row.strong})" if name == "strong" else label,
                _duration(result.step_ms),
                *(
                    f"{result.ratio[rival]:.2f}×" if rival in result.ratio else ""
                    for rival in ("default", "strong")
                ),
                f"{share:.0%}" if share else "",
                f"{result.peak_mib:.0f}" if result.peak_mib else "",
                f"{result.first_step_s:.1f}",
            ]
            lines.append("| " + " | ".join(cells) + " |")
            title = ""
        if row.limit_ms is not None:
            lines.append(f"| | matrix products alone | {_duration(row.limit_ms)} | | | | | |")
    lines.extend(f"{r.title}: {n} failed: {why}" for r in rows for n, why in r.failed.items())
    return "\n".join(lines)


def plot(rows: list[Row], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = [r for r in rows if r.limit_ms is not None]
    if not rows:
        return
    figure, (time_axes, memory_axes) = plt.subplots(
        1, 2, figsize=(12, 1.2 + 1.5 * len(rows)), sharey=True
    )
    labelled = set()
    for i, row in enumerate(rows):
        names = [n for n in COLOURS if n in row.results]
        for k, name in enumerate(names):
            y = i + (k - (len(names) - 1) / 2) * 0.85 / len(names)
            result = row.results[name]
            for axes, value in ((time_axes, result.step_ms), (memory_axes, result.peak_mib)):
                if value is None:
                    continue
                label = None if name in labelled else NAMES[name]
                height = 0.8 / len(names)
                axes.barh(y, value, height, color=COLOURS[name], label=label)
                axes.text(value, y, f" {value:.0f}", va="center", fontsize=7)
                labelled.add(name)
        time_axes.plot(
            [row.limit_ms] * 2,
            [i - 0.45, i + 0.45],
            "k--",
            lw=1,
            label="matrix products alone" if i == 0 else None,
        )
    for axes, unit in ((time_axes, "ms a step (median)"), (memory_axes, "peak MiB")):
        axes.set_xlabel(unit)
        axes.margins(x=0.12)
        axes.spines[["top", "right"]].set_visible(False)
    time_axes.set_yticks(range(len(rows)), [r.title.replace(", ", ",\n", 1) for r in rows])
    time_axes.invert_yaxis()
    handles, labels = time_axes.get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, fontsize=8, ncols=6, loc="lower center")
    precision = "fp32" if rows[0].precision == "fp32" else "bf16 mixed precision"
    figure.suptitle(
        f"One training step on CPU, AdamW, every parameter trained, {precision}", fontsize=11
    )
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    figure.savefig(path, dpi=130)
    plt.close(figure)
