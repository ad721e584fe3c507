"""README and docs install the wheel of `make wheel`, also where dist has two of them."""

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from checkout import ROOT

TAGS = ("cp311-cp311", "cp312-abi3")
PAGES = ("README.md", "docs/quickstart_python.md", "Dockerfile")
COMMAND = re.compile(r"/?[\w/]*\bpip install (?:--no-cache-dir )?(\S*\bdist/\S+\.whl)")


def empty_wheel(folder: Path, tag: str) -> None:
    platform = "linux_x86_64"
    with zipfile.ZipFile(folder / f"steep-0.1.0-{tag}-{platform}.whl", "w") as archive:
        info = "steep-0.1.0.dist-info"
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: steep\nVersion: 0.1.0\n")
        archive.writestr(
            f"{info}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {tag}-{platform}\n"
        )
        archive.writestr(f"{info}/RECORD", "")


@pytest.mark.parametrize("page", PAGES)
def test_two_wheels_are_no_obstacle(page: str, tmp_path: Path) -> None:
    commands = COMMAND.findall((ROOT / page).read_text())
    assert commands, page
    dist = tmp_path / "dist"
    dist.mkdir()
    for tag in TAGS:
        empty_wheel(dist, tag)
    own = "cp311" if sys.version_info < (3, 12) else "cp312"
    for command in commands:
        names = command.replace("/tmp/", "").replace("cp311", own)
        line = f"{sys.executable} -m pip install -q --no-index --no-deps --target there {names}"
        done = subprocess.run(
            line, shell=True, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "there" / "steep-0.1.0.dist-info").is_dir()


def test_no_page_installs_all_wheels() -> None:
    for page in [ROOT / "README.md", ROOT / "Dockerfile", *(ROOT / "docs").rglob("*.md")]:
        assert "dist/steep-*.whl" not in page.read_text(), page


@pytest.mark.parametrize("page", PAGES)
def test_an_environment_comes_first(page: str) -> None:
    """pip of Debian and Ubuntu installs nothing into the system's Python (PEP 668)."""
    text = (ROOT / page).read_text()
    assert 0 < text.index("python3 -m venv ") < COMMAND.search(text).start()
