"""What a build for another processor takes: libraries of that processor, from a folder."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from checkout import ROOT
from steep_program import output_of

SYSROOT = ROOT / "scripts" / "sysroot"

# Puts the package where it is asked to, and counts how often.
APT = """#!/bin/sh
echo "$@" >>"$ASKED"
for word; do
  case $word in
    Dir::Cache=*) cache=${word#Dir::Cache=} ;;
    install) cp "$PACKAGE" "$cache/archives/" ;;
  esac
done
"""


@pytest.fixture
def apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An `apt-get` that has one package, with an absolute link; returns the file of its calls."""
    root = tmp_path / "package"
    (root / "DEBIAN").mkdir(parents=True)
    control = (
        "Package: libz\nVersion: 1\nArchitecture: arm64\nMaintainer: a <a@b>\nDescription: z\n"
    )
    (root / "DEBIAN" / "control").write_text(control)
    (root / "lib").mkdir()
    (root / "lib" / "libz.so.1").write_text("for ARM")
    (root / "usr" / "lib").mkdir(parents=True)
    (root / "usr" / "lib" / "libz.so").symlink_to("/lib/libz.so.1")
    output_of("dpkg-deb", "--build", root, tmp_path / "libz.deb")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "apt-get").write_text(APT)
    (tmp_path / "bin" / "apt-get").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("ASKED", str(tmp_path / "asked"))
    monkeypatch.setenv("PACKAGE", str(tmp_path / "libz.deb"))
    return tmp_path / "asked"


needs_dpkg = pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="not a Debian system")


@needs_dpkg
def test_links_stay_in_the_folder_and_the_state_of_apt_as_it_is(apt: Path, tmp_path: Path) -> None:
    folder = tmp_path / "root"
    output_of(SYSROOT, "arm64", folder, "libz-dev")
    assert (folder / "usr" / "lib" / "libz.so").resolve() == folder / "lib" / "libz.so.1"
    calls = apt.read_text().splitlines()
    for call in calls:
        assert "APT::Architecture=arm64" in call
        for name in ("Dir::State=", "Dir::State::status=", "Dir::Cache="):
            assert f"{name}{folder}/" in call
    assert not (folder / "apt").exists()


@needs_dpkg
def test_a_folder_is_made_again_for_other_packages_only(apt: Path, tmp_path: Path) -> None:
    folder = tmp_path / "root"
    output_of(SYSROOT, "arm64", folder, "libz-dev")
    once = apt.read_text()
    output_of(SYSROOT, "arm64", folder, "libz-dev")
    assert apt.read_text() == once
    output_of(SYSROOT, "arm64", folder, "libz-dev", "libpng-dev")
    assert apt.read_text() != once


def test_without_apt_it_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "bash").symlink_to(shutil.which("bash") or "")
    done = subprocess.run(
        [tmp_path / "bash", SYSROOT, "arm64", tmp_path / "root", "libz-dev"],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "not a Debian system" in done.stderr and str(tmp_path / "root") in done.stderr


PROJECT = """
cmake_minimum_required(VERSION 3.22)
project(cross NONE)
function(steep_ask_python out)
  set(${out} "${CMAKE_CURRENT_SOURCE_DIR}/pyarrow" PARENT_SCOPE)
endfunction()
set(STEEP_PARQUET AUTO)
include(${parquet})
"""


def test_libraries_in_wheels_of_this_machine_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "CMakeLists.txt").write_text(PROJECT)
    for name in ("arrow", "parquet"):
        (tmp_path / "pyarrow" / "include" / name).mkdir(parents=True)
        (tmp_path / "pyarrow" / f"lib{name}.so.2500").write_text("for x86-64")
    said = output_of(
        *("cmake", "-S", tmp_path, "-B", tmp_path / "build", "-G", "Ninja"),
        *("-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64"),
        f"-Dparquet={ROOT / 'cmake' / 'parquet.cmake'}",
    )
    assert "No Apache Arrow" in said
