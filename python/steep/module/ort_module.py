"""``ORTModule``: a ``torch.nn.Module`` whose forward and backward run in Steep's engine."""

from __future__ import annotations

import contextlib
import copy
import logging
import os
import threading
import time
import types
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeAlias, cast

import torch
from torch.nn.parameter import is_lazy

from steep import _steep
from steep.dynamo.report import Report
from steep.errors import Error, ModelError, ProviderError
from steep.inspection import StrPath, join_pages, make_dump, trace_of
from steep.module.module_with_loss import ModuleWithLoss
from steep.module.other_methods import OtherMethods
from steep.module.wrapped_names import belongs_to_wrapper, class_for
from steep.patching.torch_versions import is_tested, load
from steep.providers import Providers
from steep.session.memory_limit import limit_text

if TYPE_CHECKING:
    from steep.graph.compiled_graph import CompiledGraph
    from steep.module.capture_protocol import CaptureBackend

log = logging.getLogger("steep")

_Key: TypeAlias = int | slice | str  # of a container of modules

# Releases of PyTorch that the tests have not run with are captured by public interfaces alone.
_CAPTURE_PACKAGE = "steep.module" if is_tested() else "steep.public_capture"
capture_backend = cast("CaptureBackend", load(f"{_CAPTURE_PACKAGE}.capture_backend"))

# Protects fallback_calls, which calls from several threads change.
_counting = threading.Lock()


def _enter_child() -> None:
    """Replace a lock that a missing thread may hold, and use one thread in PyTorch.

    A fork copies neither the parent's threads nor PyTorch's.
    """
    globals()["_counting"] = threading.Lock()
    torch.set_num_threads(1)


os.register_at_fork(after_in_child=_enter_child)

_SHARED = (
    "_parameters",
    "_buffers",
    "_modules",
    "_non_persistent_buffers_set",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
    "training",
)

# Hooks of the ORTModule itself, not of the wrapped module.
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")

# The setter that Python uses when ``__class__`` is not a property.
_set_type = vars(object)["__class__"].__set__

# These wrappers register gradient hooks on the module they wrap, so they must be outermost.
_AROUND = {"DataParallel", "DistributedDataParallel", "FullyShardedDataParallel"}


class ORTModule(torch.nn.Module):
    """Runs a module's forward and backward in Steep's engine; everything else stays PyTorch.

    ``model = ORTModule(model)`` is the only change to a training loop. Parameters, buffers and
    submodules are those of the wrapped module, under its names; optimizers, losses, ``train()``,
    ``eval()``, ``state_dict()``, ``requires_grad_()`` and gradient accumulation work as before.

    PyTorch's tracer, Dynamo, captures the module at its first call. It captures it again when a
    condition of its graphs no longer holds: an attribute, a global, a hook, a mode, the structure,
    the dtypes or the extents of arguments. When extents change for the first time, it captures a
    graph for any extents. PyTorch runs the operations that the engine cannot run, and the code
    between two graphs, where Python branches on values. A warning names each such line once, and
    ``report()`` lists them.

    The first call with gradients makes malloc keep the memory that PyTorch frees, for the whole
    process, so that a loss outside of the module reuses memory. Set ``STEEP_MALLOC=system`` in the
    environment to leave malloc unchanged.

    Inside ``torch.autocast("cpu", torch.bfloat16)`` matrix products run in bfloat16. Weights and
    their gradients stay float32, and results have the dtypes that autocast gives them. With
    ``precision="bf16"`` products run in bfloat16 in every call, and the dtypes of all results stay
    as they are. float16 works in the same way; the loss then has to be scaled, for example by
    PyTorch's ``GradScaler``:

    >>> model = ORTModule(model, precision="bf16")

    Gradients stop where the module stops them (``detach``, ``no_grad``). ``create_graph=True``
    gives second derivatives. As in ``torch.compile``, forward may change a tensor in place after an
    operation saved it for backward: the gradient is that of the saved value. Between forward and
    backward you may change all values except those that PyTorch's own backward saves without a
    copy; PyTorch raises an error if you change these.

    The seeds of dropout come from PyTorch's generator: ``torch.manual_seed`` makes runs repeatable.

    With ``loss``, the loss is a part of the graph. Scores and other values that only the loss reads
    need not be kept, nor computed where labels are ignored (docs/sparsity.md):

    >>> model = ORTModule(model, loss=torch.nn.CrossEntropyLoss())
    >>> model(x, label).backward()

    Args:
        module: any module with parameters in CPU memory, contiguous.
        loss: called with the module's result and the label. A call of the ORTModule then takes the
            module's arguments and the label, as the last one without a name, and returns the loss
            alone. ``ORTModule(model.module)`` returns the result, with the same parameters.
            Parameters of the loss itself are not among those of the ORTModule.
        fallback: ``"parts"``: PyTorch runs what the engine cannot run, and functions that would
            become too many graphs; it is an error if no part ever runs in the engine. None: the
            engine runs everything as one graph, or raises an error. ``"torch"``: as None, but
            instead of the error PyTorch runs the whole call; ``fallback_calls`` counts them.
        precision: "fp32", "bf16" or "fp16"; by default ``torch.autocast`` decides at each call.
        verify: run the first step of each graph in PyTorch as well, and compare (docs/verify.md).
            The default is the value of ``STEEP_VERIFY``.
        providers: where graphs run, as for ``InferenceSession``. Parameters, arguments and results
            stay in the host's memory.
        disabled_passes: rewrites of graphs that are left out, by name (docs/look_inside.md).
        memory_limit: the most that forward and backward of one graph may take, as "2GiB" or a
            number of bytes: parameters, arguments, results, gradients and intermediate values.
            Backward recomputes values that do not fit; gradients are the same bits
            (docs/memory.md). By default no limit.

    Raises (when called):
        ModelError: no part of the module can run in the engine, or with ``fallback=None`` not all
            of it; there would be too many graphs; operators have no gradient (all are named); or
            the call is within a transform of ``torch.func``. The constructor raises it for a
            DistributedDataParallel and similar modules, which belong around an ORTModule.
        ShapeError, DataError: an argument does not fit, or has wrong values, such as a label out
            of range.
        ProviderError: an operator has no kernel.
        VerificationError: a result, or a gradient in backward, is not PyTorch's.
    """

    # Attributes that the constructor makes; a copy or a pickle takes only the others, such as
    # hooks that a framework added.
    _MADE = frozenset(_SHARED) | {
        *("fallback", "fallback_calls", "precision"),
        *(
            "_steep_module",
            "_steep_loss",
            "_steep_called",
            "_steep_verify",
            "_steep_providers",
            "_steep_disabled_passes",
            "_steep_memory_limit",
        ),
        *("_steep_captured", "_steep_other_methods", "_steep_mixed", "_steep_reports"),
    }

    def __init__(
        self,
        module: torch.nn.Module,
        *,
        loss: Callable[..., torch.Tensor] | None = None,
        fallback: str | None = "parts",
        precision: str | None = None,
        verify: bool | None = None,
        providers: Providers | None = None,
        disabled_passes: Sequence[str] = (),
        memory_limit: str | int = "",
    ) -> None:
        if not isinstance(module, torch.nn.Module):
            raise TypeError(f"ORTModule wraps a torch.nn.Module, not a {type(module).__name__}")
        if loss is not None and not callable(loss):
            raise TypeError(f"loss must be a function or a module, not a {type(loss).__name__}")
        if fallback not in (None, "parts", "torch"):
            raise ValueError(f'fallback must be None, "parts" or "torch", not {fallback!r}')
        if precision not in (None, "fp32", "bf16", "fp16"):
            raise ValueError(f'precision must be None, "fp32", "bf16" or "fp16", not {precision!r}')
        _steep.check_passes(disabled_passes)
        memory_limit = limit_text(memory_limit)
        self._refuse_what_belongs_around(module)
        # not in __new__: inspect.signature() would show its parameters
        _set_type(self, class_for(type(self), module, with_label=loss is not None))
        super().__init__()
        own = self.__dict__
        own["_steep_module"] = module
        own["_steep_loss"] = loss
        own["_steep_called"] = module if loss is None else ModuleWithLoss(innermost(module), loss)
        own["fallback"] = fallback
        own["fallback_calls"] = 0
        own["_steep_lazy"] = None  # the number of lazy parameters before the last call
        own["_steep_reports"] = []
        own["precision"] = precision
        own["_steep_verify"] = verify
        own["_steep_providers"] = providers
        own["_steep_disabled_passes"] = tuple(disabled_passes)
        own["_steep_memory_limit"] = memory_limit
        own[
            "_steep_captured"
        ] = {}  # by (precision, whether one graph is required, autocast's dtype)
        own["_steep_other_methods"] = OtherMethods(module)

    def _refuse_what_belongs_around(self, module: torch.nn.Module) -> None:
        for kind in type(module).__mro__:
            if kind.__name__ in _AROUND:
                raise ModelError(
                    f"ORTModule does not wrap a {kind.__name__}.",
                    received=type(module).__name__,
                    remedy=f"wrap the module within: {kind.__name__}(ORTModule(module))",
                )

    @property
    def module(self) -> torch.nn.Module:
        """The wrapped module."""
        return self._steep_module

    def report(self) -> Report:
        """Return a report: the graphs so far, why there are several, and what PyTorch runs."""
        return Report(
            type(self._steep_module).__name__,
            tuple(self._steep_reports),
            tuple(why for module in self._steep_captured.values() for why in module.breaks),
            self.__dict__["fallback_calls"],
            tuple(self._steep_other_methods.texts),
        )

    # If the wrapped module has an attribute of one of these names, users get that one:
    # see wrapped_names.py.

    def plan(self) -> tuple[_steep.StepPlan, ...]:
        """Return the plan of each graph so far, for the extents of its first call."""
        return tuple(
            graph.engine_graph.program.plan_for(graph.types, graph.engine_graph.gradients)
            for graph in self._graphs()
        )

    def memory_report(self) -> tuple[_steep.MemoryReport, ...]:
        """Return which values each graph so far keeps and which it recomputes in backward.

        The reports are for the extents of each graph's first call. Plans each graph again, without
        running it: up to two seconds for 1,000 nodes.

        Raises:
            ProviderError: a graph is not planned as a whole.
        """
        return tuple(
            graph.engine_graph.program.memory_report_for(graph.types, graph.engine_graph.gradients)
            for graph in self._graphs()
        )

    def dump(self, *, html: StrPath | None = None, passes: bool = False) -> str:
        """Return the text of graphs and plans so far, for the extents of their first calls.

        Args:
            html: path of a file; graphs and plans are written to it as one page, with pictures of
                their memory.
            passes: return each graph before the first pass and after each that changed it.

        Raises:
            ModelError: nothing has run in the engine yet.
            IoError: the page cannot be written.
        """

        def dump(form: str) -> str:
            texts = [p.dump(p.engine_graph.gradients, form) for p in self._graphs()]
            if not texts:
                raise ModelError("Nothing is compiled yet.", remedy="call the module first")
            if form == "html":
                return join_pages(texts)
            return "\n".join(f"# graph {i} of {len(texts)}\n{t}" for i, t in enumerate(texts, 1))

        return make_dump(dump, html, passes)

    @contextlib.contextmanager
    def profile(self, path: StrPath) -> Iterator[None]:
        """Record the kernels of the graphs so far; write a trace for ui.perfetto.dev at the end.

        The trace leaves out graphs that are captured inside the ``with`` block: call the module
        once before.

        Raises:
            ModelError: nothing has run in the engine yet.
            IoError: the trace cannot be written.
        """
        profiles = []
        for graph in self._graphs():
            graph.engine_graph.program.start_profile()
            profiles.append((graph.engine_graph.program, time.perf_counter()))
        if not profiles:
            raise ModelError("Nothing is compiled yet.", remedy="call the module first")
        try:
            yield
        finally:
            _steep.write_file(os.fspath(path), trace_of(profiles).encode())

    def _graphs(self) -> list[CompiledGraph]:
        return [graph for module in self._steep_captured.values() for graph in module.graphs]

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """The wrapped module's class, since frameworks test the class of a model and read its name.

        ``isinstance(w, ORTModule)`` and ``type(w)`` show that the module is wrapped.
        """
        own = self.__dict__
        return own.get("_steep_mixed") or type(own.get("_steep_module", self))

    @__class__.setter
    def __class__(self, new_class: type) -> None:
        """Accept a class that a framework assigns to ``module.__class__``.

        A class that adds mixins (such as ``FSDPModule``) applies to this ORTModule: the methods of
        the mixin run on this object and find the framework's state there. A class without further
        bases (parametrizations make one) applies to the wrapped module.

        Raises TypeError: a mixin was added before, and the new class would be the wrapped module's.
        """
        old_class = self.__class__
        mixins = tuple(base for base in new_class.__bases__ if not issubclass(old_class, base))
        if not mixins:
            if "_steep_mixed" in self.__dict__:
                raise TypeError(
                    f"{old_class.__name__} is mixed into this ORTModule already, "
                    "and cannot be replaced"
                )
            self._steep_module.__class__ = new_class
            return
        members = {n: v for n, v in vars(new_class).items() if n not in ("__dict__", "__weakref__")}
        bases = (*mixins, type(self))
        _set_type(self, type(type(self).__name__, bases, members))
        self.__dict__["_steep_mixed"] = new_class

    def _call_impl(self, *args: object, **kwargs: object) -> Any:
        """Let the wrapped module run the global module hooks, so that they run once."""
        if capture_backend.has_any_global_hook() and not any(
            map(self.__dict__.__getitem__, _HOOKS)
        ):
            return self.forward(*args, **kwargs)
        return super()._call_impl(*args, **kwargs)

    def forward(self, *args: object, **kwargs: object) -> Any:
        """Run the wrapped module's ``forward``; this method has the same signature."""
        if torch.compiler.is_dynamo_compiling() or capture_backend.only_observed(args, kwargs):
            return self._steep_called(*args, **kwargs)
        if self._takes_shapes():
            return self._steep_called(*args, **kwargs)
        own = self.__dict__  # the module may have attributes of these names
        precision, whole = own["precision"], own["fallback"] != "parts"
        # autocast's dtype decides what autocast regions inside forward compute in; Dynamo does not
        # guard it
        held_for = precision, whole, torch.get_autocast_dtype("cpu")
        capture = self._steep_captured.get(held_for)
        if capture is None:
            capture = self._steep_captured[held_for] = capture_backend.make_captured_module(
                innermost(self._steep_called),
                precision,
                self._steep_reports.append,
                whole=whole,
                verify=self._steep_verify,
                providers=self._steep_providers,
                disabled_passes=self._steep_disabled_passes,
                memory_limit=self._steep_memory_limit,
            )
        try:
            capture_backend.refuse_transforms()
            result = capture(*args, **kwargs)
        except (ModelError, ProviderError) as e:
            if self.__dict__["fallback"] != "torch":
                raise
            return self._run_in_torch(e, args, kwargs)
        if not capture.ran_in_engine and not capture.left_on_purpose:
            self._require_engine_ran(capture.breaks)
        return result

    def _takes_shapes(self) -> bool:
        """Return whether PyTorch runs this call, in which lazy modules may get their shapes.

        They draw their weights in the course of forward; a capture comes before forward, and has
        random numbers of its own. A lazy module that the last call has not run is captured.
        """
        before = self.__dict__["_steep_lazy"]
        if before == 0:
            return False
        now = self.__dict__["_steep_lazy"] = sum(map(is_lazy, self._steep_module.parameters()))
        if 0 < now != before:
            log.info("PyTorch runs a call that gives lazy modules their shapes")
            return True
        return False

    def _require_engine_ran(self, breaks: list[str]) -> None:
        """Raise ModelError if PyTorch ran all operations; return if there were none to run."""
        reasons = [*(r.reason for r in self._steep_reports if r.reason), *breaks]
        if reasons:
            if any(type(p).__name__ == "DTensor" for p in self._steep_module.parameters()):
                reasons.insert(0, "weights are DTensors (parallelize_module), which PyTorch runs")
            raise ModelError(
                f"No part of the module {type(self._steep_module).__name__} ran in the engine.",
                received="; ".join(reasons),
                remedy='change the code named above, or let PyTorch run it: fallback="torch"',
            )

    def _run_in_torch(self, e: Error, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with _counting:
            self.__dict__["fallback_calls"] += 1
            if self.__dict__["fallback_calls"] == 1:
                log.warning("running in PyTorch instead: %s", e)
        return self._steep_called(*args, **kwargs)

    # --- forwarded to the wrapped module ----------------------------------------------------------

    def train(self, mode: bool = True) -> ORTModule:
        """Set training mode, as ``torch.nn.Module.train``."""
        self._steep_module.train(mode)
        return self

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> ORTModule:
        self._steep_module._apply(fn, recurse)
        return self

    def state_dict(self, *args: object, **kwargs: object) -> Any:
        """Return the wrapped module's state, under its names."""
        return self._steep_module.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: object, **kwargs: object) -> Any:
        """Load the wrapped module's state."""
        return self._steep_module.load_state_dict(*args, **kwargs)

    def _load_from_state_dict(self, *args: object, **kwargs: object) -> None:
        self._steep_module._load_from_state_dict(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name in self.__dict__:
            return self.__dict__[name]
        value = getattr(self.__dict__["_steep_module"], name)
        return (
            self._steep_other_methods.watch(value) if isinstance(value, types.MethodType) else value
        )

    def __setattr__(self, name: str, value: object) -> None:
        if name == "__class__" or name in _SHARED:
            object.__setattr__(self, name, value)
            return
        if belongs_to_wrapper(name, value, self.__dict__, self._steep_module):
            self.__dict__[name] = value
            return
        setattr(self._steep_module, name, value)

    def __delattr__(self, name: str) -> None:
        if name in self.__dict__ and name not in self._MADE:
            del self.__dict__[name]  # set by __setattr__
            return
        delattr(self._steep_module, name)

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        if "_steep_mixed" in self.__dict__:
            raise TypeError(
                f"an ORTModule with a mixin class ({self.__class__.__name__}) cannot be pickled; "
                "save its state_dict()"
            )
        attributes = {
            name: value for name, value in self.__dict__.items() if name not in self._MADE
        }
        return (*self._how_made(), attributes)

    def __deepcopy__(self, memo: dict[int, Any]) -> ORTModule:
        """Copy by pickling's rules, even if the wrapped module defines its own ``__deepcopy__``."""
        make, arguments, attributes = self.__reduce_ex__(4)
        result: ORTModule = make(*copy.deepcopy(arguments, memo))
        memo[id(self)] = result
        result.__dict__.update(copy.deepcopy(attributes, memo))
        return result

    def _how_made(self) -> tuple[Callable[..., ORTModule], tuple[Any, ...]]:
        """Return a function that makes a copy, and the function's arguments."""
        options = {
            "loss": self._steep_loss,
            "fallback": self.__dict__["fallback"],
            "precision": self.__dict__["precision"],
            "verify": self._steep_verify,
            "providers": self._steep_providers,
            "disabled_passes": self._steep_disabled_passes,
            "memory_limit": self._steep_memory_limit,
        }
        return _rebuild, (self._steep_module, options)

    def __repr__(self) -> str:
        return f"ORTModule({self._steep_module!r})"

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(self._steep_module)})

    def __len__(self) -> int:
        return len(self._of_container("__len__"))

    def __getitem__(self, key: _Key) -> Any:
        return self._of_container("__getitem__")[key]

    def __setitem__(self, key: _Key, value: torch.nn.Module | Sequence[torch.nn.Module]) -> None:
        self._of_container("__setitem__")[key] = value

    def __delitem__(self, key: _Key) -> None:
        del self._of_container("__delitem__")[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._of_container("__iter__"))

    def __bool__(self) -> bool:
        return True  # modules are true; containers would be false when empty

    def _of_container(self, method: str) -> Any:
        if not hasattr(type(self._steep_module), method):
            raise TypeError(f"{type(self._steep_module).__name__} has no {method}")
        return self._steep_module


def _forward_table(table: str) -> property:
    """Return a property that reads and writes the wrapped module's table (``_parameters``, …).

    Both modules have one set of tables, so every inherited method sees the wrapped module's tensors
    under its names. The property looks the table up at each access, since containers replace their
    tables (``del net[1]``).
    """

    def get(self: ORTModule) -> object:
        module = self.__dict__.get("_steep_module")
        return self.__dict__[table] if module is None else getattr(module, table)

    def set_(self: ORTModule, value: object) -> None:
        if "_steep_module" in self.__dict__:
            setattr(self._steep_module, table, value)
        else:  # torch.nn.Module's constructor sets the tables; its methods check that they are set
            self.__dict__[table] = value

    return property(get, set_)


for _name in _SHARED:
    setattr(ORTModule, _name, _forward_table(_name))


def innermost(module: torch.nn.Module) -> torch.nn.Module:
    """Unwrap ORTModules around a module, up to one that has hooks, which would be lost."""
    while isinstance(module, ORTModule) and not any(map(module.__dict__.__getitem__, _HOOKS)):
        module = module.module
    return module


def _rebuild(module: torch.nn.Module, options: dict[str, Any]) -> ORTModule:
    return ORTModule(module, **options)
