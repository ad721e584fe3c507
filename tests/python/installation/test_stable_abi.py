"""The bindings compile for CPython's stable ABI, of which the wheel for 3.12 and newer is made."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from checkout import ROOT

BINDINGS = sorted(path.name for path in (ROOT / "python" / "bindings").glob("*.cc"))

# nanobind's headers call two functions of 3.12's stable ABI; 3.11's headers have the rest.
DECLARATIONS = """
#include <Python.h>
extern "C" {
PyObject* PyObject_Vectorcall(PyObject*, PyObject* const*, size_t, PyObject*);
PyObject* PyObject_VectorcallMethod(PyObject*, PyObject* const*, size_t, PyObject*);
}
"""


def compile_command(source: str) -> tuple[list[str], str]:
    """The command of the build that compiles a file of the bindings, and where it runs."""
    commands = ROOT / "build" / "release" / "compile_commands.json"
    if not commands.exists():
        pytest.skip("`make build` writes the compile commands")
    for entry in json.loads(commands.read_text()):
        if Path(entry["file"]) == ROOT / "python" / "bindings" / source:
            words = shlex.split(re.sub(r" -o \S+", "", entry["command"]))
            # What stands before the compiler is the launcher (ccache with its settings).
            compiler = next(i for i, w in enumerate(words) if w.endswith(("++", "clang", "gcc")))
            return words[compiler:], entry["directory"]
    pytest.fail(f"the build does not compile {source}")


@pytest.mark.skipif(sys.version_info < (3, 11), reason="buffers are stable from 3.11 on")
@pytest.mark.parametrize("source", BINDINGS)
def test_bindings_use_the_stable_abi_only(source: str, tmp_path: Path) -> None:
    command, folder = compile_command(source)
    declarations = tmp_path / "declarations.h"
    declarations.write_text(DECLARATIONS)
    limited = ["-DPy_LIMITED_API=0x030B0000", "-include", str(declarations)]
    result = subprocess.run(
        [*command, *limited, "-fsyntax-only", "-O0"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
