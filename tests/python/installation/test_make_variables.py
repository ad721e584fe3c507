"""Variables of `make` that name a path, as a person writes them."""

import os
import subprocess

import pytest
from checkout import ROOT


def recipe(*words: str) -> str:
    """What `make` would run."""
    variables = {**os.environ, "HOME": "/home/ada"}
    done = subprocess.run(
        ["make", "-n", *words], cwd=ROOT, env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("install", "PREFIX=~/steep"), '--prefix "/home/ada/steep"'),
        (("demo", "DATA=~/texts"), '--data "/home/ada/texts"'),
        (("setup", "-B", "PYTHON=~/python/bin/python3"), 'setup "/home/ada/python/bin/python3"'),
        (("wheel", "WHEEL_PYTHONS=~/a/python ~/b/python"), "/home/ada/a/python /home/ada/b/python"),
        (("install", "PREFIX=/opt/a b"), '--prefix "/opt/a b"'),
        (("install",), '--prefix "/usr/local"'),
    ],
)
def test_a_home_folder(words: tuple[str, ...], expected: str) -> None:
    """dash, fish and zsh leave the ~ of PREFIX=~/steep as it is: a folder of that name, here."""
    assert expected in recipe(*words)
