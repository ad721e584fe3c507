"""What a module computes, as a digest, for a twentieth of the price of an export.

The module runs once on tensors without data. Every operator that PyTorch dispatches is noted, with
its operands and constants. Modules with equal notes compute the same for arguments of these
extents, whatever the values of arguments, parameters and buffers: what was exported of one of them
is right for the other. A module whose path through Python depends on such values cannot run without
data, and has no digest.

Names, types and layouts of parameters and buffers are part of the digest, their values are not. Of
other tensors that the module holds the values are part too: a graph has them as constants.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

NAMESPACES = ("aten", "prim", "prims", "steep")  # operators whose meaning the versions fix
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
    """The notes might not tell two different modules apart."""


def fingerprint(
    module: torch.nn.Module, tensors: list[torch.Tensor], exporting: bool
) -> hashlib._Hash:
    """Digest of what ``module(*tensors)`` computes, to which the caller may add.

    The module and the state of random generators are afterwards as before. ``exporting``: tell the
    module, as torch.export does. Raises whatever a module raises that cannot run without data, or
    Undetermined.
    """
    named: dict[str, torch.Tensor] = {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }
    for tensor in (*named.values(), *tensors):
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.device.type != "cpu":
            raise Undetermined(f"a {type(tensor).__name__} on {tensor.device}")
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode:  # one tensor given twice is two arguments, tied parameters are one tensor
        arguments = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype) for t in tensors]
    fakes = {id(t): mode.from_tensor(t, static_shapes=True) for t in named.values()}
    notes = _Notes()
    for i, argument in enumerate(arguments):
        notes.declare("argument", i, argument)
    for name, tensor in named.items():
        notes.declare("state", name, fakes[id(tensor)])
    with _as_it_was(module), _told_of_export(exporting), mode, notes:
        results = torch.func.functional_call(
            module, {n: fakes[id(t)] for n, t in named.items()}, tuple(arguments)
        )
    notes.note("results", tuple(results))
    if notes.refused:
        raise Undetermined(notes.refused)
    return notes.digest


class _Notes(TorchDispatchMode):
    """Writes down every operator; operands by the number of the note that made them."""

    def __init__(self) -> None:
        super().__init__()
        self.digest = hashlib.sha256()
        self.numbers: dict[int, int] = {}  # by identity
        self.kept: list[torch.Tensor] = []  # so that no two have one identity
        self.refused = ""  # why; PyTorch ends the process where some of its calls to here raise

    def declare(self, role: str, name: object, tensor: torch.Tensor) -> None:
        if id(tensor) not in self.numbers:
            self.number(tensor)
        self.note(role, str(name), tensor, tensor.dtype, tuple(tensor.shape), tensor.stride())

    def number(self, tensor: torch.Tensor) -> None:
        self.numbers[id(tensor)] = len(self.kept)
        self.kept.append(tensor)

    def note(self, *words: object) -> None:
        line: list[str] = []
        try:
            write(words, line, self._word_for)
        except Undetermined as e:
            self.refused = str(e)
        self.digest.update("\x1f".join(line).encode() + b"\x1e")

    def _word_for(self, tensor: torch.Tensor) -> str:
        if id(tensor) not in self.numbers:
            self._add_constant(tensor)
        return f"%{self.numbers[id(tensor)]}"

    def _add_constant(self, tensor: torch.Tensor) -> None:
        add_tensor(tensor, self.digest)
        self.number(tensor)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if getattr(func, "namespace", None) not in NAMESPACES:
            self.refused = f"the operator {func}"
        self.note(str(func), torch.is_grad_enabled(), args, kwargs or {})
        result = func(*args, **(kwargs or {}))
        for made in result if isinstance(result, (list, tuple)) else (result,):
            if isinstance(made, torch.Tensor):
                self.number(made)
        return result


def add_tensor(tensor: torch.Tensor, digest: hashlib._Hash) -> None:
    """Add a tensor's type, layout and values. Raises Undetermined where they cannot be read."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        raise Undetermined(f"a {type(tensor).__name__} that no operator made")
    if tensor.device.type != "cpu" or tensor.layout != torch.strided or tensor.is_quantized:
        raise Undetermined(f"a constant on {tensor.device}, {tensor.layout}")
    with _disable_current_modes():
        values = tensor.detach().clone(memory_format=torch.contiguous_format)
        data = values.view(-1).view(torch.uint8).numpy()
        about = f"{tensor.dtype} {tuple(tensor.shape)} {tensor.stride()} {data.nbytes}"
        digest.update(about.encode() + b"\x1e" + data.tobytes())


def write(value: Any, line: list[str], word_for: Callable[[Any], str]) -> None:
    """Add the words for an operand; ``word_for`` gives that for a tensor, or the node of a graph.

    Raises Undetermined for what is neither of these nor plain.
    """
    if isinstance(value, (torch.Tensor, torch.fx.Node)):
        line.append(word_for(value))
    elif isinstance(value, (list, tuple)):
        line.append("(")
        for item in value:
            write(item, line, word_for)
        line.append(")")
    elif isinstance(value, dict):
        write(tuple(value.items()), line, word_for)
    elif isinstance(value, _WORDS):
        line.append(f"{type(value).__name__} {value!r}")
    else:
        raise Undetermined(f"an operand of the class {type(value).__name__}")


@contextlib.contextmanager
def _as_it_was(module: torch.nn.Module) -> Iterator[None]:
    """Undo what forward assigns: it would hold tensors without data. Raises Undetermined then."""
    before = [(m, {k: (v, _contents(v)) for k, v in vars(m).items()}) for m in module.modules()]
    changed = False
    try:
        yield
    finally:
        for m, attributes in before:
            now = vars(m)
            for key in [k for k in now if k not in attributes]:
                del now[key]
                changed = True
            for key, (value, contents) in attributes.items():
                same = key in now and now[key] is value
                if not same or not _same(_contents(value), contents):
                    changed = True
                    _refill(value, contents)
                    now[key] = value
    if changed:
        raise Undetermined("forward changes its module")


def _contents(value: Any) -> Any:
    if type(value) is list:
        return list(value)
    return dict(value) if isinstance(value, dict) else None


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return list(a) == list(b) and all(a[k] is b[k] for k in a)
    return a is None or (len(a) == len(b) and all(x is y for x, y in zip(a, b, strict=True)))


def _refill(value: Any, contents: Any) -> None:
    if contents is None:
        return
    value.clear()
    (value.update if isinstance(value, dict) else value.extend)(contents)


@contextlib.contextmanager
def _told_of_export(exporting: bool) -> Iterator[None]:
    """``torch.compiler.is_exporting()`` and ``is_compiling()`` answer as under torch.export."""
    flags = [f for f in ("_is_exporting_flag", "_is_compiling_flag") if hasattr(torch.compiler, f)]
    before = {f: getattr(torch.compiler, f) for f in flags}
    try:
        for f in flags if exporting else ():
            setattr(torch.compiler, f, True)
        yield
    finally:
        for f, value in before.items():
            setattr(torch.compiler, f, value)
