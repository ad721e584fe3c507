"""Parameters of the package are annotated with what flows there; `Any` needs a reason."""

import ast
from collections import Counter

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
    "lowering/function_rewrites.py": (11, "what PyTorch's function takes, handed on to it"),
    "patching/substitution.py": (1, "a module, class, function or operator"),
    "trainers/loss_module.py": (1, "what a model returns"),
    "trainers/ort_trainer.py": (1, "what a model returns"),
    "verify/difference.py": (2, "a number or tensor, of the kind of what it is compared with"),
}

ADVICE = """
A parameter is annotated `Any`. Say what flows there instead:
  - nothing is used of it, or it is tested by isinstance: `object`
  - a value of an ONNX graph, a number, extents: steep/lowering/ops/values.py
  - a node or an argument of FX: torch.fx.Node, torch.fx.node.Argument
  - a function: collections.abc.Callable; a class of which few members are used: a Protocol
  - the result is of the argument's type: a TypeVar
If there is no such type, add it to KEPT, with the reason. If there are fewer, lower the number.
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


def test_any_is_counted() -> None:
    text = "def f(a: Any, /, b: list[Any], *c: Any, d: typing.Any = 1, **e: Any) -> Any: ...\n"
    assert plain_any(text + "class C:\n    async def g(self, x: 'int', y: Any): ...\n") == 5


def test_no_parameter_is_any_without_a_reason() -> None:
    found: Counter[str] = Counter()
    for file in PACKAGE.rglob("*.py"):
        found[str(file.relative_to(PACKAGE))] = plain_any(file.read_text())
    assert len(found) > 200
    kept = {file: count for file, (count, _) in KEPT.items()}
    assert {file: n for file, n in found.items() if n} == kept, ADVICE
