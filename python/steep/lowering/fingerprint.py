"""A digest of what a graph of ATen operators computes.

The digest covers every operator, with its operands, constants and result types. Graphs with equal
digests, whose extents have equal constraints, compute the same under equal settings.
"""

from __future__ import annotations

import hashlib
import os

import torch

from steep.lowering.decompose import is_of_others
from steep.lowering.ops.grouped_product import WITH_BACKWARD
from steep.torch_internals.dispatch import FakeTensor, disable_current_modes
from steep.torch_internals.operators import OpOverload, schema_of
from steep.torch_internals.pytree import tree_leaves

# package versions determine what these operators do
_NAMESPACES = ("aten", "prim", "prims", "steep")
_WORDS = (
    bool,
    int,
    float,
    complex,
    str,
    type(None),
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
)


class Undetermined(Exception):
    """The digest may be equal for two different graphs."""


def settings() -> dict[str, str]:
    """Return the settings that the translation to ONNX reads, as {name: value}.

    Settings that ``export_mode()`` fixes are left out: gradients are on; autocast and the fast path
    of attention are off. Dynamo leaves inference mode.
    """
    return {
        # for results of integers with Python floats
        "default dtype": str(torch.get_default_dtype()),
        "default device": str(torch.get_default_device()),
        "deterministic": str(torch.are_deterministic_algorithms_enabled()),
        "fill": str(torch.utils.deterministic.fill_uninitialized_memory),
        "of the exporter": str(sorted((k, v) for k, v in os.environ.items() if _of_exporter(k))),
    }


def _of_exporter(variable: str) -> bool:
    return variable.startswith(("TORCH_ONNX_", "TORCHLIB_", "ONNXSCRIPT_"))


def fingerprint(graph_module: torch.fx.GraphModule, about: str) -> str:
    """Return a digest of a graph and of ``about``. Raises Undetermined."""
    digest = hashlib.sha256(f"{settings()} {about}".encode())
    _add_graph(graph_module, digest)
    return digest.hexdigest()


def _add_graph(graph_module: torch.fx.GraphModule, digest: hashlib._Hash) -> None:
    """Add all nodes of a graph to the digest. Raises Undetermined."""
    numbers: dict[torch.fx.Node, int] = {}
    for node in graph_module.graph.nodes:
        numbers[node] = len(numbers)
        line = [node.op, _operator(node)]
        line += [_type(value) for value in tree_leaves(node.meta.get("val"))]
        _write((node.args, dict(node.kwargs)), line, numbers)
        digest.update("\x1f".join(line).encode() + b"\x1e")
        if node.op == "get_attr":
            constant = getattr(graph_module, node.target)
            if isinstance(constant, torch.fx.GraphModule):
                _add_graph(constant, digest)
            elif isinstance(constant, torch.Tensor) and not isinstance(constant, FakeTensor):
                _add_tensor(constant, digest)
            else:
                raise Undetermined(f"a constant of the class {type(constant).__name__}")


def _type(value: object) -> str:
    if not isinstance(value, torch.Tensor):
        return str(value)
    if value.layout != torch.strided:
        raise Undetermined(f"a tensor of the layout {value.layout}")
    kind = f"{value.dtype} {value.device} {value.is_conj()} {value.is_neg()}"
    return f"{kind} {tuple(value.shape)} {value.stride()} {value.requires_grad}"


def _operator(node: torch.fx.Node) -> str:
    """Return the name of an operator, if the name identifies it. Raises Undetermined."""
    target = node.target
    if node.op != "call_function":
        return ""
    if isinstance(target, OpOverload):
        name = str(target)
        is_identified = target.namespace in _NAMESPACES or schema_of(target).name in WITH_BACKWARD
        is_identified = is_identified and not is_of_others(target)
    else:  # arithmetic of extents, or a call of a graph
        module = getattr(target, "__module__", "")
        name = f"{module}.{getattr(target, '__name__', target)}"
        is_identified = module.split(".")[0] in ("_operator", "builtins", "math", "torch")
    if not is_identified:
        raise Undetermined(f"the operator {name}")
    return name


def _add_tensor(tensor: torch.Tensor, digest: hashlib._Hash) -> None:
    """Add a tensor's dtype, layout and values. Raises Undetermined if they cannot be read."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        raise Undetermined(f"a {type(tensor).__name__} that no operator made")
    if tensor.device.type != "cpu" or tensor.layout != torch.strided or tensor.is_quantized:
        raise Undetermined(f"a constant on {tensor.device}, {tensor.layout}")
    with disable_current_modes():
        values = tensor.detach().clone(memory_format=torch.contiguous_format)
        data = values.view(-1).view(torch.uint8).numpy()
        about = f"{tensor.dtype} {tuple(tensor.shape)} {tensor.stride()} {data.nbytes}"
        digest.update(about.encode() + b"\x1e" + data.tobytes())


def _write(value: object, line: list[str], numbers: dict[torch.fx.Node, int]) -> None:
    """Append an operand as text. Raises Undetermined unless it is a node or a plain value."""
    if isinstance(value, torch.fx.Node):
        line.append(f"%{numbers[value]}")
    elif isinstance(value, (list, tuple)):
        line.append("(")
        for item in value:
            _write(item, line, numbers)
        line.append(")")
    elif isinstance(value, dict):
        _write(tuple(value.items()), line, numbers)
    elif isinstance(value, _WORDS):
        line.append(f"{type(value).__name__} {value!r}")
    else:
        raise Undetermined(f"an operand of the class {type(value).__name__}")
