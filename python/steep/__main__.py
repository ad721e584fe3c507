"""``python -m steep``: runs the ``steep`` program that was installed with this package."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path


def _program() -> Path | None:
    """Return the path of the program: in the package (wheel) or in the build folder (checkout)."""
    here = Path(__file__).resolve().parent
    candidates = [here / "bin/steep", here.parents[1] / "build/release/steep"]
    return next((p for p in candidates if p.is_file() and os.access(p, os.X_OK)), None)


def main() -> None:
    """Replace this process by the program, which then has its signals and exit status."""
    program = _program()
    if program is None:
        sys.exit(
            "steep: the program `steep` is not installed beside this package; "
            "install it again: pip install --force-reinstall steep"
        )
    sys.stdout.flush()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, which execv would pass on
    os.execv(program, [str(program), *sys.argv[1:]])


if __name__ == "__main__":
    main()
