"""What shells offer for a word that is not finished; the nearest to a wrong one."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from steep_program import built, steep


def offered(*words: str) -> list[str]:
    return steep("completion", "--", *words).split()


def in_help(*command: str) -> set[str]:
    """Long options, as --help lists them."""
    lines = steep(*command, "--help").splitlines()
    listed = [w for line in lines if re.match(r" +-", line) for w in line.split("  ")[1].split()]
    names = {w.split(",")[-1].removesuffix("{false}") for w in listed}
    return {name for name in names if name.startswith("--")}


def test_all_commands_and_options() -> None:
    listed = steep("--help").partition("Subcommands:")[2]
    commands = re.findall(r"^  +([\w-]+) ", listed, re.M)
    assert offered("") == commands == [*commands]
    assert set(offered("--")) == {"--help", "--version"}
    for command in commands:
        found = set(offered(command, "--"))
        assert "--help" in found and found >= in_help(command), command


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("tr",), ["train"]),
        (("train", "m.onnx", "--val"), ["--validation", "--validation-split"]),
        (("train", "--schedule", ""), ["constant", "linear", "cosine"]),
        (("train", "--schedule", "c"), ["constant", "cosine"]),
        (("train", "--schedule=li"), ["--schedule=linear"]),
        (("train", "--schedule", "=", "li"), ["linear"]),  # as bash cuts it
        (("train", "--schedule", "="), ["constant", "linear", "cosine"]),
        (("train", "--optimizer", "adam"), ["adam", "adamw", "adamax"]),
        (("eval", "m.onnx", "--loss", "h"), ["huber"]),
        (("train", "--disable-pass", "fuse_matmul,fuse_att"), ["fuse_matmul,fuse_attention"]),
        (("completion", ""), ["bash", "zsh", "fish"]),
        (("completion", "bash", ""), []),
        (("train", ""), []),  # a file
        (("train", "--data", "t"), []),
        (("train", "--no-shuffle", ""), []),  # takes no word
        (("train", "--loss", "mse", "--check"), ["--check-finite", "--checkpoint",
                                                 "--checkpoint-every"]),
        (("trian", "--"), []),
        (("train", "--lsos=m"), []),
    ],
)  # fmt: skip
def test_words(words: tuple[str, ...], expected: list[str]) -> None:
    assert sorted(offered(*words)) == sorted(expected)


def test_the_script_of_bash(tmp_path: Path) -> None:
    def completed(line: str) -> list[str]:
        words = line.split(" ")
        steps = f"""source <({program} completion bash)
            COMP_WORDS=({" ".join(repr(w) for w in [program, *words])}) COMP_CWORD={len(words)}
            _steep; printf '%s\\n' "${{COMPREPLY[@]}}" """
        done = subprocess.run(
            ["bash", "-c", steps], capture_output=True, text=True, check=True, timeout=60
        )
        return done.stdout.split()

    program = built("steep")
    assert completed("tra") == ["train"]
    assert completed("train --precision ") == ["fp32", "bf16", "fp16"]
    assert completed("train --data x") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_reads_its_script(shell: str, tmp_path: Path) -> None:
    script = steep("completion", shell)
    assert "completion --" in script
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "script").write_text(script)
    subprocess.run([shell, "-n", tmp_path / "script"], check=True, timeout=60)


def test_the_nearest_is_named() -> None:
    assert "did you mean 'completion'?" in steep("complete", code=2)
    assert "did you mean 'bash'?" in steep("completion", "bahs", code=2)
    assert "did you mean '--schedule'?" in steep("train", "--shedule", code=2)
    text = steep("train", "m.onnx", "--data", "d.npz", "--schedule", "cosin", code=2)
    assert "did you mean 'cosine'?" in text
