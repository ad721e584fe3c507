"""A compiled part that is missing, for another Python, damaged or of another version."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from checkout import ROOT

import steep
from steep._steep import __file__ as EXTENSION

SOURCES = Path(steep.__file__).parent
FILES = (
    *("__init__.py", "backends.py", "dependencies.py", "errors.py", "extension.py"),
    *("inspection.py", "providers.py", "session"),
)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of what `import steep` reads, without the compiled part."""
    copy = tmp_path / "of tests" / "steep"
    copy.mkdir(parents=True)
    for name in FILES:
        source = SOURCES / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, copy / name)
    return copy


def import_of(package: Path, *more: Path, **variables: str) -> str:
    """What `import steep` says: the error's kind and text, or its version."""
    code = """
try:
    import steep
except ImportError as error:
    print(type(error).__module__, type(error).__name__, error)
else:
    print(steep.__version__)
"""
    path = os.pathsep.join(str(folder) for folder in (package.parent, *more))
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={**os.environ, "PYTHONPATH": path, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_whole(package: Path) -> None:
    shutil.copy(EXTENSION, package)
    assert import_of(package) == f"{steep.__version__}\n"


def compiled_nowhere(package: Path) -> None:
    del package


def compiled_for_another_python(package: Path) -> None:
    (package / "_steep.cpython-305-x86_64-linux-gnu.so").write_bytes(b"")


def compiled_of_another_version(package: Path) -> None:
    (package / "_steep.py").write_text("__version__ = '9.8.7'\n")


def compiled_before_versions_were_told(package: Path) -> None:
    (package / "_steep.py").write_text("")


def linked_to(package: Path, libraries: str, symbol: str = "") -> None:
    """An extension of C that asks the loader for what is not there."""
    source = package / "_steep.c"
    calls = f"void {symbol}(void); void steep_calls(void) {{ {symbol}(); }}" if symbol else ""
    source.write_text(f"{calls}\nint steep_is_no_module;\n")
    suffix = Path(EXTENSION).name.partition(".")[2]
    command = f"cc -shared -fPIC -Wl,-z,now -o _steep.{suffix} _steep.c {libraries}"
    subprocess.run(command, shell=True, cwd=package, check=True)


def library_missing(package: Path) -> None:
    subprocess.run(
        "echo 'int x;' | cc -shared -fPIC -xc -Wl,-soname,libgone.so.3 -o libgone.so -",
        shell=True,
        cwd=package,
        check=True,
    )
    linked_to(package, "-Wl,--no-as-needed -L. -lgone")


def library_of_another_version(package: Path) -> None:
    linked_to(package, "", "dnnl_of_next_year")


def emptied(package: Path) -> None:
    (package / Path(EXTENSION).name).write_bytes(b"")


PYTHON = f"Python {sys.version_info[0]}.{sys.version_info[1]}"
AGAIN = f"remedy:   install the wheel for {PYTHON} again: pip install --force-reinstall FILE"


@pytest.mark.parametrize(
    ("broken", "parts"),
    [
        (compiled_nowhere, ["The compiled part of Steep is missing", "received: none"]),
        (compiled_for_another_python, ["for another Python", "received: _steep.cpython-305"]),
        (compiled_of_another_version, ["different versions", "received: version 9.8.7"]),
        (compiled_before_versions_were_told, ["different versions", "one that does not say"]),
        (library_missing, ["library that Steep needs is missing", "received: libgone.so.3:"]),
        (library_of_another_version, ["another version", "dnnl_of_next_year"]),
        (emptied, ["cannot be loaded", "file too short"]),
    ],
)
def test_typed_error_with_the_remedy(package: Path, broken, parts: list[str]) -> None:
    broken(package)
    text = import_of(package)
    assert text.startswith("steep.errors InstallationError "), text
    for part in [*parts, f"node:     {package}", AGAIN]:
        assert part in text


def test_a_library_of_the_same_name_that_was_loaded_before(package: Path, tmp_path: Path) -> None:
    library_of_another_version(package)
    libraries = package.parent / "steep.libs"
    libraries.mkdir()
    elsewhere = tmp_path / "elsewhere"  # LD_PRELOAD has a space between paths
    elsewhere.mkdir()
    for folder in (libraries, elsewhere):
        command = "echo 'int x;' | cc -shared -fPIC -xc -o libdnnl.so.3 -"
        subprocess.run(command, shell=True, cwd=folder, check=True)
    other = elsewhere / "libdnnl.so.3"
    text = import_of(package, LD_PRELOAD=str(other))
    assert "another version than it was built with" in text
    assert f"remedy:   import steep first, or do not load {other} in this process" in text


def other_onednn(folder: Path, code: str) -> Path:
    """A library of the name that every package but ours gives to oneDNN."""
    library = folder / "libdnnl.so.3"
    command = "cc -shared -fPIC -xc -Wl,-soname,libdnnl.so.3 -o libdnnl.so.3 -"
    subprocess.run(command, shell=True, cwd=folder, check=True, input=code, text=True)
    return library


RUN = """
import numpy as np, onnx.parser, steep
model = onnx.parser.parse_model(
    '<ir_version: 8, opset_import: ["": 17]> g (float[2,3] x, float[3,2] w) => (float[2,2] y)'
    '{ y = MatMul(x, w) }')
feed = {"x": np.ones((2, 3), np.float32), "w": np.ones((3, 2), np.float32)}
try:
    print(steep.InferenceSession(model).run(None, feed)[0].tolist())
except steep.ProviderError as error:
    print(error)
"""


def said_by(code: str, **variables: str) -> str:
    path = {"PYTHONPATH": str(SOURCES.parent)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **path, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_an_onednn_that_another_package_loaded_is_not_ours(tmp_path: Path) -> None:
    load = f"import ctypes; ctypes.CDLL({str(other_onednn(tmp_path, 'int x;'))!r})\n"
    maps = "print([line.split('/')[-1] for line in open('/proc/self/maps') if 'libdnnl' in line])"
    for code in (load + RUN + maps, RUN + load + maps):
        result, libraries = said_by(code).splitlines()
        assert result == "[[3.0, 3.0], [3.0, 3.0]]"
        assert "libdnnl.so.3" in libraries and "libdnnl-" in libraries


def test_an_onednn_that_is_loaded_for_all_is_refused(tmp_path: Path) -> None:
    version = """
struct { int major, minor, patch; const char* hash; unsigned cpu, gpu; } v = {9, 8, 7, "", 1, 0};
const void* dnnl_version(void) { return &v; }
"""
    said = said_by(RUN, LD_PRELOAD=str(other_onednn(tmp_path, version)))
    assert said.startswith("Another library of oneDNN takes the place")
    assert "libdnnl-" in said and "received: oneDNN 9.8.7 with other threads" in said
    assert "LD_PRELOAD" in said.splitlines()[-1]


def test_a_wheel_that_is_not_unpacked(package: Path, tmp_path: Path) -> None:
    archive = Path(shutil.make_archive(str(tmp_path / "steep"), "zip", package.parent))
    text = import_of(archive / "steep")
    assert "remedy:   a wheel is not imported as it is: pip install FILE" in text


def test_old_system_library(package: Path, monkeypatch) -> None:
    """The loader's words where glibc is older; this machine's has all versions."""
    del package
    from steep import extension

    words = "/lib/libc.so.6: version `GLIBC_2.34' not found (required by steep/_steep.abi3.so)"

    def fails(name: str) -> None:
        raise ImportError(words)

    monkeypatch.setattr(extension.importlib, "import_module", fails)
    with pytest.raises(steep.InstallationError, match="system is older") as refused:
        extension.require(steep.__version__)
    assert refused.value.received == words
    assert "build Steep on this system" in refused.value.remedy


def test_checkout_that_is_not_built_hides_what_is_installed(package: Path, tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    shutil.copy(ROOT / "CMakeLists.txt", checkout)
    sources = checkout / "python" / "steep"
    shutil.copytree(package, sources)
    assert f"remedy:   make -C {checkout} build\n" in import_of(sources)

    site = tmp_path / "site"
    shutil.copytree(package, site / "steep")
    shutil.copy(EXTENSION, site / "steep")
    (site / "steep-0.1.0.dist-info").mkdir()
    (site / "steep-0.1.0.dist-info" / "METADATA").write_text("Name: steep\nVersion: 0.1.0\n")
    text = import_of(sources, site)
    assert f"or take {sources.parent} from PYTHONPATH, to use {site / 'steep'}" in text
