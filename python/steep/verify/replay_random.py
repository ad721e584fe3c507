"""Replays the random numbers of a run in the engine, so that PyTorch uses the same ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import onnx
import torch
from torch.utils.dlpack import from_dlpack, to_dlpack

from steep._steep import ModuleProgram
from steep.errors import Error
from steep.torch_internals.dispatch import TorchDispatchMode
from steep.torch_internals.operators import OpOverload, aten, can_decompose, name_of, schema_of

if TYPE_CHECKING:
    from steep.graph.compiled_graph import CompiledGraph


class Unmatched(Exception):
    """PyTorch draws other random numbers than the engine, so that no comparison is possible."""


class Masks(TorchDispatchMode):
    """Lets PyTorch use the random numbers of this thread's last engine run.

    These are the numbers drawn before the run (lowering/random_inputs.py), among its tensors
    ``inputs``, and the masks of dropouts. Each kind comes in the order of the captured graph.
    """

    def __init__(self, compiled: CompiledGraph, inputs: Sequence[torch.Tensor]) -> None:
        super().__init__()
        calls = compiled.lowered.draws.calls
        numbers = inputs[len(inputs) - len(calls) :]
        self.draws = [(_name_of(call[0]), n) for call, n in zip(calls, numbers, strict=True)]
        self.masks: list[torch.Tensor] = []
        if compiled.engine_graph.program.random:
            try:
                self.masks = _masks_of(compiled, inputs)
            except Error as e:
                raise Unmatched(f"the engine does not return its masks: {e.what}") from e
        self.rewind()

    def rewind(self) -> None:
        """Start again from the first number, for another run."""
        self._draws, self._masks = iter(self.draws), iter(self.masks)
        self._next_draw, self._next_mask = next(self._draws, None), next(self._masks, None)

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags or func in _DRAWS_ABOVE:
            return func(*args, **kwargs)
        if func is aten.bernoulli_.float and self._is_dropout(args):
            return args[0].copy_(self._mask(args[0], *args[1:2] or (0.5,)))
        if func is aten.native_dropout.default:
            x, p = args[:2]
            drawn_mask = self._mask(x, 1 - p)
            return x * drawn_mask / (1 - p), drawn_mask.bool()
        if self._next_draw is not None and self._next_draw[0] == _name_of(func):
            return self._number(func, args)
        if can_decompose(func):  # inference_mode does not decompose it
            with self:
                return func.decompose(*args, **kwargs)
        raise Unmatched(f"the engine has no numbers for {func}")

    def check_all_used(self) -> None:
        """Raise Unmatched if the engine has more numbers than PyTorch used."""
        if self._next_draw is not None or self._next_mask is not None:
            raise Unmatched("the engine draws more random numbers than PyTorch")

    def _is_dropout(self, args: tuple[Any, ...]) -> bool:
        """Return whether this call draws a dropout's mask, rather than a number drawn before."""
        mask, draw = self._next_mask, self._next_draw
        mine = mask is not None and mask.numel() == args[0].numel()
        other = draw is not None and draw[0] == "bernoulli" and draw[1].shape == args[0].shape
        if mine and other:
            raise Unmatched("a mask may be one of two that are drawn")
        return not other

    def _mask(self, like: torch.Tensor, p: float) -> torch.Tensor:
        """Return the next mask in the shape and dtype of ``like``: 1 for entries that are kept."""
        mask, self._next_mask = self._next_mask, next(self._masks, None)
        if mask is None:
            raise Unmatched("PyTorch has more dropouts than the engine")
        if mask.numel() != like.numel():
            raise Unmatched("the engine has dropouts of other shapes")
        if abs(float(mask.float().mean()) - p) > 6 / (mask.numel() + 1) ** 0.5:
            raise Unmatched(f"PyTorch keeps {p:.3g} of the entries, the engine another share")
        return mask.reshape(like.shape).to(like.dtype)

    def _number(self, func: OpOverload, args: tuple[Any, ...]) -> torch.Tensor:
        assert self._next_draw is not None
        numbers, self._next_draw = self._next_draw[1], next(self._draws, None)
        like = args[0] if args and isinstance(args[0], torch.Tensor) else numbers
        if like.shape != numbers.shape:
            raise Unmatched("the engine has random numbers of other shapes")
        if schema_of(func).name.endswith("_"):
            return like.copy_(numbers)
        wide = like.dtype == torch.float64 and numbers.dtype.is_floating_point
        return numbers.to(torch.float64 if wide else numbers.dtype, copy=True)


def _name_of(func: OpOverload) -> str:
    """Return the base name of a random operator, without in-place and functional suffixes."""
    name = name_of(func)
    return name.removesuffix("_functional").rstrip("_").removesuffix("_like")


def _masks_of(compiled: CompiledGraph, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Run the graph again with the seed of its last run; return the masks of its dropouts."""
    engine = compiled.engine_graph
    model = onnx.load_from_string(engine.model)
    count = len(model.graph.output)
    constants = _constants(model)
    for number, node in enumerate(model.graph.node):
        if node.op_type != "Dropout" or not all(constants.get(i, 1) for i in node.input[1:]):
            continue  # in evaluation mode, or with rate 0
        del node.output[1:]
        node.output.append(f"steep.mask_{number}")
        kind = onnx.TensorProto.BOOL
        model.graph.output.append(onnx.helper.make_tensor_value_info(node.output[1], kind, None))
    program = ModuleProgram(model.SerializeToString(), inputs=engine.names, input_gradients=[])
    arrays = [to_dlpack(inputs[i].detach().contiguous()) for i in engine.inputs]
    capsules = program.forward(arrays, False, engine.last.seed)[0]
    masks = [from_dlpack(c) for c in capsules[count:]]
    return [m for m in masks if m.numel()]


def _constants(model: onnx.ModelProto) -> dict[str, float]:
    """Return the scalar constants by name."""
    tensors = {t.name: t for t in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant":
            tensors.update((node.output[0], a.t) for a in node.attribute if a.name == "value")
    arrays = {k: onnx.numpy_helper.to_array(t) for k, t in tensors.items() if not t.dims}
    return {name: float(a) for name, a in arrays.items()}


_DRAWS_ABOVE = {  # without dropout, or composite operators have drawn it
    aten._scaled_dot_product_flash_attention_for_cpu.default,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
}
