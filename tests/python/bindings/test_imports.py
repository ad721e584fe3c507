"""Steep shares a process with the packages that carry ONNX, protobuf or OpenMP of their own."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from checkout import ROOT

import steep

PYTHON = "import sys; sys.path.insert(0, {path!r})\n"


def run(code):
    path = str(Path(steep.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", PYTHON.format(path=path) + code],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_torch_is_imported_only_when_needed():
    loaded = "print('torch' in sys.modules)"
    out = run(f"import steep; {loaded}; steep.ORTModule; {loaded}")
    assert out.split() == ["False", "True"]


def test_every_public_name_exists():
    run(
        "import steep\ntry: steep.nothing\nexcept AttributeError: pass\nelse: raise SystemExit(1)\n"
        "for name in steep.__all__: getattr(steep, name)"
    )


USE = """
x = np.ones((2, 3), np.float32)
node = onnx.helper.make_node("Relu", ["x"], ["y"])
info = [onnx.helper.make_tensor_value_info(n, 1, [2, 3]) for n in "xy"]
model = onnx.helper.make_model(onnx.helper.make_graph([node], "g", info[:1], info[1:]),
                               opset_imports=[onnx.helper.make_opsetid("", 17)])
model.ir_version = 8
onnx.checker.check_model(model, full_check=True)
assert (steep.InferenceSession(model).run(None, {"x": x})[0] == x).all()
"""


NAMES = ["torch", "onnx", "onnxruntime", "steep"]
ORDERS = [NAMES[i:] + NAMES[:i] for i in range(len(NAMES))]  # each is the first of one
ORDERS.append(pytest.param(NAMES[::-1], marks=pytest.mark.matrix))


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_any_order_of_import(order):
    for name in order:
        pytest.importorskip(name)
    code = "".join(f"import {name}\n" for name in order) + "import numpy as np\n" + USE
    code += "onnxruntime.InferenceSession(model.SerializeToString())\n"
    code += "torch.nn.Linear(3, 3)(torch.from_dlpack(steep.Tensor(x))).sum().backward()\n"
    run(code)


RUNS = """
net = torch.nn.Linear(3, 2)
compiled = torch.compile(net, backend="steep")
torch.testing.assert_close(compiled(torch.ones(1, 3)), net(torch.ones(1, 3)))
"""
BACKEND = """
assert "steep" in torch._dynamo.list_backends()
from steep.module.torch_compile import backend
assert torch._dynamo.lookup_backend("steep") is backend
"""


@pytest.mark.parametrize(
    "before",
    [
        "import torch" + RUNS,  # by what `make build` leaves, or an installation
        "import sys; sys.meta_path[:] = FINDERS; import steep, torch",
        "import sys; sys.meta_path[:] = FINDERS; import torch; torch._dynamo.list_backends(); "
        "import steep",
    ],
    ids=["installed", "a folder", "a folder, known too late"],
)
def test_torch_compile_knows_the_backend(before):
    pytest.importorskip("torch")
    # finds no distributions, as where these are but a folder on the path
    hidden = """
import importlib.machinery, sys
class Modules(importlib.machinery.PathFinder):
    @classmethod
    def find_distributions(cls, context=None):
        return []
FINDERS = [f if f is not importlib.machinery.PathFinder else Modules for f in sys.meta_path]
"""
    run(hidden + before + BACKEND)


@pytest.mark.parametrize("name", ["ORTModule", "ORTTrainer", "trainer"])
def test_without_torch_the_extra_is_named(name):
    code = "import sys; sys.modules['torch'] = None\nimport steep\n"
    code += f"try: steep.{name}\nexcept ImportError as error: print(error)"
    said = run(code)
    assert said.startswith(f"steep.{name} needs PyTorch") and 'pip install "steep[torch]"' in said
    (torch,) = re.findall('^torch = \\["(.+?)"', (ROOT / "pyproject.toml").read_text(), re.M)
    command = f'pip install "{torch}" --index-url https://download.pytorch.org/whl/cpu'
    assert command in said and command in (ROOT / "docs" / "install.md").read_text()


STAR = """
from steep import *
print("TrainingSession" in globals(), "ORTModule" in globals(), "ORTTrainer" in globals())
"""


def test_star_import_brings_what_works_here(tmp_path):
    assert run(f"import sys; sys.modules['torch'] = None\n{STAR}") == "True False False\n"
    outside = "import torch; torch.__version__ = '9.9.0'\n"
    shadow = "import sys; sys.path.insert(0, {!r})\n"
    (tmp_path / "torch.py").write_text("")
    assert run(shadow.format(str(tmp_path)) + STAR) == "True False False\n"
    pytest.importorskip("torch")
    assert run(STAR) == "True True True\n"
    assert run(outside + STAR) == "True True False\n"


@pytest.mark.parametrize("form", ["torch.py", "torch/__init__.py", "onnxscript.py"])
def test_what_hides_pytorch_is_named(form, tmp_path):
    pytest.importorskip("torch")
    path = tmp_path / form
    path.parent.mkdir(exist_ok=True)
    path.write_text("")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        + """
import steep
for name in ("ORTModule", "trainer"):
    try: getattr(steep, name)
    except steep.InstallationError as error: print(error.received, error.remedy)
"""
    )
    first, second = run(code).splitlines()
    library = form.partition("/")[0].removesuffix(".py")
    assert first == second and first.startswith(f"{path} rename {path}, which hides {library}")


@pytest.mark.parametrize("form", ["numpy.py", "onnx.py", "onnx/__init__.py"])
def test_what_hides_a_library_is_named_at_once(form, tmp_path):
    path = tmp_path / form
    path.parent.mkdir(exist_ok=True)
    path.write_text("raise SystemExit('it was imported')")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
    code += "try: import steep\nexcept ImportError as error: print(type(error).__name__, error)"
    said = run(code)
    assert said.startswith("InstallationError") and f"rename {path}, which hides" in said


def test_a_folder_without_code_hides_nothing(tmp_path):
    """Python prefers a library to a folder of its name that contains no ``__init__.py``."""
    for name in ("numpy", "onnx", "onnxscript", "torch"):
        (tmp_path / name).mkdir()
    run(f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nimport steep; steep.TrainingSession")


PURGED = """
import sys, warnings, steep
warnings.simplefilter("error")
before = steep.Tensor
for name in [n for n in sys.modules if n.partition(".")[0] == "steep"]: del sys.modules[name]
import steep, steep._steep
assert steep.Tensor is before
try: steep.InferenceSession("nothing.onnx")
except steep.IoError: pass
import numpy as np, onnx
"""


def test_import_after_the_modules_were_dropped():
    run(PURGED + USE)


def test_import_after_one_that_failed():
    run(
        "import os\nos.environ['STEEP_MAX_BYTES'] = 'much'\n"
        "try: import steep\nexcept ValueError: pass\nelse: raise SystemExit(1)\n"
        "del os.environ['STEEP_MAX_BYTES']\nimport numpy as np, onnx, steep\n" + USE
    )


def test_second_import_of_the_front_of_pytorch_is_refused():
    pytest.importorskip("torch")
    code = """
import sys, torch
def use():
    import steep
    steep.ORTModule(torch.nn.Linear(3, 2))(torch.ones(2, 3))
use()
for name in [n for n in sys.modules if n.partition(".")[0] == "steep"]: del sys.modules[name]
try: use()
except ImportError as error: print(type(error).__name__, error.remedy)
"""
    assert run(code).startswith("InstallationError start a new process")
