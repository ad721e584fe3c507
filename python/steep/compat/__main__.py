"""``python -m steep.compat script.py …``: runs a script with ONNX Runtime Training's names."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from steep.compat.import_hook.finder import install

USAGE = """\
usage: python -m steep.compat script.py [arguments]
       python -m steep.compat -m module [arguments]

Runs a Python script, in which `onnxruntime` and `torch_ort` are Steep's."""


def main() -> None:
    """Run the script or module of the command line, as Python would."""
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        sys.exit(0 if arguments else 2)
    install()
    if arguments[0] == "-m":
        if len(arguments) == 1:
            sys.exit(USAGE)
        sys.argv = arguments[1:]
        sys.path[0] = str(Path.cwd())
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return
    script = arguments[0]
    if not Path(script).exists():
        sys.exit(f"python -m steep.compat: there is no file {script}")
    sys.argv = arguments
    sys.path[0] = str(Path(script).resolve().parent)
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
