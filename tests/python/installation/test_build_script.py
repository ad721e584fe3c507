"""./build.sh, the command by which ONNX Runtime Training's wheel was built."""

import re
import subprocess

import pytest
from checkout import ROOT


def build(*words: str, code: int = 0) -> str:
    done = subprocess.run(
        [ROOT / "build.sh", *words, "--dry_run"], capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


@pytest.mark.parametrize(
    "words",
    [
        "--enable_training --config RelWithDebInfo --build_wheel",
        "--enable_training --config=RelWithDebInfo --build_wheel",
        "--config RelWithDebInfo --update --build --build_wheel --enable_training --skip_tests",
    ],
)
def test_guide(words: str) -> None:
    made = build(*words.split())
    assert "make wheel" in made
    assert "build/Linux/RelWithDebInfo/dist" in made


def test_phases() -> None:
    assert build("--config", "Release") == "make build\n"
    assert build("--update", "--build", "--test") == "make test\n"
    for words in ("--parallel 3", "--parallel=3"):
        assert "make wheel JOBS=3\n" in build("--build_wheel", *words.split())
    for words in ("--parallel", "--parallel 0", "--parallel=0"):
        assert "make wheel\n" in build(*words.split(), "--build_wheel")
    assert "/elsewhere/Release/dist\n" in build("--build_wheel", "--build_dir", "/elsewhere")


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        ("--use_cuda", "docs/providers.md"),
        ("--use_rocm", "docs/providers.md"),
        ("--cuda_home /usr/local/cuda", "docs/providers.md"),
        ("--use_mpi", "docs/wrappers.md"),
        ("--enable_nccl=1", "docs/wrappers.md"),
        ("--build_shared_lib", "make install"),
        ("--cmake_extra_defines X=1", "CMAKE_ARGS"),
        ("--config Fast", "Release, RelWithDebInfo or MinSizeRel"),
        ("--config Debug", "-DCMAKE_BUILD_TYPE=Debug"),
        ("--config", "needs a value"),
        ("--parallel=-1", "a number"),
        ("--arm64", "not known"),
        ("RelWithDebInfo", "not known"),
        ("--build_dir", "needs a value"),
    ],
)
def test_refused_by_name(words: str, remedy: str) -> None:
    text = build("--enable_training", *words.split(), code=2)
    assert re.split("[= ]", words, maxsplit=1)[0] in text and remedy in text
