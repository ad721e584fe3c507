"""``python -m onnxruntime.training.utils.hooks.merge_activation_summary``: two runs side by side.

Each run's ``StatisticsSubscriber`` wrote a folder. What both have is written next to each other, in
the order of the first; what only one has is listed by itself.
"""

from __future__ import annotations

import argparse
from pathlib import Path


def merge(pt_dir: Path, ort_dir: Path, output_dir: Path) -> None:
    """Write ``merge_tensor.txt``, ``pt_only_tensors.txt``, ``ort_only_tensors.txt`` by step.

    Raises:
        FileNotFoundError: a folder has no steps.
    """
    steps = [_steps(folder) for folder in (pt_dir, ort_dir)]
    for step in sorted(steps[0] & steps[1], key=lambda name: int(name.partition("_")[2])):
        orders = [(folder / step / "order.txt").read_text().split() for folder in (pt_dir, ort_dir)]
        common = [name for name in orders[0] if name in set(orders[1])]
        folder = output_dir / step
        folder.mkdir(parents=True, exist_ok=True)
        blocks = []
        for name in common:
            values = [(run / step / name).read_text() for run in (pt_dir, ort_dir)]
            blocks.append(f"{name}\n\nPyTorch\n{values[0]}\nORTModule\n{values[1]}\n")
        (folder / "merge_tensor.txt").write_text("\n".join(blocks))
        for file, names in zip(("pt_only", "ort_only"), orders, strict=True):
            rest = "".join(f"{name}\n" for name in names if name not in common)
            (folder / f"{file}_tensors.txt").write_text(rest)


def _steps(folder: Path) -> set[str]:
    steps = {file.parent.name for file in folder.glob("step_*/order.txt")}
    if not steps:
        raise FileNotFoundError(f"{folder} has no step_N/order.txt")
    return steps


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="merge_activation_summary", description=__doc__)
    for name, what in (
        ("--pt_dir", "the folder of the run of PyTorch"),
        ("--ort_dir", "the folder of the run of an ORTModule"),
        ("--output_dir", "a folder for what is written"),
    ):
        parser.add_argument(name, type=Path, required=True, help=what)
    arguments = parser.parse_args()
    merge(arguments.pt_dir, arguments.ort_dir, arguments.output_dir)


if __name__ == "__main__":
    main()
