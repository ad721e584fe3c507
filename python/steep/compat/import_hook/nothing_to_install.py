"""``python -m torch_ort.configure``, which compiled PyTorch extensions; here it does nothing."""

from __future__ import annotations


def main() -> None:
    """Print that there is nothing to compile."""
    print("Steep needs no PyTorch extensions: there is nothing to configure.")
