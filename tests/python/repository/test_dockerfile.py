"""The Dockerfile runs the README's commands, on the system that the README names."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from checkout import ROOT

LINES = re.sub(r"\\\n", " ", (ROOT / "Dockerfile").read_text()).splitlines()
README = (ROOT / "README.md").read_text()
INSTALL = README.split("\n## Install\n")[1].split("\n## ")[0]
PROSE = INSTALL.replace("\n", " ")


def stages() -> list[tuple[str, list[list[str]]]]:
    """The image that each stage starts from, and the commands that it runs, in order."""
    found: list[tuple[str, list[list[str]]]] = []
    for line in LINES:
        word, _, rest = line.partition(" ")
        if word == "FROM":
            found.append((rest.split()[0], []))
        elif word == "RUN":
            found[-1][1].extend(shlex.split(part) for part in rest.split("&&"))
    return found


def installed(commands: list[list[str]]) -> set[str]:
    """The packages of `apt-get install`."""
    (words,) = [words for words in commands if words[:2] == ["apt-get", "install"]]
    return {word for word in words[2:] if not word.startswith("-")}


def test_it_builds_where_and_with_what_the_readme_says() -> None:
    (image, commands), _ = stages()
    system = re.search(r"on (\w+) (\d+) or newer with Python", INSTALL)
    assert system is not None and image == f"{system[1].lower()}:{system[2]}"
    (needs,) = re.findall(
        r"or newer, ((?:`[^`]+`,? (?:and )?)+`[^`]+`):", INSTALL.replace("\n", " ")
    )
    tools = {*re.findall(r"`([^`]+)`", needs)}
    # Certificates are for pip. Python 3 itself comes with the headers.
    assert installed(commands) == tools | {"ca-certificates", "python3-dev", "python3-venv"}
    assert {"python3-dev", "python3-venv"} <= {*re.findall(r"[\w+-]+", INSTALL)}


def test_it_runs_the_readme_s_commands() -> None:
    (_, build), (_, use) = stages()
    shown = [line.split("#")[0].split() for line in re.findall(r"^ {4}(.*)$", INSTALL, re.M)]
    assert [words for words in build if words[0] != "apt-get"] == [["make", "wheel"]]
    assert ["make", "wheel"] in shown
    pip = [words for words in use if words[0].endswith("/pip")]
    wheel = shlex.split("pip install dist/steep-*-cp311-*.whl")
    assert wheel in shown and len(pip) == 1 and pip[0][1] == "install"
    assert pip[0][-1] == "/tmp/" + wheel[-1] and "COPY --from=build /steep/dist /tmp/dist" in LINES


def test_a_wheel_is_tried_where_nothing_else_is_built(tmp_path: Path) -> None:
    """The image's first command is `make wheel`: no `make build` made what its tests import."""
    script = re.sub(r"\\\n", " ", (ROOT / "scripts" / "wheel").read_text())
    (words,) = re.findall(r'"\$own" -m pytest (.*)', script)
    for folder in ("tests/python", "python/steep"):
        built = shutil.ignore_patterns("_steep*", "libsteep*", "__pycache__")
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=built)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", *shlex.split(words)],
        cwd=tmp_path,
        env={k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "STEEP_WHEEL")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "test_program_trains_digits" in done.stdout


def test_the_second_stage_has_no_compiler() -> None:
    _, (image, commands) = stages()
    assert image == stages()[0][0] + "-slim"
    assert installed(commands) == {"python3-venv", "libstdc++6"}
    assert 'ENTRYPOINT ["steep"]' in LINES


def test_what_commands_make_is_not_copied_into_it() -> None:
    (folders,) = re.findall(
        r"these commands make are in ([^.]*(?:\.venv)?[^.]*)\.", INSTALL.replace("\n", " ")
    )
    made = {*re.findall(r"`([^`]+)`", folders)}
    ignored = {*(ROOT / ".dockerignore").read_text().split()}
    assert made == {".venv", "build", "dist", "runs"} and made | {".git"} == ignored
    assert "COPY . /steep" in LINES and "WORKDIR /steep" in LINES


def test_the_pages_name_it() -> None:
    command = re.match(r"# (docker build [^&]*\.)", LINES[0])
    assert command is not None and command[1] in (ROOT / "docs" / "install.md").read_text()
