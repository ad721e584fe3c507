"""What ONNX exporters lose of a module on the way, said in operators that they keep.

They take a module for inference: ``detach`` and ``no_grad`` vanish, and with them the gradients
that the module asked for; so do options of operators that ONNX has no word for, such as the
smoothing of labels. While a module runs inside of ``faithful()`` its calls of PyTorch are watched:
a tensor without history becomes the result of ``steep::stop_gradient``, an option that would get
lost is written out, and what cannot be written out raises RuntimeError.
"""

from __future__ import annotations

import contextlib
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.checkpoint import CheckpointFunction
from torch.utils.weak import WeakIdKeyDictionary

from steep.quiet import replaced
from steep.restated import DETACH, RESTATED, lost
from steep.stops import stop_gradient
from steep.translations import WITH_BACKWARD


@contextlib.contextmanager
def faithful(arguments: tuple[torch.Tensor, ...] = ()) -> Iterator[_Watch]:
    """Within, a module that runs says all that it computes, gradients included.

    Yields what is told at the end which ``arguments`` have values that Python code looked into.
    """
    watch = _Watch(arguments)
    with (
        # Every apply() asks it, found by its class or kept by the module under a name of its own.
        replaced(torch.autograd.function, "_is_setup_context_defined", _refuse_function),
        replaced(CheckpointFunction, "apply", _run_checkpointed),
        watch,
    ):
        drawn = _generators()
        yield watch
        if _generators() != drawn:
            lost("a random number that Python or NumPy draws")


def _generators() -> str:
    """State of the generators whose numbers a graph would repeat for ever."""
    return repr((random.getstate(), numpy.random.get_state()))


class _Watch(TorchFunctionMode):
    def __init__(self, arguments: tuple[torch.Tensor, ...]) -> None:
        super().__init__()
        self.arguments = {id(t): t for t in arguments}
        self.decisive: set[int] = set()
        # By identity, and held, so that no other tensor gets it: what in PyTorch shares memory with
        # a tensor that has a history, and here is a copy.
        self.aliases: dict[int, torch.Tensor] = {}
        self.written = _Written()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is torch._C._set_grad_enabled:
            # torch.export would cut the graph into pieces here.
            with torch._C.DisableTorchFunction():
                return func(*args)
        kwargs = kwargs or {}
        if _works_in_place(func):
            self._check_target(args[:1])
        self._check_target(kwargs.get("out"))
        if func in _TO_PYTHON:
            self._note_value(args[0])
        self.written.check((args, kwargs))
        result = _call(RESTATED.get(func, func), args, kwargs)
        self.written.note(func, args, kwargs, result)
        if func in DETACH:
            if result.dtype.is_floating_point:
                self.aliases[id(result)] = result
            return result
        if torch.is_grad_enabled():
            return result
        given = {id(leaf) for leaf in tree_leaves((args, kwargs))}

        def stop(t: torch.Tensor) -> torch.Tensor:
            if id(t) in given:  # nothing new
                return t
            stopped = stop_gradient(t)
            self.written.note(stop_gradient, (), {}, stopped)
            if t._is_view():
                self.aliases[id(stopped)] = stopped
            return stopped

        return tree_map_only(torch.Tensor, stop, result)

    def _check_target(self, targets: Any) -> None:
        for target in tree_leaves(targets):
            if isinstance(target, torch.nn.Parameter):
                lost("a change of a parameter in forward")
            if id(target) in self.aliases:
                lost("a change in place of a detached tensor")
            if isinstance(target, torch.Tensor):
                base = target._base if target._is_view() else target
                if id(target) in self.arguments or id(base) in self.arguments:
                    lost("a change in place of an argument")

    def _note_value(self, tensor: torch.Tensor) -> None:
        """Python sees what a tensor holds: the graph holds for this alone."""
        if torch.jit.is_tracing():
            sources = _sources(tensor)
            if any(i >= len(self.arguments) for i in sources):
                lost(
                    f"a decision of Python code, or a number, at {_place()} that depends on a "
                    "parameter or buffer"
                )
            self.decisive |= sources
        elif tensor.dtype.is_floating_point:  # torch.export would let gradients pass
            lost("a Python number taken from a tensor")


class _Written:
    """Knows which tensors of a trace hold what they held before a write through another one.

    PyTorch counts the writes to memory; a trace gives each tensor a value of its own, and takes a
    write over to the tensor that was written and, where it is a plain slice, to what it is a slice
    of. All others that share the memory are out of date in the graph.
    """

    def __init__(self) -> None:
        self.versions = WeakIdKeyDictionary()  # the count up to which the graph knows a tensor
        self.sliced = WeakIdKeyDictionary()  # slice → whole

    def check(self, read: Any) -> None:
        """Refuse what is out of date among tensors that are read."""
        for t in _traced(read):
            if self.versions.setdefault(t, t._version) != t._version:
                lost(f"a change in place, through another view, of a tensor read at {_place()},")

    def note(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Remember what a call wrote and made."""
        for t in _traced(args[:1] if _works_in_place(func) else (args, kwargs)):
            if t._version != self.versions.get(t, t._version):
                self.versions[t] = t._version
                whole = self.sliced.get(t)
                if whole is not None and func not in _SCATTERS:
                    self.versions[whole] = whole._version
        for t in _traced(result):
            self.versions[t] = t._version
        if func is torch.Tensor.__getitem__ and args[0] not in self.sliced:
            for t in _traced(result):
                if t._is_view() and t is not args[0]:
                    self.sliced[t] = args[0]


def _traced(values: Any) -> list[torch.Tensor]:
    if not torch.jit.is_tracing():
        return []
    return [t for t in tree_leaves(values) if isinstance(t, torch.Tensor)]


def _place() -> str:
    """Return the line of code, of neither PyTorch's nor ours, that is running."""
    own = (str(Path(torch.__file__).parent), str(Path(__file__).parent))
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(own):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _sources(tensor: torch.Tensor) -> set[int]:
    """Return which inputs of the trace a value is computed from; their extents do not count."""
    found: set[int] = set()
    value = torch._C._get_value_trace(tensor)
    waiting, seen = [value], set()
    while waiting:
        value = waiting.pop()
        if value.unique() in seen:
            continue
        seen.add(value.unique())
        node = value.node()
        if node.kind() == "prim::Param":
            found |= {i for i, v in enumerate(node.outputs()) if v.unique() == value.unique()}
        elif node.kind() not in _OF_SHAPE:
            waiting += node.inputs()
    return found


def _works_in_place(func: Any) -> bool:
    name = getattr(func, "__name__", "")
    if name.endswith("__"):
        return name == "__setitem__" or name in _IN_PLACE
    return name.endswith("_")


def _call(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call; a warning of the tracer is to name the module's line of code, not this one."""
    if not torch.jit.is_tracing():
        return func(*args, **kwargs)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = func(*args, **kwargs)
    for w in caught:
        if w.filename == __file__:
            warnings.warn(w.message, w.category, stacklevel=3)
        else:
            warnings.warn_explicit(w.message, w.category, w.filename, w.lineno)
    return result


def _refuse_function(setup: object) -> Any:
    cls = sys._getframe(1).f_locals.get("cls")
    if getattr(cls, "__name__", "").startswith(_DERIVATIVES):
        return _is_setup_context_defined(setup)  # type: ignore[misc]
    lost(f"the backward of {getattr(cls, '__name__', cls)}, a torch.autograd.Function,")


def _run_checkpointed(run: Callable[..., Any], preserve: bool, *args: Any) -> Any:
    """Run what would be computed again in backward: that the engine plans by itself."""
    return run(*args)


_is_setup_context_defined = getattr(torch.autograd.function, "_is_setup_context_defined", None)
# as torch.library calls what it makes of an operator's backward
_DERIVATIVES = (
    "GeneratedBackwardFor_steep_",
    *(f"GeneratedBackwardFor_{n.replace('::', '_')}_default" for n in WITH_BACKWARD),
)

_OF_SHAPE = {"aten::size", "aten::numel", "aten::dim", "aten::_shape_as_tensor"}

_TO_PYTHON = {
    *(torch.Tensor.__bool__, torch.Tensor.__int__, torch.Tensor.__float__),
    *(torch.Tensor.__index__, torch.Tensor.__array__, torch.Tensor.__contains__),
    *(torch.Tensor.item, torch.Tensor.tolist, torch.Tensor.numpy),
}


_IN_PLACE = {f"__i{name}__" for name in ("add", "sub", "mul", "truediv", "pow", "floordiv", "mod")}

# Of a slice, these are lost on the way to the whole.
_SCATTERS = {torch.Tensor.__setitem__, torch.Tensor.index_put_, torch.index_put_}
