"""Releases of PyTorch: which are refused, and what is looked up by name."""

import subprocess
import sys

import pytest
import torch

from steep import ModelError
from steep.patching import torch_versions
from steep.patching.substitution import DECLARED, Substitution, substitute


@pytest.mark.parametrize("version", ["2.13.0+cpu", "2.14.1+cu130", "2.15.0a0+git1234"])
def test_tested_releases(version):
    torch_versions.require_tested(version)


@pytest.mark.parametrize("version", ["1.13.1", "2.12.1", "2.16.0.dev20261101", "3.0"])
def test_other_releases_are_refused(version):
    with pytest.raises(ModelError, match="has not been tested") as refused:
        torch_versions.require_tested(version)
    assert refused.value.received == f"PyTorch {version}"
    assert refused.value.expected == "PyTorch 2.13 to 2.15"
    assert refused.value.remedy == 'pip install "torch>=2.13,<2.16"'


@pytest.mark.parametrize("code", ["steep.trainer", "import steep.compat.ortmodule.ort_module"])
def test_doors_that_refuse(code):
    """ONNX files need no PyTorch: they are trained beside any; others by public interfaces."""
    program = f"""
import torch
torch.__version__ = "2.99.0"
import steep
steep.TrainingSession
{code}
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert "has not been tested with this release of PyTorch" in done.stderr


@pytest.mark.parametrize(
    ("door", "missing"),
    [
        (
            "steep.ORTModule(torch.nn.Linear(2, 2))(torch.ones(1, 2))",
            "torch._dynamo.variables.dicts.ConstDictVariable.has_new_items",
        ),
        ("steep.trainer", "torch._dynamo.guards.install_guard"),
        (
            "from steep.module.torch_compile import backend; backend(None, [])",
            "torch._higher_order_ops.register_hook.register_hook_op",
        ),
        ("import steep.compat.ortmodule.ort_module", "torch.utils._pytree.tree_map_only"),
    ],
)
def test_doors_name_what_the_installed_release_lacks(door, missing):
    program = f"""
import pkgutil, torch._dynamo
*path, owner, name = {missing!r}.split(".")
owner = pkgutil.resolve_name(".".join([*path, owner]))
delattr(owner, name)
import steep
try:
    {door}
except steep.ModelError as error:
    print(error.node, error.remedy)
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout == missing + ' pip install "torch>=2.13,<2.16"\n'


def test_other_errors_of_an_import_stay_what_they_are(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(tmp_path)
    for name, text, error in (
        ("no_such_library", "import no_such_library", ModuleNotFoundError),
        ("no_such_attribute", "import sys; sys.no_such_attribute", AttributeError),
    ):
        (tmp_path / f"uses_{name}.py").write_text(text)
        with pytest.raises(error, match=name):
            torch_versions.load(f"uses_{name}")


def test_operators_that_this_release_does_not_have_are_left_out():
    table = {"aten.relu.default": 1, "aten.no_such_operator.default": 2, "aten.relu.no_such": 3}
    assert torch_versions.operators(table) == {torch.ops.aten.relu.default: 1}


@pytest.mark.parametrize(
    ("since", "until", "applies"),
    [(None, None, True), ((1, 0), None, True), ((9, 0), None, False), (None, (2, 0), False)],
)
def test_a_substitution_of_some_releases(since, until, applies):
    class Owner:
        name = 1

    own = Substitution(Owner, "name", "A test.", since=since, until=until)
    DECLARED.remove(own)
    with substitute({own: 2}):
        assert Owner.name == (2 if applies else 1)
    assert Owner.name == 1
