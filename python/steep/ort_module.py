"""``ORTModule``: a ``torch.nn.Module`` whose forward and backward run in Steep's engine."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves

from steep.attributes import (
    Attributes,
    name_attribute,
    read_attributes,
)
from steep.call import Autograd, Call, autocast_precision
from steep.errors import Error, ModelError, ProviderError
from steep.export import export
from steep.exported import Exported
from steep.report import ExportReport, Report
from steep.structure import Structure, flatten, unflatten

log = logging.getLogger("steep")

# An attribute that changes so often without a change of the graph is a counter of the loop around.
_IDLE_CHANGES = 3

# Of so many sets of attributes the graphs are kept, for each kind of call.
_KEPT_ATTRIBUTES = 8


# Of all modules: exporters replace functions of PyTorch while they work. What runs a graph takes
# turns by itself, and is not called under this lock.
_finding = threading.RLock()


def _enter_child() -> None:
    """Leave behind a lock whose holder may be gone, and threads that PyTorch would wait for."""
    globals()["_finding"] = threading.RLock()
    torch.set_num_threads(1)


os.register_at_fork(after_in_child=_enter_child)


class ORTModule(torch.nn.Module):
    """Runs a module's forward and backward in Steep's engine; everything else stays PyTorch.

    ``model = ORTModule(model)`` is the only change to a training loop. Parameters, buffers and
    submodules are those of the wrapped module, under its names; optimizers, losses, ``train()``,
    ``eval()``, ``state_dict()``, ``requires_grad_()`` and gradient accumulation work as before.

    PyTorch's tracer, Dynamo, captures the module at its first call, and again when a condition of
    its graphs no longer holds: an attribute, a global, a hook, a mode, the structure, dtypes or
    extents of arguments. From the second extents on a graph is asked for any. What the engine
    cannot run, and what lies between two graphs where Python decides on values, PyTorch runs; that
    is said once, by line, and ``report()`` lists it.

    The first call that wants gradients makes malloc keep what PyTorch frees, for the whole process:
    a loss outside the module then works in memory that it has touched before. Set
    ``STEEP_MALLOC=system`` in the environment to leave malloc as it is.

    Inside ``torch.autocast("cpu", torch.bfloat16)`` matrix products run in bfloat16; weights and
    their gradients stay float32, and results have the dtypes that autocast gives them.
    ``precision="bf16"`` asks for bfloat16 products in every call, and leaves the types of all
    results alone. float16 works in the same way; the loss is then to be scaled, by PyTorch's
    ``GradScaler`` for instance:

    >>> model = ORTModule(model, precision="bf16")

    Gradients stop where the module stops them (``detach``, ``no_grad``). ``create_graph=True``
    gives second derivatives. A tensor that forward writes in place after an operation kept it for
    backward is no error, as in ``torch.compile``: the gradient is that of the value it had.

    Dropout draws its seeds from PyTorch's generator: ``torch.manual_seed`` makes runs repeatable.

    Args:
        module: any module with parameters in CPU memory, contiguous.
        fallback: ``"parts"``: PyTorch runs what the engine cannot, and it is an error if nothing
            runs here. None: one graph, all of it here, or an error. ``"torch"``: as None, but
            PyTorch runs such a call, whole; ``fallback_calls`` counts them.
        exporter: ``"dynamo"``. The ways before it take a module for one graph that holds until the
            attributes that it reads change, and raise where that cannot be:
            ``"torch.export"``, ``"tracing"``, or ``"torch.onnx"``, the first of these that works.
        opset: ONNX opset to export, with one of these ways; by default the exporter's.
        precision: "fp32", "bf16" or "fp16"; by default what ``torch.autocast`` says at each call.
        verify: run the first step of each graph in PyTorch as well, and compare (docs/verify.md).
            By default what ``STEEP_VERIFY`` says. For ``exporter="dynamo"`` alone.

    Raises (when called):
        ModelError: nothing of the module can run in the engine, or not all that was asked for, or
            there would be too many graphs; or an operator has no gradient (all are named).
        ShapeError, DataError: an argument does not fit, or holds wrong values, such as a label out
            of range.
        ProviderError: an operator has no kernel.
        VerificationError: a result, or a gradient in backward, is not PyTorch's.
    """

    _latest: Attributes  # for which a graph was exported last
    _OWN = frozenset({"export_reports", "fallback", "fallback_calls", "precision", "training"})

    def __init__(
        self,
        module: torch.nn.Module,
        *,
        fallback: str | None = "parts",
        exporter: str = "dynamo",
        opset: int | None = None,
        precision: str | None = None,
        verify: bool | None = None,
    ) -> None:
        if not isinstance(module, torch.nn.Module):
            raise TypeError(f"ORTModule wraps a torch.nn.Module, not a {type(module).__name__}")
        if fallback not in (None, "parts", "torch"):
            raise ValueError(f'fallback must be None, "parts" or "torch", not {fallback!r}')
        if exporter not in ("dynamo", "torch.onnx", "torch.export", "tracing"):
            raise ValueError(
                'exporter must be "dynamo", "torch.onnx", "torch.export" or "tracing", '
                f"not {exporter!r}"
            )
        if opset is not None and exporter == "dynamo":
            raise ValueError('opset is for files: exporter="torch.onnx", or steep.trainer')
        if precision not in (None, "fp32", "bf16", "fp16"):
            raise ValueError(f'precision must be None, "fp32", "bf16" or "fp16", not {precision!r}')
        if verify and exporter != "dynamo":
            raise ValueError('verify=True is for exporter="dynamo"')
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
        own["_verify"] = verify
        own["_exports"] = {}  # by structure and types of a call, then by attributes
        own["_latest"] = ()
        own["_idle"] = {}
        own["_unwatched"] = set()
        own["_calls"] = {}
        own["_captured"] = {}  # by precision, and by whether it is to be one graph

    @property
    def module(self) -> torch.nn.Module:
        """The wrapped module."""
        return self._module

    @property
    def export_report(self) -> ExportReport | None:
        """How the latest graph came about; None before the first call."""
        return self.export_reports[-1] if self.export_reports else None

    def report(self) -> Report:
        """Return what became of the module so far: graphs, why several, what PyTorch runs."""
        return Report(
            type(self._module).__name__,
            tuple(self.export_reports),
            tuple(why for captured in self._captured.values() for why in captured.breaks),
            self.fallback_calls,
        )

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run as the wrapped module's ``forward`` would."""
        if torch.compiler.is_dynamo_compiling() or _only_observed(args, kwargs):
            return self._module(*args, **kwargs)
        if self._options["exporter"] == "dynamo":
            return self._run_captured(args, kwargs)
        try:
            tensors, structure = flatten((args, kwargs))
            tensors = _as_autocast_would(tensors)
            with _finding:
                call = self._find(tensors, structure)
            if call.gradients and torch.is_grad_enabled():
                wanted = [tensors[i] for i in call.wanted_inputs]
                parameters = [slot.owner[slot.key] for slot in call.trainable]
                results = list(Autograd.apply(call, tensors, *wanted, *parameters))
            else:
                results = call.run(tensors, gradients=False)[0]
        except (ModelError, ProviderError) as e:
            if self.fallback != "torch":
                raise
            return self._run_in_torch(e, args, kwargs)
        return unflatten(call.exported.results, call.keep_statistics(results))

    def _run_captured(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        precision, whole = self.precision, self.fallback != "parts"
        captured = self._captured.get((precision, whole))
        if captured is None:
            from steep.capture import Captured  # loads a large part of PyTorch

            captured = self._captured[precision, whole] = Captured(
                self._module,
                lambda: precision or autocast_precision(),
                self.export_reports.append,
                whole=whole,
                verify=self._verify,
            )
        try:
            result, ran = captured(*args, **kwargs)
        except (ModelError, ProviderError) as e:
            if self.fallback != "torch":
                raise
            return self._run_in_torch(e, args, kwargs)
        if not ran:
            raise ModelError(
                f"Nothing of the module {type(self._module).__name__} ran in the engine.",
                received="; ".join(r.reason for r in self.export_reports if r.reason),
                remedy='change the code named above, or let PyTorch run it: fallback="torch"',
            )
        return result

    def _run_in_torch(self, e: Error, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with _finding:
            self.__dict__["fallback_calls"] += 1
            if self.fallback_calls == 1:
                log.warning("running in PyTorch instead: %s", e)
        return self._module(*args, **kwargs)

    def _find(self, tensors: list[torch.Tensor], structure: Structure) -> Call:
        precision = self.precision or autocast_precision()
        types = tuple((t.dtype, t.ndim) for t in tensors)
        by_attributes = self._exports.setdefault((structure, types), {})
        attributes = read_attributes(self._module, self._unwatched)
        exported = next((e for e in by_attributes.get(attributes, ()) if e.accepts(tensors)), None)
        if exported is None:
            exported = self._export(by_attributes, tensors, structure)
        parameters = _parameters(self._module)
        trainable = frozenset(n for n, p in parameters if p.requires_grad)
        first: dict[int, int] = {}
        ties = tuple(first.setdefault(id(p), i) for i, (_, p) in enumerate(parameters))
        wanted = tuple(i for i in sorted(exported.inputs) if tensors[i].requires_grad)
        narrow = precision != "fp32" and torch.is_autocast_enabled("cpu")
        parts = tuple(self._module.modules())  # whose tables of parameters a call has bound
        call_key = (id(exported), trainable, wanted, precision, narrow, parts, ties)
        call: Call | None = self._calls.get(call_key)
        if call is None:
            call = self._calls[call_key] = Call(
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
        tensors: list[torch.Tensor],
        structure: Structure,
    ) -> Exported:
        fresh = export(self._module, structure, tensors, **self._options)
        # Not what stood there before: forward may have filled a cache, for good.
        attributes = read_attributes(self._module, self._unwatched)
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

    def _note_idle(self, changed: set[tuple[torch.nn.Module, str, object]]) -> None:
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
                name_attribute(self._module, module, name),
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
        # A framework that replaces `forward` wraps it around ours; the module keeps its own.
        if name in self._OWN or name.startswith("_") or name == "forward":
            self.__dict__[name] = value
            return
        setattr(self._module, name, value)

    def __delattr__(self, name: str) -> None:
        if name == "forward" and name in self.__dict__:
            del self.__dict__[name]
            return
        delattr(self._module, name)

    def __reduce_ex__(self, protocol: Any) -> Any:
        options = {"fallback": self.fallback, "precision": self.precision, **self._options}
        options["verify"] = self._verify
        return _rebuild, (self._module, options)

    def extra_repr(self) -> str:
        """Describe the wrapped module."""
        return type(self._module).__name__


def _only_observed(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether this call computes nothing: an exporter, or shape propagation, looks on.

    What looks on wants the operators of the module; an ORTModule within another becomes part of
    the graph of the outer one.
    """
    # Not torch.compiler.is_exporting(): it is true for other threads, too.
    return torch.jit.is_tracing() or any(
        isinstance(t, FakeTensor) for t in tree_leaves((args, kwargs))
    )


def _as_autocast_would(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Widen what other modules in the region made narrow: the engine narrows by itself."""
    if not torch.is_autocast_enabled("cpu"):
        return tensors
    return [t.float() if t.dtype in (torch.bfloat16, torch.float16) else t for t in tensors]


def _rebuild(module: torch.nn.Module, options: dict[str, Any]) -> ORTModule:
    return ORTModule(module, **options)


def _parameters(module: torch.nn.Module) -> list[tuple[str, torch.nn.Parameter]]:
    return list(module.named_parameters(remove_duplicate=False))
