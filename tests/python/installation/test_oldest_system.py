"""What the program and the bindings need of glibc and libstdc++: that of Ubuntu 22.04 is enough."""

import platform
import re
import subprocess
from pathlib import Path

import pytest
from checkout import ROOT

# docs/platforms.md and the wheel's tag (manylinux_2_34) say so
OLDEST = {"GLIBC": (2, 34), "GLIBCXX": (3, 4, 29), "CXXABI": (1, 3, 13)}
BUILT = [ROOT / "build" / "release" / "steep", *(ROOT / "python" / "steep").glob("_steep.*.so")]


def version(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))


@pytest.mark.skipif(
    version(platform.libc_ver()[1] or "0") > (2, 36), reason="a newer system has newer symbols"
)
@pytest.mark.parametrize("file", BUILT, ids=lambda path: path.name)
def test_symbols_are_of_versions_that_older_systems_have(file: Path) -> None:
    command = ["readelf", "--version-info", "--wide", file]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    found = set(re.findall(r"Name: (GLIBC|GLIBCXX|CXXABI)_([\d.]+)", ran.stdout))
    assert {name for name, _ in found} == {*OLDEST}
    assert {entry for entry in found if version(entry[1]) > OLDEST[entry[0]]} == set()
