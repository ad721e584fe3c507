"""What a built wheel does in a new environment: `make wheel` runs this with each that it makes.

Nothing here imports Steep, which may be built nowhere but in the wheel.
"""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from checkout import ROOT

pytestmark = pytest.mark.wheel

DIGITS = ROOT / "examples" / "digits_mlp"
(VERSION,) = re.findall('^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.M)


@pytest.fixture(scope="module")
def wheel() -> Path:
    if "STEEP_WHEEL" in os.environ:
        return Path(os.environ["STEEP_WHEEL"])
    minor = sys.version_info[1]
    tag = "cp312-abi3" if minor >= 12 else f"cp3{minor}-cp3{minor}"
    found = sorted((ROOT / "dist").glob(f"steep-{VERSION}-{tag}-*.whl"))
    assert found, "no wheel for this Python in dist/: run `make wheel`"
    return found[-1]


class Environment:
    """A virtual environment with the wheel in it, and nothing of this one's variables."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self.folder = folder
        python = os.environ.get("STEEP_WHEEL_PYTHON", sys.executable)
        subprocess.run([python, "-m", "venv", folder / "env"], check=True)
        self.bin = folder / "env" / "bin"
        network = {k: v for k, v in os.environ.items() if k.startswith("PIP_") or "_CERT" in k}
        self.run("pip", "install", "-q", wheel, **network)

    def run(self, program: str, *words: object, code: int = 0, **variables: str) -> str:
        """Standard output and errors of a program of the environment."""
        done = subprocess.run(
            [str(self.bin / program), *map(str, words)],
            cwd=self.folder,
            env={"HOME": str(self.folder), "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == code, done.stdout
        return done.stdout

    def python(self, code: str, *words: object, **variables: str) -> str:
        return self.run("python", "-c", code, *words, **variables)


@pytest.fixture(scope="module")
def environment(tmp_path_factory, wheel: Path) -> Environment:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, DIGITS / "make_model.py", folder], check=True)
    return Environment(folder, wheel)


def test_contents(wheel: Path) -> None:
    assert "-manylinux_" in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = archive.read(next(n for n in names if n.endswith("/METADATA"))).decode()
    required = {line for line in metadata.splitlines() if line.startswith("Requires-Dist")}
    assert {line.split()[1].split(">")[0] for line in required if "extra" not in line} == {
        "numpy",
        "onnx",
    }
    shipped = [Path(n).name for n in names if "steep.libs/" in n and ".so" in n]
    assert {re.split("[-.]", name, maxsplit=1)[0] for name in shipped} == {
        "libdnnl",
        "libfmt",
        "libgomp",
        "libhwy",
        "libjpeg",
        "libpng16",
        "libprotobuf",
    }
    licences = {n.split("/")[2] for n in names if "/licenses/" in n and not n.endswith("/")}
    assert licences >= {"LICENSE", "NOTICE", "oneDNN", "ONNX", "Protocol_Buffers", "Highway"}
    assert licences >= {"libjpeg-turbo", "libpng"}
    assert licences >= {"fmt", "libgomp", "JSON_for_Modern_C++", "CLI11", "nanobind"}
    assert not [n for n in names if "for_tests" in n or n.endswith((".cc", ".pyc"))]


def test_metadata(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        lines = archive.read(name).decode().partition("\n\n")[0].splitlines()
    fields = {line.partition(": ")[0] for line in lines}
    assert fields >= {"Summary", "License-Expression", "Requires-Python", "Keywords"}
    assert "Classifier: Operating System :: POSIX :: Linux" in lines
    assert not [line for line in lines if "License ::" in line]  # beside an expression: refused


def test_needs_only_libraries_that_every_linux_has(wheel: Path) -> None:
    show = ["auditwheel", "show", wheel]
    said = " ".join(subprocess.run(show, capture_output=True, text=True, check=True).stdout.split())
    platform = wheel.stem.split("-")[-1].split(".")[0]
    assert f'consistent with the following platform tag: "{platform}"' in said


def test_program_trains_digits(environment: Environment) -> None:
    words = "--loss softmax_cross_entropy --optimizer adam --lr 3e-3 --epochs 20 --batch 64"
    files = ("digits.onnx", "--data", "digits_train.npz", "--out", "by_program.onnx")
    environment.run("steep", "train", *files, *words.split())
    assert (environment.folder / "by_program.onnx").is_file()
    assert accuracy(environment, "by_program.onnx") > 0.95


def accuracy(environment: Environment, model: str) -> float:
    code = """
import sys, numpy as np, steep
test = np.load("digits_test.npz")
(logits,) = steep.InferenceSession(sys.argv[1]).run(None, {"x": test["x"]})
assert "torch" not in sys.modules
print((logits.argmax(1) == test["label"]).mean())
"""
    return float(environment.python(code, model))


def test_session_trains_digits(environment: Environment) -> None:
    code = """
import numpy as np, steep
train = np.load("digits_train.npz")
session = steep.TrainingSession(
    "digits.onnx", loss="softmax_cross_entropy", optimizer="adam", lr=3e-3)
for epoch in range(20):
    for i in range(0, len(train["x"]), 64):
        session.step(train["x"][i : i + 64], train["label"][i : i + 64])
session.export_onnx("by_session.onnx")
"""
    environment.python(code)
    assert accuracy(environment, "by_session.onnx") > 0.95


def test_program_and_package_say_one_version(environment: Environment) -> None:
    assert environment.run("steep", "--version") == f"steep {VERSION}\n"
    assert environment.run("python", "-m", "steep", "--version") == f"steep {VERSION}\n"
    assert environment.python("import steep; print(steep.__version__)") == f"{VERSION}\n"
    found = "import importlib.metadata as m; print(m.version('steep'))"
    assert environment.python(found) == f"{VERSION}\n"
    usage = environment.run("steep", "--help")
    assert "Usage: " in usage and "site-packages" not in usage and "train" in usage
    assert "no option" in environment.run("steep", "train", "x.onnx", "--fly", code=2)


def test_sources_on_pythonpath_do_not_change_the_program(environment: Environment) -> None:
    stray = environment.folder / "stray" / "steep"
    stray.mkdir(parents=True)
    (stray / "__init__.py").write_text("raise SystemExit('the wrong package')\n")
    said = environment.run("steep", "--version", PYTHONPATH=str(stray.parent))
    assert said == f"steep {VERSION}\n"


def test_an_environment_whose_path_has_spaces(tmp_path: Path, wheel: Path) -> None:
    folder = tmp_path / "каталог with space"
    folder.mkdir()
    environment = Environment(folder, wheel)
    assert environment.run("steep", "--version") == f"steep {VERSION}\n"
    link = folder / "a link"
    link.symlink_to(environment.bin / "steep")
    done = subprocess.run([link, "--version"], check=True, capture_output=True, text=True)
    assert done.stdout == f"steep {VERSION}\n"


def test_import_is_quick(environment: Environment) -> None:
    code = """
import resource, sys, steep
own = resource.getrusage(resource.RUSAGE_SELF)
print(own.ru_utime + own.ru_stime)
assert not {"onnx", "torch"} & set(sys.modules)
"""
    assert min(float(environment.python(code)) for _ in range(5)) < 0.3


def test_plug_in(environment: Environment) -> None:
    """The example of a provider, built outside of the tree, from the headers alone."""
    plug_in = ROOT / "build" / "release" / "mirror" / "libmirror.so"  # by `make build`
    if not plug_in.is_file():
        build = environment.folder / "mirror"
        subprocess.run(["cmake", "-S", ROOT / "examples" / "provider", "-B", build], check=True)
        subprocess.run(["cmake", "--build", build, "--parallel"], check=True)
        plug_in = build / "libmirror.so"
    code = """
import sys, numpy as np, steep
name = steep.register_provider(sys.argv[1])
session = steep.InferenceSession("digits.onnx", providers=[name, "CPUExecutionProvider"])
(logits,) = session.run(None, {"x": np.ones((3, 64), np.float32)})
print(name, logits.shape)
"""
    assert environment.python(code, plug_in) == "MirrorExecutionProvider (3, 10)\n"


def test_an_onednn_of_another_package_is_loaded_beside_ours(environment: Environment) -> None:
    """It has the name that all but ours have; whichever comes first."""
    other = environment.folder / "libdnnl.so.3"
    command = ["cc", "-shared", "-fPIC", "-xc", f"-Wl,-soname,{other.name}", "-o", other, "-"]
    subprocess.run(command, input="int x;", text=True, check=True)
    load, use = f"ctypes.CDLL({str(other)!r})", "steep.InferenceSession('digits.onnx')"
    for first, second in ((load, use), (use, load)):
        imports = "import ctypes\nimport steep\n" if first == use else "import ctypes\n"
        code = f"""{imports}{first}
import steep
{second}
maps = open("/proc/self/maps").read().split()
print(*sorted({{path.split("/")[-1] for path in maps if "libdnnl" in path}}))
"""
        ours, theirs = environment.python(code).split()
        assert re.fullmatch(r"libdnnl-[0-9a-f]{8}\.so\.3", ours) and theirs == other.name


def test_the_program_names_a_removed_library(environment: Environment) -> None:
    for library in environment.folder.glob("env/lib/python*/site-packages/steep.libs/lib*"):
        if library.name.startswith("libgomp"):
            continue  # the system may have another
        hidden = library.rename(library.with_name("hidden"))
        try:
            said = environment.run("steep", "--version", code=1)
        finally:
            hidden.rename(library)
        assert said.startswith("steep: A shared library that Steep needs is missing.\n  name: ")
        assert library.name in said and "remedy:   install the wheel again: pip install" in said


def test_removed_library(environment: Environment) -> None:
    (library,) = environment.folder.glob("env/lib/python*/site-packages/steep.libs/libdnnl*")
    hidden = library.rename(library.with_name("hidden"))
    try:
        code = """
try:
    import steep
except ImportError as error:
    print(type(error).__name__, error)
"""
        said = environment.python(code)
    finally:
        hidden.rename(library)
    assert said.startswith("InstallationError A shared library that Steep needs is missing.")
    assert library.name in said and "pip install --force-reinstall" in said
