"""The releases of PyTorch that Steep captures with, and what differs between them.

Capture uses parts of PyTorch that are not public, and these change with each minor release. The
tests have run with the releases from ``OLDEST`` to ``NEWEST``. What differs between these stands
here, and the names of those parts in ``torch_internals``, so that another release is one place to
look at. `make torch-versions` runs the tests with each of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import torch

from steep.errors import ModelError

T = TypeVar("T")

OLDEST = (2, 13)
NEWEST = (2, 15)
"""Major and minor number of the first and the last release that the tests have run with."""


def release_of(version: str) -> tuple[int, int]:
    """Return major and minor number of a version, such as (2, 13) for "2.13.0+cpu"."""
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


RELEASE = release_of(torch.__version__)
"""Of the PyTorch that is loaded."""


def window() -> str:
    """Say which releases the tests have run with: "2.13 to 2.15"."""
    return "{}.{} to {}.{}".format(*OLDEST, *NEWEST)


def is_tested(version: str = torch.__version__) -> bool:
    """Return whether the tests have run with a release, by default that which is loaded.

    Beside others ``public_capture`` uses public interfaces alone.
    """
    return OLDEST <= release_of(version) <= NEWEST


def require_tested(version: str = torch.__version__) -> None:
    """Refuse a release of PyTorch that the tests have not run with, for what needs its internals.

    Its tracer may ask for other guards, or give a graph another meaning: results could be wrong
    without an error.

    Raises:
        ModelError: ``version``, by default that of the PyTorch that is loaded, is outside the
            window.
    """
    if is_tested(version):
        return
    raise ModelError(
        "Steep has not been tested with this release of PyTorch.",
        expected=f"PyTorch {window()}",
        received=f"PyTorch {version}",
        remedy='pip install "torch>={}.{},<{}.{}"'.format(*OLDEST, NEWEST[0], NEWEST[1] + 1),
    )


def operators(table: Mapping[str, T]) -> dict[Any, T]:
    """Return a table of PyTorch's operators by their names, without those that it does not have.

    Args:
        table: "namespace.name.overload", such as "aten.cholesky.default", and what belongs to it.

    Returns:
        ``torch._ops.OpOverload`` and what belongs to it, in the order of the table.
    """
    found = {}
    for name, value in table.items():
        operator: Any = torch.ops
        try:
            for part in name.split("."):
                operator = getattr(operator, part)
        except AttributeError:
            continue
        found[operator] = value
    return found


TENSOR_GETATTR = "tp_getattro_impl" if RELEASE >= (2, 14) else "var_getattr"
"""The method of Dynamo's variables that reads an attribute of what they stand for."""

CLAMP_IS_FLAT_AT_BOUNDS = RELEASE >= (2, 14)
"""``torch.clamp`` has slope 0 at bounds that are numbers, and shares it with those of tensors."""
