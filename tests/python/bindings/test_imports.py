"""Steep shares a process with the packages that carry ONNX, protobuf or OpenMP of their own."""

import subprocess
import sys
from pathlib import Path

import pytest

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
    assert run(code) == f'steep.{name} needs PyTorch: pip install "steep[torch]"\n'
