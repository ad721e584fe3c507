"""`make torch-versions`, with PyTorch as it is here and a tree of tests that pass."""

import os
import shutil
import subprocess
import sys

import pytest
from checkout import ROOT

TESTS = """
import pytest

def test_parity(): pass

@pytest.mark.patterns
def test_pattern(): pass

@pytest.mark.matrix
def test_matrix(): pass
"""
FOLDERS = ("compat", "dynamo", "front_doors", "graph", "lowering", "module", "patching")
FOLDERS += ("public_capture", "trainers", "verify")


def run(folder, *releases):
    return subprocess.run(
        [folder / "scripts" / "torch_versions", *releases],
        env=os.environ | {"PIP_NO_INDEX": "1", "JOBS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.fixture
def checkout(tmp_path):
    (tmp_path / "scripts").mkdir()
    for name in ("torch_versions", "step"):
        shutil.copy(ROOT / "scripts" / name, tmp_path / "scripts")
    for name in (".venv", "env"):
        (tmp_path / name).symlink_to(sys.prefix)
    for folder in ("models", *(f"python/{name}" for name in FOLDERS)):
        (tmp_path / "tests" / folder).mkdir(parents=True)
    (tmp_path / "tests" / "models" / "test_architectures.py").write_text(TESTS)
    return tmp_path


def test_a_failed_install_ends_no_later_release(checkout):
    torch = pytest.importorskip("torch")
    done = run(checkout, "9.9", "./env")
    assert done.returncode == 1
    first, *rest = done.stderr.partition("tests fail with PyTorch ")[2].splitlines()
    assert first == "9.9: it is not installed" and not rest, done.stdout + done.stderr
    assert "torch==9.9.*" in done.stderr  # what pip looked for
    release = torch.__version__.partition("+")[0]
    for tests in ("not matrix and not patterns", "patterns", "matrix"):
        assert f"== PyTorch {release}, {tests}" in done.stdout
    assert done.stdout.count("1 passed") == 3


@pytest.mark.parametrize(
    ("wanted", "said"),
    [("newest", "newest is not a release"), ("./nothing", "./nothing/bin/python is missing")],
)
def test_what_is_no_release_is_named(checkout, wanted, said):
    done = run(checkout, "2.15.0", wanted)
    assert done.returncode == 2 and said in done.stderr and not done.stdout


def test_another_version_in_an_environment_is_named(checkout):
    pytest.importorskip("torch")
    folder = checkout / "build" / "torch" / "9.9"
    (folder / "bin").mkdir(parents=True)
    (folder / "ready").touch()
    (folder / "bin" / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (folder / "bin" / "python").chmod(0o755)
    done = run(checkout, "9.9")
    assert done.returncode == 1 and "PyTorch 9.9 is wanted, and" in done.stderr
