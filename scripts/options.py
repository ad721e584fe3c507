"""Write docs/options.md: the options of training, out of the engine's table of them."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "python")]

from steep import _steep  # noqa: E402

FILE = ROOT / "docs" / "options.md"
HEAD = """# Options of training

For users of all languages: the name, the default and the flag of each option. `scripts/options.py`
writes this page from the table in `src/train/option_rows.h`; `include/steep/steep.h` and
`help(steep.TrainingSession)` say more.

The keyword is that of `steep.TrainingSession` and the key of `steep_options` in C. If the name in
Python differs, the column has it too. C++ names a field of `TrainingOptions`. Groups of parameters,
updates, limits and providers have more than one value: see [training](training.md),
[limits](limits.md) and [providers](providers.md).

| keyword | C++ | flag of `steep train` | default | meaning |
| --- | --- | --- | --- | --- |
"""
IN_PYTHON = {
    "beta1": "`betas[0]`",
    "beta2": "`betas[1]`",
    "epsilon": "`eps`",
    "loss_scale_min": "not available",
    "loss_scale_max": "not available",
}


def shown(value: object) -> str:
    """Return a default for the table."""
    if value is None or value in ("", []):
        return ""
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def text() -> str:
    """Return the page."""
    options = _steep.TrainingOptions()
    lines = []
    for part, field, keyword, flag, of_flag in _steep.option_rows():
        owner = getattr(options, part) if part else options
        own = f" (Python: {IN_PYTHON[keyword]})" if keyword in IN_PYTHON else ""
        cpp = f"{part}.{field}" if part else field
        name = "`--optimizer`" if keyword == "optimizer" else f"`{flag.lstrip('!')}`" * bool(flag)
        default = shown(getattr(owner, field))
        about = ("with the flag: " if flag.startswith("!") else "") + " ".join(of_flag.split())
        cells = [f"`{keyword}`{own}", f"`{cpp}`", name, default, about]
        lines.append("|" + "".join(f" {cell} |" if cell else " |" for cell in cells))
    return HEAD + "\n".join(lines) + "\n"


if __name__ == "__main__":
    FILE.write_text(text())
