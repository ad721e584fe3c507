"""Exports a PyTorch module in evaluation mode to ONNX, by torch.export."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import io
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import onnx
import torch

from steep.errors import ModelError
from steep.lowering.export_mode import export_mode
from steep.lowering.ops.extent_arithmetic import OF_INTEGERS
from steep.lowering.ops.stop_gradient import TRANSLATIONS
from steep.lowering.training_semantics import keep_semantics
from steep.onnx_graph.initializers import embed_weights
from steep.torch_internals.exporter import conditions_on_extents

log = logging.getLogger("steep")

_PREFIX = "module."


class _Flat(torch.nn.Module):
    """Returns the tensors in the results of a module."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module
        self.training = module.training  # submodules keep their modes

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with keep_semantics():
            results = _tensors_in(self.module(*tensors))
        for i, tensor in enumerate(results):
            if tensor.is_complex():
                raise RuntimeError(f"result {i} is complex, which ONNX has no type for")
        return tuple(results)


def export(
    module: torch.nn.Module, tensors: Sequence[torch.Tensor], *, opset: int | None = None
) -> onnx.ModelProto:
    """Return the model, with weights, for arguments like ``tensors``.

    Extents are dynamic where possible. Where forward branches on an extent, the model has the
    branch of the example, and the logger ``steep`` warns of the condition. Inputs are named after
    the parameters of ``forward``. ``opset`` is by default the exporter's. The outputs are the
    tensors in the module's result, also inside lists, tuples, dicts and dataclasses; other results
    are left out.

    Raises:
        ModelError: the module cannot be exported, with the reason.
    """
    flat = _Flat(module)
    names = _input_names(module, len(tensors))
    auto = torch.export.Dim.AUTO
    shapes = tuple({axis: auto for axis in range(t.ndim)} for t in tensors)
    try:
        # On failure torch.export prints its graph to stderr.
        with export_mode(), contextlib.redirect_stderr(io.StringIO()), _nothing_kept(module):
            # Capturing here keeps torch.onnx from trying further, slower ways of capture.
            exported_program = torch.export.export(
                flat,
                tuple(t.detach() for t in tensors),
                dynamic_shapes={"tensors": shapes},
                strict=False,
            )
            _say_conditions(exported_program, names)
            with torch.no_grad():  # with gradients, attention would be decomposed differently
                program = torch.onnx.export(
                    exported_program,
                    (),
                    dynamo=True,
                    custom_translation_table={**TRANSLATIONS, **OF_INTEGERS},
                    input_names=names,
                    opset_version=opset,
                    optimize=False,
                    verbose=False,
                )
            assert program is not None and program.exported_program is not None
            signature = program.exported_program.graph_signature
            name_of = dict(zip(signature.user_inputs, names, strict=True))
            targets = [name_of[name] for name in signature.user_inputs_to_mutate.values()]
            targets += [n.removeprefix(_PREFIX) for n in signature.buffers_to_mutate.values()]
            if targets:
                raise RuntimeError(f"forward writes into {targets[0]}")
    except Exception as e:  # the exporters raise any error
        raise ModelError(
            f"The module {type(module).__name__} could not be exported to ONNX.",
            received=_first_line(e),
            remedy="change the code named above",
        ) from e
    graph: Any = program.model.graph
    own = {n for n, _ in flat.named_parameters(remove_duplicate=False)}
    own |= {n for n, _ in flat.named_buffers(remove_duplicate=False)}
    states = {name: name.removeprefix(_PREFIX) for name in graph.initializers if name in own}
    for name in states:  # other initializers are constants
        value = graph.initializers.pop(name)
        value.const_value = None
        graph.inputs.append(value)
    return embed_weights(program.model_proto, states, module)


def _say_conditions(program: torch.export.ExportedProgram, names: Sequence[str]) -> None:
    """Warn of conditions on extents under which the model computes what the module does."""
    nodes = {node.name: node for node in program.graph.nodes}
    of_symbol = {
        str(extent): f"{name}.shape[{axis}]"
        for key, name in zip(program.graph_signature.user_inputs, names, strict=True)
        for axis, extent in enumerate(nodes[str(key)].meta["val"].shape)
    }
    own = [os.path.dirname(torch.__file__), os.path.dirname(os.path.dirname(__file__))]
    for condition, place in conditions_on_extents(program, own):
        text = re.sub(r"[a-z]\w*", lambda m: of_symbol.get(m[0], m[0]), condition)
        log.warning("the exported model holds where %s, as for the example (%s)", text, place)


@contextlib.contextmanager
def _nothing_kept(module: torch.nn.Module) -> Iterator[None]:
    """Raise RuntimeError if forward stores tensors in attributes; restore the attributes."""
    before = [(m, name, dict(vars(m))) for name, m in module.named_modules()]
    attribute = ""
    try:
        yield
    finally:
        for m, path, attributes in before:
            for name, value in list(vars(m).items()):
                if not isinstance(value, torch.Tensor) or attributes.get(name) is value:
                    continue
                # tensors that hooks compute from parameters, such as weight from weight_orig, do
                # not count
                own = m.named_parameters(recurse=False, remove_duplicate=False)
                if not any(parameter.startswith(f"{name}_") for parameter, _ in own):
                    attribute = f"{path}.{name}".lstrip(".")
            vars(m).clear()
            vars(m).update(attributes)
    if attribute:
        raise RuntimeError(f"forward keeps {attribute} from one call to the next")


def _tensors_in(value: object) -> list[torch.Tensor]:
    """Return the tensors in lists, tuples, dicts and dataclasses, such as transformers' outputs."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, Mapping):
        items: Sequence[Any] = list(value.values())
    elif dataclasses.is_dataclass(value):
        items = [getattr(value, field.name) for field in dataclasses.fields(value) if field.init]
    elif isinstance(value, (list, tuple)):
        items = value
    else:
        return []
    return [tensor for item in items for tensor in _tensors_in(item)]


def _input_names(module: torch.nn.Module, count: int) -> list[str]:
    """Return the names of ``forward``'s parameters; xs.0, xs.1 … for ``*xs``."""
    try:
        bound = inspect.signature(module.forward).bind(*range(count))
    except TypeError as e:
        raise TypeError(f"{type(module).__name__}.forward(): {e}") from None
    names = []
    for name, value in bound.arguments.items():
        names += [f"{name}.{i}" for i in range(len(value))] if isinstance(value, tuple) else [name]
    return names


def _first_line(e: BaseException) -> str:
    text = str(e.__cause__ or e).strip()
    return f"{type(e.__cause__ or e).__name__}: {text.splitlines()[0] if text else ''}"[:300]
