"""One exported graph of a module, ready to run: forward, backward, and derivatives of that."""

from __future__ import annotations

import dataclasses
import logging
import threading
from typing import Any

import onnx
import torch
from torch.utils.dlpack import from_dlpack, to_dlpack

from steep._steep import (
    ModuleProgram,
    ModuleRun,
    gradient_model,
    keep_freed_memory,
    return_freed_memory,
)
from steep.errors import ModelError
from steep.exported import Exported
from steep.session import announce_precision

log = logging.getLogger("steep")

_SEED_RANGE = 2**63 - 1

# Before these steps malloc gives back what the last ones left in gaps that no later request may
# fit. By the last of them the gaps are where they stay.
_TIDIED_STEPS = (2, 3, 5, 9, 17)


def autocast_precision() -> str:
    """Return what the region of autocast around this call asks for."""
    if not torch.is_autocast_enabled("cpu"):
        return "fp32"
    dtype = torch.get_autocast_dtype("cpu")
    return "fp16" if dtype == torch.float16 else "bf16"  # autocast takes no others


class Slot:
    """A parameter or buffer and the bytes that the engine has bound for it."""

    __slots__ = ("key", "name", "owner", "pointer", "tensor")

    def __init__(self, owner: dict[str, torch.Tensor | None], key: str, name: str) -> None:
        self.owner, self.key, self.name = owner, key, name
        self.tensor: Any = None  # what is bound; none yet
        self.pointer = 0


class Call:
    """A graph ready to run: one exported model, differentiated for one set of wanted gradients."""

    def __init__(
        self,
        module: torch.nn.Module,
        exported: Exported,
        trainable: set[str],
        wanted_inputs: tuple[int, ...],
        *,
        precision: str,
        narrow_results: bool,
    ) -> None:
        self.module = module
        self.exported = exported
        self.precision = precision
        self._differentiated: dict[tuple[tuple[int, ...], tuple[int, ...]], Call] = {}
        every = {slot.name: slot for slot in _slots(module)}
        self.slots = [every[name] for name in every if name in set(exported.states.values())]
        self.statistics = [every[name] for name in exported.statistics]
        self.counters = [every[name] for name in exported.counters]
        by_tensor: dict[int, str] = {}  # tied weights: the first name stands for all
        canonical = {s.name: by_tensor.setdefault(id(s.owner[s.key]), s.name) for s in self.slots}
        states = {graph_name: canonical[name] for graph_name, name in exported.states.items()}
        self.states = states
        self.slots = [slot for slot in self.slots if canonical[slot.name] == slot.name]
        self.trainable = [slot for slot in self.slots if slot.name in trainable]
        self.wanted_inputs = wanted_inputs
        names = dict(zip(exported.inputs, exported.names, strict=True))
        self.program = ModuleProgram(
            exported.model,
            inputs=exported.names,
            states=states,
            trainable=[slot.name for slot in self.trainable],
            input_gradients=[names.get(i, "") for i in wanted_inputs],
            training=exported.training,
            precision=precision,
            narrow_results=narrow_results,
        )
        announce_precision(precision)
        self.announced = False
        self.steps = 0
        self.last = threading.local()  # of each thread's last run: the seed
        self.constant_results = [not d for d in self.program.differentiable]
        self.gradients = bool(self.trainable or wanted_inputs) and not all(self.constant_results)
        if self.gradients:  # a loop follows that allocates the same arrays at every step
            keep_freed_memory()
            return_freed_memory()  # of the export

    def bind(self) -> None:
        """Bind what is new or has moved: a loaded, replaced or resized parameter."""
        for slot in self.slots:
            tensor = slot.owner[slot.key]
            if tensor is None:
                raise ModelError(
                    "A parameter of the exported graph is gone.",
                    node=slot.name,
                    received="None",
                    remedy="wrap the changed module in a new ORTModule",
                )
            if tensor is slot.tensor and tensor.data_ptr() == slot.pointer:
                continue
            if tensor.device.type != "cpu":
                raise ModelError(
                    "A parameter is not in CPU memory.",
                    node=slot.name,
                    received=str(tensor.device),
                    remedy='move the module with .to("cpu")',
                )
            if not tensor.is_contiguous():
                raise ModelError(
                    "A parameter is not contiguous, so it cannot be shared.",
                    node=slot.name,
                    received=f"strides {tensor.stride()}",
                    remedy="assign parameter.data = parameter.data.contiguous()",
                )
            self.program.bind(slot.name, to_dlpack(tensor))
            slot.tensor, slot.pointer = tensor, tensor.data_ptr()

    def check_in_place(self) -> None:
        """Raise where a parameter's memory is no longer what backward would read."""
        for slot in self.slots:
            if slot.tensor is not None and slot.tensor.data_ptr() != slot.pointer:
                raise ModelError(
                    "A parameter's memory has moved between forward and backward.",
                    node=slot.name,
                    remedy='use exporter="dynamo", which reads parameters where they are',
                )

    def keep_statistics(self, results: list[torch.Tensor]) -> list[torch.Tensor]:
        """Write running statistics into their buffers; return the other results."""
        count = len(results) - len(self.statistics)
        with torch.no_grad():
            for slot, value in zip(self.statistics, results[count:], strict=True):
                buffer = slot.owner[slot.key]
                assert buffer is not None
                buffer.copy_(value)
            for slot in self.counters:
                counter = slot.owner[slot.key]
                assert counter is not None
                counter.add_(1)
        return results[:count]

    def run(
        self, tensors: list[torch.Tensor], gradients: bool
    ) -> tuple[list[torch.Tensor], ModuleRun | None, list[bool]]:
        """Return the results, the run that waits for backward, which results backward reads."""
        self.bind()
        self.steps += gradients
        if self.steps in _TIDIED_STEPS:
            return_freed_memory()
        seed = int(torch.randint(_SEED_RANGE, ())) if self.program.random else 0
        self.last.seed = seed
        if not self.announced and log.isEnabledFor(logging.INFO):
            examples = [to_dlpack(tensors[i].detach().contiguous()) for i in self.exported.inputs]
            log.info("step planned: %s", self.program.plan(examples, gradients))
        self.announced = True
        arrays = [to_dlpack(tensors[i].detach().contiguous()) for i in self.exported.inputs]
        capsules, run, read = self.program.forward(arrays, gradients, seed)
        return [from_dlpack(c) for c in capsules], run, read

    def differentiated(self, wanted: tuple[int, ...], among: tuple[int, ...]) -> Call:
        """Return the graph of this one's gradients as a call of its own, made when first asked for.

        Its tensors are this call's and then the gradients of the results ``among``; its last
        results are the gradients of ``wanted_inputs`` and ``trainable``. Of its tensors those
        at ``wanted`` may be differentiated again.
        """
        call = self._differentiated.get((wanted, among))
        if call is not None:
            return call
        if self.program.random:
            raise ModelError(
                "The gradients of a graph that draws random numbers are not differentiated again.",
                expected="create_graph=False, or a module in evaluation mode",
                remedy="call eval() on the dropouts within, or run this module in PyTorch",
            )
        exported = self.exported
        outputs = [o.name for o in onnx.load_from_string(exported.model).graph.output]
        names = dict(zip(exported.inputs, exported.names, strict=True))
        wrt = [names[i] for i in self.wanted_inputs if i in names]
        wrt += [g for slot in self.trainable for g in self._graph_names(slot)]
        model = gradient_model(exported.model, wrt, [outputs[i] for i in among], True)
        own = set(exported.names) | set(exported.states)
        seeds = [v.name for v in onnx.load_from_string(model).graph.input if v.name not in own]
        count = len(exported.extents)
        call = self._differentiated[wanted, among] = Call(
            self.module,
            dataclasses.replace(
                exported,
                model=model,
                inputs=[*exported.inputs, *range(count, count + len(seeds))],
                names=[*exported.names, *seeds],
                extents=[*exported.extents, *([] for _ in seeds)],
                statistics=[],
                counters=[],
            ),
            {slot.name for slot in self.trainable},
            wanted,
            precision=self.precision,
            narrow_results=False,
        )
        return call

    def gradients_from(self, results: list[torch.Tensor]) -> list[torch.Tensor | None]:
        """Sort the last results of ``differentiated``: those of tied weights are added."""
        known = set(self.exported.inputs)
        places = [1 if i in known else 0 for i in self.wanted_inputs]
        places += [len(self._graph_names(slot)) for slot in self.trainable]
        rest = iter(results[len(results) - sum(places) :])
        return [sum(next(rest) for _ in range(n)) if n else None for n in places]

    def _graph_names(self, slot: Slot) -> list[str]:
        return [graph for graph, name in self.states.items() if name == slot.name]


class Autograd(torch.autograd.Function):
    """A run of a call as one node of autograd: apply(call, tensors, *wanted inputs, *trainable)."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, call: Call, tensors: list[torch.Tensor], *wanted: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Return the results; keep what backward needs."""
        results, ctx.run, read = call.run(tensors, gradients=True)
        ctx.call = call
        ctx.pointers = [t.data_ptr() for t in tensors]
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(
            *(r for r, constant in zip(results, call.constant_results, strict=True) if constant)
        )
        # The engine holds the bytes; saving them makes PyTorch notice when they change too early,
        # and refuse a second backward that nobody asked to retain.
        held = [result for result, kept in zip(results, read, strict=True) if kept]
        ctx.save_for_backward(*tensors, *wanted, *held)
        ctx.tensor_count = len(tensors)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        """Return a gradient, or None, for each argument of apply()."""
        saved = ctx.saved_tensors  # raises when one was changed in place, or freed
        if all(g is None for g in gradients):
            return (None,) * (2 + len(ctx.call.wanted_inputs) + len(ctx.call.trainable))
        if torch.is_grad_enabled():  # create_graph=True
            tensors = list(saved[: ctx.tensor_count])
            return None, None, *_differentiable_backward(ctx.call, tensors, gradients)
        arrays = [None if g is None else to_dlpack(g.contiguous()) for g in gradients]
        tensors = saved[: ctx.tensor_count]
        moved = {}
        if [t.data_ptr() for t in tensors] != ctx.pointers:  # freed and gathered anew, in between
            inputs = ctx.call.exported.inputs
            moved = {k: to_dlpack(tensors[i].detach().contiguous()) for k, i in enumerate(inputs)}
        ctx.call.check_in_place()
        capsules = ctx.call.program.backward(ctx.run, arrays, moved)
        return None, None, *(None if c is None else from_dlpack(c) for c in capsules)


def _differentiable_backward(
    call: Call, tensors: list[torch.Tensor], gradients: tuple[torch.Tensor | None, ...]
) -> list[torch.Tensor | None]:
    """Run the backward as a forward of its own, for derivatives of the gradients."""
    among = tuple(i for i, g in enumerate(gradients) if g is not None)
    tensors += [g for g in gradients if g is not None]
    wanted = tuple(i for i, t in enumerate(tensors) if t.requires_grad)
    again = call.differentiated(wanted, among)
    parameters = [slot.owner[slot.key] for slot in again.trainable]
    inputs = [tensors[i] for i in again.wanted_inputs]
    return call.gradients_from(list(Autograd.apply(again, tensors, *inputs, *parameters)))


def _slots(module: torch.nn.Module) -> list[Slot]:
    """Every place of a parameter or buffer, shared ones under each of their names."""
    slots = []
    for prefix, m in module.named_modules(remove_duplicate=False):
        for table in (m._parameters, m._buffers):
            for key, tensor in table.items():
                if tensor is not None:
                    name = f"{prefix}.{key}" if prefix else key
                    slots.append(Slot(table, key, name))  # type: ignore[arg-type]
    return slots
