#!/usr/bin/env python3
"""Write docs/commands.md: what the program's `--help` prints, command by command.

usage: scripts/commands.py [PROGRAM]
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROGRAM = ROOT / "build" / "release" / "steep"
FILE = ROOT / "docs" / "commands.md"
COMMANDS = (
    "train",
    "eval",
    "predict",
    "check",
    "dump",
    "grad",
    "info",
    "diff",
    "lr-find",
    "plan",
    "plot",
    "bench-kernels",
    "launch",
    "completion",
)
HEAD = """# Commands

For users of the `steep` program: what each command's `--help` prints.

`make commands` writes this page. `python -m steep` runs the same program.
"""


def help_of(program: Path, *command: str) -> str:
    """What `program command --help` prints, as an indented block."""
    process = subprocess.run(
        [program, *command, "--help"], capture_output=True, text=True, check=True, env={}
    )
    lines = process.stdout.strip().splitlines()
    return "\n".join(f"    {line.rstrip()}".rstrip() for line in lines)


def text(program: Path = PROGRAM) -> str:
    """The whole page."""
    parts = [HEAD, "## steep\n\n" + help_of(program) + "\n"]
    parts += [f"## steep {c}\n\n{help_of(program, c)}\n" for c in COMMANDS]
    return "\n".join(parts)


if __name__ == "__main__":
    FILE.write_text(text(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else PROGRAM))
