"""Parameters and results are annotated with what flows there; `Any` needs a reason."""

import ast
from collections.abc import Callable

import pytest
from checkout import ROOT

PACKAGE = ROOT / "python" / "steep"

# By file: how many parameters are annotated `Any`, and why they have no other type.
KEPT = {
    "compat/agent/training_session.py": (1, "options of the base class, each of its own type"),
    "compat/data/data_schema.py": (2, "nested data of any kind, and the class of a part of it"),
    "compat/inference/ort_value.py": (1, "options of DLPack, which differ by NumPy's release"),
    "compat/inference/session.py": (3, "device, number, dtype, shape, address: some may lack"),
    "compat/on_device/training_state.py": (1, "an array or a property, by the name"),
    "compat/onnxblock/base.py": (5, "a subclass has its own parameters; attributes of a node"),
    "compat/onnxblock/models.py": (8, "a subclass has its own parameters"),
    "dynamo/captured_module.py": (2, "what PyTorch's releases hand over with a frame"),
    "lowering/ops/huber.py": (4, "what PyTorch's function takes, handed on to it"),
    "lowering/function_rewrites.py": (11, "what PyTorch's function takes, handed on to it"),
    "patching/substitution.py": (1, "a module, class, function or operator"),
    "trainers/loss_module.py": (1, "what a model returns"),
    "trainers/ort_trainer.py": (1, "what a model returns"),
    "verify/difference.py": (2, "a number or tensor, of the kind of what it is compared with"),
}

# The same of results.
RESULTS = {
    "__init__.py": (1, "an attribute of the module"),
    "backends.py": (1, "a path, by a protocol of importlib that differs by Python's release"),
    "compat/data/data_schema.py": (5, "nested data of any kind"),
    "compat/data/samplers.py": (1, "an item of the user's data set"),
    "compat/on_device/training_module.py": (1, "a loss, or outputs"),
    "compat/onnxblock/artifacts.py": (1, "a block of onnxblock.optim, by its methods"),
    "compat/onnxblock/base.py": (2, "what the user's block returns"),
    "compat/onnxblock/models.py": (4, "what the user's block returns"),
    "compat/optim/fp16_optimizer.py": (1, "what the wrapped optimizer returns"),
    "compat/optim/fused_adam.py": (1, "what the closure returns"),
    "compat/ortmodule/ort_module.py": (1, "what a model returns"),
    "compat/stock.py": (1, "an attribute of a module"),
    "compat/trainer/described_trainer.py": (4, "what a model returns"),
    "dynamo/patches/extra_guards.py": (2, "what PyTorch's function returns"),
    "graph/compiled_graph.py": (1, "what the captured graph returns"),
    "module/ort_module.py": (8, "what a model returns; attributes of a model"),
    "public_capture/compiled_module.py": (1, "what a model returns"),
    "public_capture/functional_graph.py": (3, "what the captured graph returns"),
    "session/source.py": (1, "a path or bytes, as the overloads of the extension take them"),
    "trainers/base.py": (5, "what a model returns; the user's own data in a checkpoint"),
    "trainers/loss_module.py": (1, "what a model returns"),
    "trainers/ort_trainer.py": (3, "what a model returns"),
    "trainers/trainer.py": (1, "what the closure returns"),
    "verify/copies.py": (1, "a tensor, or what is no tensor"),
}

ADVICE = """
A parameter or a result is annotated `Any`. Say what flows there instead:
  - nothing is used of it, or it is tested by isinstance: `object`
  - a value of an ONNX graph, a number, extents: steep/lowering/ops/values.py
  - a node or an argument of FX: torch.fx.Node, torch.fx.node.Argument
  - a function: collections.abc.Callable; a class of which few members are used: a Protocol
  - the result is of the argument's type: a TypeVar
If there is no such type, add it to KEPT or RESULTS, with the reason.
If there are fewer, lower the number.
"""


def plain_any(text: str) -> int:
    """Count the parameters whose annotation is `Any` and nothing else."""
    functions = (
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    )
    taken = (
        parameter
        for a in (function.args for function in functions)
        for parameter in (*a.posonlyargs, *a.args, *a.kwonlyargs, a.vararg, a.kwarg)
        if parameter is not None and parameter.annotation is not None
    )
    return sum(ast.unparse(p.annotation) in {"Any", "typing.Any"} for p in taken)


def any_results(text: str) -> int:
    """Count the functions whose result is annotated `Any` and nothing else."""
    functions = (
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.returns is not None
    )
    return sum(ast.unparse(f.returns) in {"Any", "typing.Any"} for f in functions if f.returns)


def test_any_is_counted() -> None:
    text = "def f(a: Any, /, b: list[Any], *c: Any, d: typing.Any = 1, **e: Any) -> Any: ...\n"
    assert plain_any(text + "class C:\n    async def g(self, x: 'int', y: Any): ...\n") == 5
    assert any_results(text) == 1


@pytest.mark.parametrize(("count", "kept"), [(plain_any, KEPT), (any_results, RESULTS)])
def test_nothing_is_any_without_a_reason(
    count: Callable[[str], int], kept: dict[str, tuple[int, str]]
) -> None:
    files = {str(f.relative_to(PACKAGE)): count(f.read_text()) for f in PACKAGE.rglob("*.py")}
    assert len(files) > 200
    found = {file: n for file, n in files.items() if n}
    assert found == {file: n for file, (n, _) in kept.items()}, ADVICE
