"""A build on a system that lacks libraries, by CMake alone or by pip."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from checkout import ROOT


@pytest.mark.parametrize(
    ("runtime", "libraries", "packages"),
    [
        ("OFF", ["hwy", "Protobuf"], "libhwy-dev libprotobuf-dev protobuf-compiler"),
        ("ON", ["fmt"], "libfmt-dev"),
    ],
)
def test_all_that_lack_are_named_at_once(
    runtime: str, libraries: list[str], packages: str, tmp_path: Path
) -> None:
    words = ["cmake", "-S", ROOT, "-B", tmp_path, "-G", "Ninja", f"-DSTEEP_RUNTIME={runtime}"]
    words += [f"-DPython_EXECUTABLE={sys.executable}"]
    words += [f"-DCMAKE_DISABLE_FIND_PACKAGE_{name}=ON" for name in libraries]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    said = " ".join(done.stderr.split())
    assert done.returncode == 1
    assert f"are missing, or too old: {', '.join(libraries)} On Debian" in said
    assert f"apt-get install {packages} Elsewhere" in said
    assert said.count("CMake Error") == 1


def test_the_packages_are_those_that_make_installs() -> None:
    names = set()
    for file in ("dependencies", "runtime"):
        text = (ROOT / "cmake" / f"{file}.cmake").read_text()
        for packages in re.findall(r'^steep_require\(\w+ "?([^" )]+)', text, re.M):
            names.update(packages.split(";"))
    installed = (ROOT / "scripts" / "system_packages").read_text()
    assert len(names) > 8
    assert [name for name in sorted(names) if name not in installed] == []
