"""``ORTModule``: a ``torch.nn.Module`` whose forward and backward run in Steep's engine."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.utils.dlpack import from_dlpack, to_dlpack

from steep._steep import ModuleProgram, ModuleRun, keep_freed_memory, return_freed_memory
from steep.errors import ModelError, ProviderError
from steep.export import PLAIN, Attributes, Exported, export, name_attribute, read_attributes
from steep.session import announce_precision
from steep.structure import Structure, flatten, unflatten

log = logging.getLogger("steep")

_SEED_RANGE = 2**63 - 1

# An attribute that changes so often without a change of the graph is a counter of the loop around.
_IDLE_CHANGES = 3

# Of so many sets of attributes the graphs are kept, for each kind of call.
_KEPT_ATTRIBUTES = 8

# Before these steps malloc gives back what the last ones left in gaps that no later request may
# fit. By the last of them the gaps are where they stay.
_TIDIED_STEPS = (2, 3, 5, 9, 17)


@dataclasses.dataclass(frozen=True)
class ExportReport:
    """How one graph of the module came about."""

    exporter: str  # "torch.export" or "tracing"
    reason: str  # why not torch.export; empty when it was
    training: bool
    seconds: float
    cached: bool = False  # taken from what another process had exported


class _Slot:
    """A parameter or buffer and the bytes that the engine has bound for it."""

    __slots__ = ("key", "name", "owner", "pointer", "tensor")

    def __init__(self, owner: dict[str, torch.Tensor | None], key: str, name: str) -> None:
        self.owner, self.key, self.name = owner, key, name
        self.tensor: Any = None  # what is bound; none yet
        self.pointer = 0


class _Call:
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
        self.exported = exported
        every = {slot.name: slot for slot in _slots(module)}
        self.slots = [every[name] for name in every if name in set(exported.states.values())]
        self.statistics = [every[name] for name in exported.statistics]
        self.counters = [every[name] for name in exported.counters]
        by_tensor: dict[int, str] = {}  # tied weights: the first name stands for all
        canonical = {s.name: by_tensor.setdefault(id(s.owner[s.key]), s.name) for s in self.slots}
        states = {graph_name: canonical[name] for graph_name, name in exported.states.items()}
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
    ) -> tuple[list[torch.Tensor], ModuleRun | None]:
        self.bind()
        self.steps += gradients
        if self.steps in _TIDIED_STEPS:
            return_freed_memory()
        seed = int(torch.randint(_SEED_RANGE, ())) if self.program.random else 0
        if not self.announced and log.isEnabledFor(logging.INFO):
            examples = [to_dlpack(tensors[i].detach().contiguous()) for i in self.exported.inputs]
            log.info("step planned: %s", self.program.plan(examples, gradients))
        self.announced = True
        arrays = [to_dlpack(tensors[i].detach().contiguous()) for i in self.exported.inputs]
        capsules, run = self.program.forward(arrays, gradients, seed)
        return [from_dlpack(c) for c in capsules], run


class _Autograd(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, call: _Call, tensors: list[torch.Tensor], *wanted: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        results, ctx.run = call.run(tensors, gradients=True)
        ctx.call = call
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(
            *(r for r, constant in zip(results, call.constant_results, strict=True) if constant)
        )
        # The engine holds the bytes; saving them makes PyTorch notice when they change too early,
        # and refuse a second backward that nobody asked to retain.
        ctx.save_for_backward(*tensors, *wanted)
        return tuple(results)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        _ = ctx.saved_tensors  # raises when one was changed in place, or freed
        if all(g is None for g in gradients):
            return (None,) * (2 + len(ctx.call.wanted_inputs) + len(ctx.call.trainable))
        arrays = [None if g is None else to_dlpack(g.contiguous()) for g in gradients]
        capsules = ctx.call.program.backward(ctx.run, arrays)
        return None, None, *(None if c is None else from_dlpack(c) for c in capsules)


class ORTModule(torch.nn.Module):
    """Runs a module's forward and backward in Steep's engine; everything else stays PyTorch.

    ``model = ORTModule(model)`` is the only change to a training loop. Parameters, buffers and
    submodules are those of the wrapped module, under its names; optimizers, losses, ``train()``,
    ``eval()``, ``state_dict()``, ``requires_grad_()`` and gradient accumulation work as before.

    The module is exported at its first call, and again only when its structure, its modes, numbers
    and strings among its attributes (a temperature, the rate of a dropout), or the structure,
    dtypes or ranks of its arguments change. Extents of arguments may vary from call to
    call wherever the module allows it. ``export_reports`` says which exporter was used, and why.

    The first call that wants gradients makes malloc keep what PyTorch frees, for the whole process:
    a loss outside the module then works in memory that it has touched before. Set
    ``STEEP_MALLOC=system`` in the environment to leave malloc as it is.

    Inside ``torch.autocast("cpu", torch.bfloat16)`` matrix products run in bfloat16; weights and
    their gradients stay float32, and so do the results, but for products that a module returns
    beside its loss: these are bfloat16, as autocast returns them. ``precision="bf16"`` asks for
    bfloat16 products in every call, and leaves the types of all results alone. float16 works
    in the same way; the loss is then to be scaled, by PyTorch's ``GradScaler`` for instance:

    >>> model = ORTModule(model, precision="bf16")

    Gradients stop where the module stops them (``detach``, ``no_grad``). What a graph cannot say
    is refused: the backward of a ``torch.autograd.Function``, hooks on the gradients of tensors
    within, numbers drawn by Python or NumPy.

    Dropout draws its seeds from PyTorch's generator: ``torch.manual_seed`` makes runs repeatable.

    Args:
        module: any module with parameters in CPU memory, contiguous.
        fallback: ``"torch"`` runs in PyTorch what the engine cannot run and counts those calls in
            ``fallback_calls``; by default such a call raises.
        exporter: ``"torch.export"`` or ``"tracing"``; by default the first that accepts the module.
        opset: ONNX opset to export; by default the exporter's.
        precision: "fp32", "bf16" or "fp16"; by default what ``torch.autocast`` says at each call.

    Raises (when called):
        ModelError: the module cannot be exported, or an operator has no gradient (all are named).
        ShapeError, DataError: an argument does not fit, or holds wrong values, such as a label out
            of range.
        ProviderError: an operator has no kernel.
    """

    _latest: Attributes  # for which a graph was exported last
    _OWN = frozenset({"export_reports", "fallback", "fallback_calls", "precision", "training"})

    def __init__(
        self,
        module: torch.nn.Module,
        *,
        fallback: str | None = None,
        exporter: str | None = None,
        opset: int | None = None,
        precision: str | None = None,
    ) -> None:
        if not isinstance(module, torch.nn.Module):
            raise TypeError(f"ORTModule wraps a torch.nn.Module, not a {type(module).__name__}")
        if fallback not in (None, "torch"):
            raise ValueError(f'fallback must be None or "torch", not {fallback!r}')
        if exporter not in (None, "torch.export", "tracing"):
            raise ValueError(
                f'exporter must be None, "torch.export" or "tracing", not {exporter!r}'
            )
        if precision not in (None, "fp32", "bf16", "fp16"):
            raise ValueError(f'precision must be None, "fp32", "bf16" or "fp16", not {precision!r}')
        super().__init__()
        own = self.__dict__
        own["_module"] = module
        # One set of tables for both: every inherited method sees the wrapped module's tensors,
        # under its names.
        for table in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
            own[table] = module.__dict__[table]
        own["training"] = module.training
        own["fallback"] = fallback
        own["fallback_calls"] = 0
        own["export_reports"] = []
        own["_options"] = {"exporter": exporter, "opset": opset}
        own["precision"] = precision
        own["_exports"] = {}  # by structure and types of a call, then by attributes
        own["_latest"] = ()
        own["_idle"] = {}
        own["_unwatched"] = set()
        own["_calls"] = {}

    @property
    def module(self) -> torch.nn.Module:
        """The wrapped module."""
        return self._module

    @property
    def export_report(self) -> ExportReport | None:
        """How the latest graph came about; None before the first call."""
        return self.export_reports[-1] if self.export_reports else None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run as the wrapped module's ``forward`` would."""
        try:
            tensors, structure = flatten((args, kwargs))
            tensors = _as_autocast_would(tensors)
            call = self._find(tensors, structure)
            if call.gradients and torch.is_grad_enabled():
                wanted = [tensors[i] for i in call.wanted_inputs]
                parameters = [slot.owner[slot.key] for slot in call.trainable]
                results = list(_Autograd.apply(call, tensors, *wanted, *parameters))
            else:
                results, _ = call.run(tensors, gradients=False)
        except (ModelError, ProviderError) as e:
            if self.fallback != "torch":
                raise
            if self.fallback_calls == 0:
                log.warning("running in PyTorch instead: %s", e)
            self.__dict__["fallback_calls"] += 1
            return self._module(*args, **kwargs)
        return unflatten(call.exported.results, call.keep_statistics(results))

    def _find(self, tensors: list[torch.Tensor], structure: Structure) -> _Call:
        precision = self.precision or _autocast_precision()
        types = tuple((t.dtype, t.ndim) for t in tensors)
        by_attributes = self._exports.setdefault((structure, types), {})
        attributes = read_attributes(self._module, self._unwatched)
        exported = next((e for e in by_attributes.get(attributes, ()) if e.accepts(tensors)), None)
        if exported is None:
            exported = self._export(by_attributes, attributes, tensors, structure)
        trainable = frozenset(n for n, p in _parameters(self._module) if p.requires_grad)
        wanted = tuple(i for i in sorted(exported.inputs) if tensors[i].requires_grad)
        narrow = precision != "fp32" and torch.is_autocast_enabled("cpu")
        call_key = (id(exported), trainable, wanted, precision, narrow)
        call: _Call | None = self._calls.get(call_key)
        if call is None:
            call = self._calls[call_key] = _Call(
                self._module,
                exported,
                set(trainable),
                wanted,
                precision=precision,
                narrow_results=narrow,
            )
        return call

    def _export(
        self,
        by_attributes: dict[Attributes, list[Exported]],
        attributes: Attributes,
        tensors: list[torch.Tensor],
        structure: Structure,
    ) -> Exported:
        fresh = export(self._module, structure, tensors, **self._options)
        changed = set(attributes) - set(self._latest)
        self._latest = attributes
        exports = by_attributes.setdefault(attributes, [])
        for known in {id(e): e for group in by_attributes.values() for e in group}.values():
            if fresh.model != known.model or fresh.inputs != known.inputs:
                continue
            if not known.accepts(tensors):
                known.learn(fresh, tensors)
            if all(known is not e for e in exports):
                exports.append(known)
                self._note_idle(changed)
                by_attributes.setdefault(read_attributes(self._module, self._unwatched), exports)
            return known
        self.export_reports.append(
            ExportReport(fresh.exporter, fresh.reason, fresh.training, fresh.seconds, fresh.cached)
        )
        exports.append(fresh)
        self._forget(by_attributes)
        return fresh

    def _note_idle(self, changed: set[tuple[int, str, object]]) -> None:
        """The graph is as before these changes. Leave alone what often changes in vain."""
        for module, name, _ in changed:
            if name == "training":  # decides as soon as another attribute lets it
                continue
            times = self._idle[module, name] = self._idle.get((module, name), 0) + 1
            if times < _IDLE_CHANGES:
                continue
            self._unwatched.add((module, name))
            log.warning(
                "%s changed %d times and the graph never did: it is not watched any longer",
                name_attribute(self._module, (module, name)),
                times,
            )

    def _forget(self, by_attributes: dict[Attributes, list[Exported]]) -> None:
        """Keep few graphs: a schedule would pile up one a step, with its memory."""
        while len(by_attributes) > _KEPT_ATTRIBUTES:
            del by_attributes[next(iter(by_attributes))]
        kept = {id(e) for kind in self._exports.values() for g in kind.values() for e in g}
        for key in [key for key, call in self._calls.items() if id(call.exported) not in kept]:
            del self._calls[key]

    # --- what must reach the wrapped module -------------------------------------------------------

    def train(self, mode: bool = True) -> ORTModule:
        """Set training mode, as ``torch.nn.Module.train``."""
        self._module.train(mode)
        self.__dict__["training"] = self._module.training
        return self

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> ORTModule:
        self._module._apply(fn, recurse)
        return self

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the wrapped module's state, under its names."""
        return self._module.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Load the wrapped module's state."""
        return self._module.load_state_dict(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name in self.__dict__:
            return self.__dict__[name]
        return getattr(self.__dict__["_module"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._OWN or name.startswith("_"):
            self.__dict__[name] = value
            return
        setattr(self._module, name, value)
        if type(value) not in PLAIN:
            self._exports.clear()  # forward may read it
            self._calls.clear()

    def __delattr__(self, name: str) -> None:
        delattr(self._module, name)
        self._exports.clear()
        self._calls.clear()

    def __reduce_ex__(self, protocol: Any) -> Any:
        options = {"fallback": self.fallback, "precision": self.precision, **self._options}
        return _rebuild, (self._module, options)

    def extra_repr(self) -> str:
        """Describe the wrapped module."""
        return type(self._module).__name__


def _autocast_precision() -> str:
    """Return what the region of autocast around this call asks for."""
    if not torch.is_autocast_enabled("cpu"):
        return "fp32"
    dtype = torch.get_autocast_dtype("cpu")
    return "fp16" if dtype == torch.float16 else "bf16"  # autocast takes no others


def _as_autocast_would(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Widen what other modules in the region made narrow: the engine narrows by itself."""
    if not torch.is_autocast_enabled("cpu"):
        return tensors
    return [t.float() if t.dtype in (torch.bfloat16, torch.float16) else t for t in tensors]


def _rebuild(module: torch.nn.Module, options: dict[str, Any]) -> ORTModule:
    return ORTModule(module, **options)


def _parameters(module: torch.nn.Module) -> list[tuple[str, torch.nn.Parameter]]:
    return list(module.named_parameters(remove_duplicate=False))


def _slots(module: torch.nn.Module) -> list[_Slot]:
    """Every place of a parameter or buffer, shared ones under each of their names."""
    slots = []
    for prefix, m in module.named_modules(remove_duplicate=False):
        for table in (m._parameters, m._buffers):
            for key, tensor in table.items():
                if tensor is not None:
                    name = f"{prefix}.{key}" if prefix else key
                    slots.append(_Slot(table, key, name))  # type: ignore[arg-type]
    return slots
