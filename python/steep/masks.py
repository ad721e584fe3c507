"""The random numbers that the engine drew in a run, for PyTorch to compute with the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.dlpack import from_dlpack, to_dlpack

from steep._steep import ModuleProgram
from steep.errors import Error

if TYPE_CHECKING:
    from steep.piece import Piece

_UNIFORM = ("RandomUniform", "RandomUniformLike")
_NORMAL = ("RandomNormal", "RandomNormalLike")


class Unmatched(Exception):
    """PyTorch draws what the engine does not, or in another way."""


class Masks(TorchDispatchMode):
    """Within, PyTorch draws nothing: it takes what the engine drew in this thread's last run.

    Both draw in the order of the captured graph. ``fed`` is what that run was fed.
    """

    def __init__(self, piece: Piece, fed: list[torch.Tensor]) -> None:
        super().__init__()
        self.used = 0
        self.drawn: list[tuple[str, torch.Tensor]] = []
        if piece.call.program.random:
            try:
                self.drawn = _drawn(piece, fed)
            except Error as e:
                raise Unmatched(f"the engine does not give its random numbers: {e.what}") from e

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        if (take := _TAKEN.get(func)) is None or kwargs.get("generator") is not None:
            if func in _NOT_RANDOM_HERE:
                return func(*args, **kwargs)
            if func._can_decompose():  # inference_mode leaves it whole
                with self:
                    return func.decompose(*args, **kwargs)
            raise Unmatched(f"the engine's random numbers cannot be given to {func}")
        if self.used == len(self.drawn):
            raise Unmatched("PyTorch draws more random numbers than the engine")
        kind, numbers = self.drawn[self.used]
        self.used += 1
        return take(func, args, kwargs, kind, numbers)

    def check_all_used(self) -> None:
        """Raise Unmatched if the engine drew more than PyTorch."""
        if self.used != len(self.drawn):
            raise Unmatched("the engine draws more random numbers than PyTorch")


def _drawn(piece: Piece, fed: list[torch.Tensor]) -> list[tuple[str, torch.Tensor]]:
    """Run the graph once more with the seed of its last run; return all that it draws."""
    exported = piece.call.exported
    model = onnx.load_from_string(exported.model)
    count = len(model.graph.output)
    constants = _constants(model)
    kinds = []
    for number, node in enumerate(model.graph.node):
        if node.op_type not in ("Dropout", *_UNIFORM, *_NORMAL):
            continue
        if node.op_type == "Dropout" and not all(constants.get(i, 1) for i in node.input[1:]):
            continue  # it is off, or keeps all
        if node.op_type == "Dropout":
            del node.output[1:]
            node.output.append(f"steep.mask_{number}")
        kinds.append(node.op_type)
        kind = onnx.TensorProto.BOOL if node.op_type == "Dropout" else _type_of(model, node)
        model.graph.output.append(onnx.helper.make_tensor_value_info(node.output[-1], kind, None))
    program = ModuleProgram(
        model.SerializeToString(),
        inputs=exported.names,
        states={},
        trainable=[],
        input_gradients=[],
        training=True,
    )
    arrays = [to_dlpack(fed[i].detach().contiguous()) for i in exported.inputs]
    capsules = program.forward(arrays, False, piece.call.last.seed)[0]
    drawn = zip(kinds, [from_dlpack(c) for c in capsules[count:]], strict=True)
    return [(kind, n) for kind, n in drawn if kind != "Dropout" or n.numel()]


def _constants(model: onnx.ModelProto) -> dict[str, float]:
    """Return the numbers among the constants, by name."""
    tensors = {t.name: t for t in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant":
            tensors.update((node.output[0], a.t) for a in node.attribute if a.name == "value")
    arrays = {k: onnx.numpy_helper.to_array(t) for k, t in tensors.items() if not t.dims}
    return {name: float(a) for name, a in arrays.items()}


def _type_of(model: onnx.ModelProto, node: onnx.NodeProto) -> int:
    known = {v.name: v.type.tensor_type.elem_type for v in model.graph.value_info}
    return int(known.get(node.output[0], onnx.TensorProto.FLOAT))


def _shaped(numbers: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    if numbers.numel() != like.numel():
        raise Unmatched("the engine draws random numbers of other shapes")
    return numbers.reshape(like.shape).to(like.dtype)


def _keep(func: Any, args: Any, kwargs: Any, kind: str, numbers: torch.Tensor) -> Any:
    """``bernoulli_(noise, p)``: 1 where a dropout keeps."""
    p = args[1] if len(args) > 1 else kwargs.get("p", 0.5)
    if kind in _UNIFORM:
        numbers = numbers < p
    elif kind != "Dropout":
        raise Unmatched(f"PyTorch draws {func}, the engine {kind}")
    elif abs(float(numbers.float().mean()) - p) > 6 / (numbers.numel() + 1) ** 0.5:
        raise Unmatched(f"PyTorch keeps {p:.3g} of the entries, the engine another share")
    return args[0].copy_(_shaped(numbers, args[0]))


def _drop(func: Any, args: Any, kwargs: Any, kind: str, numbers: torch.Tensor) -> Any:
    """``native_dropout(x, p, train)`` → result, what is kept: so in inference_mode."""
    x, p = args[:2]
    kept = _keep(func, (torch.empty_like(x), 1 - p), {}, kind, numbers)
    return x * kept / (1 - p), kept.bool()


def _take(kinds: tuple[str, ...]) -> Any:
    def take(func: Any, args: Any, kwargs: Any, kind: str, numbers: torch.Tensor) -> Any:
        if kind not in kinds:
            raise Unmatched(f"PyTorch draws {func}, the engine {kind}")
        like = args[0] if isinstance(args[0], torch.Tensor) else None
        made = torch.empty_like(like, **kwargs) if like is not None else None
        return _shaped(numbers, torch.empty(args[0], **kwargs) if made is None else made)

    return take


_aten = torch.ops.aten
_TAKEN: dict[Any, Any] = {
    _aten.bernoulli_.float: _keep,
    _aten.native_dropout.default: _drop,
    _aten.rand.default: _take(_UNIFORM),
    _aten.rand_like.default: _take(_UNIFORM),
    _aten.randn.default: _take(_NORMAL),
    _aten.randn_like.default: _take(_NORMAL),
}
_NOT_RANDOM_HERE = {  # where no dropout is asked for, or it would be drawn by operators above
    _aten._scaled_dot_product_flash_attention_for_cpu.default,
    _aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
}
