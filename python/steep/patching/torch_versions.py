"""The releases of PyTorch that Steep captures with, and their differences.

Capture uses private parts of PyTorch, which change with each minor release. The tests have run with
the releases from ``OLDEST`` to ``NEWEST``. This module has the differences between these, and
``torch_internals`` the names of the private parts, so that support for another release is easy to
add. `make torch-versions` runs the tests with each of them.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import ModuleType
from typing import Any, TypeVar

import torch

from steep.dependencies import require_not_hidden
from steep.errors import ModelError

T = TypeVar("T")

OLDEST = (2, 13)
NEWEST = (2, 15)
"""Major and minor number of the last tested release; ``OLDEST`` is the first."""


def release_of(version: str) -> tuple[int, int]:
    """Return major and minor number of a version, such as (2, 13) for "2.13.0+cpu"."""
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def _version() -> str:
    for library in ("torch", "onnxscript"):
        require_not_hidden(library)
    return str(torch.__version__)


def _remedy() -> str:
    return 'pip install "torch>={}.{},<{}.{}"'.format(*OLDEST, NEWEST[0], NEWEST[1] + 1)


RELEASE = release_of(_version())
"""Major and minor number of the installed PyTorch."""


def window() -> str:
    """Return the tested releases as text: "2.13 to 2.15"."""
    return "{}.{} to {}.{}".format(*OLDEST, *NEWEST)


def is_tested(version: str = torch.__version__) -> bool:
    """Return whether the tests have run with a release, by default the installed one.

    With other releases, ``public_capture`` uses public interfaces alone.
    """
    return OLDEST <= release_of(version) <= NEWEST


def require_tested(version: str = torch.__version__) -> None:
    """Refuse an untested release of PyTorch, for features that need its internals.

    Its tracer may need other guards, or give a graph another meaning: results could be wrong
    without an error.

    Raises:
        ModelError: ``version``, by default that of the installed PyTorch, is outside the window.
    """
    if is_tested(version):
        return
    raise ModelError(
        "Steep has not been tested with this release of PyTorch.",
        expected=f"PyTorch {window()}",
        received=f"PyTorch {version}",
        remedy=_remedy(),
    )


def lacks(name: str) -> ModelError:
    """Return the error that the installed PyTorch does not have a name that capture needs.

    Capture stops there: without a guard that it cannot make, a later call could run the graph of
    another program.
    """
    return ModelError(
        "The installed PyTorch lacks a name that Steep's capture needs.",
        node=name,
        expected=f"a release of PyTorch {window()}",
        received=f"PyTorch {torch.__version__}, in which it is missing",
        remedy=_remedy(),
    )


def load(module: str) -> ModuleType:
    """Import a module of Steep that uses PyTorch's internals.

    Raises:
        ModelError: the installed PyTorch lacks a name that the import looks up.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:  # "cannot import name 'Guard' from 'torch._guards' (…)"
        if not _is_pytorchs(error.name):
            raise
        named = str(error).split("'")[1:2]
        path = [error.name] if isinstance(error, ModuleNotFoundError) else [error.name, *named]
        raise lacks(".".join(map(str, path))) from error
    except AttributeError as error:
        owner = error.obj if isinstance(error.obj, ModuleType | type) else type(error.obj)
        home = owner.__name__
        if isinstance(owner, type):
            home = f"{owner.__module__}.{owner.__qualname__}"
        if not _is_pytorchs(home):
            raise
        raise lacks(f"{home}.{error.name}") from error


def _is_pytorchs(path: str | None) -> bool:
    return (path or "").partition(".")[0] == "torch"


def operators(table: Mapping[str, T]) -> dict[Any, T]:
    """Replace operators' names by the operators; leave out those that the installed PyTorch lacks.

    Args:
        table: values by "namespace.name.overload", such as "aten.cholesky.default".

    Returns:
        The values by ``torch._ops.OpOverload``, in the order of the table.
    """
    result = {}
    for name, value in table.items():
        operator: Any = torch.ops
        try:
            for part in name.split("."):
                operator = getattr(operator, part)
        except AttributeError:
            continue
        result[operator] = value
    return result


TENSOR_GETATTR = "tp_getattro_impl" if RELEASE >= (2, 14) else "var_getattr"
"""The method of Dynamo's variables that reads an attribute of the object they represent."""

CLAMP_IS_FLAT_AT_BOUNDS = RELEASE >= (2, 14)
"""Whether ``torch.clamp`` has gradient 0 at bounds that are numbers.

With tensors as bounds, it then shares the gradient with an equal bound.
"""

FMAX_SHARES_TIES = RELEASE >= (2, 14)
"""Whether equal operands of ``torch.fmax`` and ``fmin`` get half of the gradient each.

Before, the first one gets it whole.
"""

FMAX_HAS_SLOPES_BESIDE_NAN = RELEASE == (2, 14)
"""Whether both operands of ``torch.fmax`` and ``fmin`` get the whole gradient if one is NaN.

In other releases, only the operand that is the result gets it.
"""

SOFTSHRINK_ROUNDS_ITS_ENDS = RELEASE >= (2, 14)
"""Whether ``softshrink`` of 16-bit tensors subtracts ``lambd`` as that type rounds it."""
