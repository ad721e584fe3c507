"""What Steep raises.

Every exception is a ``steep.Error`` whose message names, where they exist, the node, the operator,
what was expected, what came instead, and the remedy; the same parts are attributes of type ``str``:
``what``, ``node``, ``op``, ``expected``, ``received``, ``remedy``.

======================  ==============================================  ==================
``ModelError``          the model cannot be read, exported or trained
``ShapeError``          a shape or dtype disagrees with the model       a ``ValueError``
``DataError``           the values fed are wrong                        a ``ValueError``
``ProviderError``       no kernel for a node, or the device failed
``CheckpointError``     a checkpoint is damaged or of another model
``OutOfMemoryError``    memory could not be had                         a ``MemoryError``
``IoError``             a file could not be read or written             an ``OSError``
``InternalError``       a bug in Steep
======================  ==============================================  ==================
"""

from __future__ import annotations

from typing import TypeVar

from steep._steep import (
    CheckpointError,
    DataError,
    Error,
    InternalError,
    IoError,
    ModelError,
    OutOfMemoryError,
    ProviderError,
    ShapeError,
)

__all__ = [
    "CheckpointError",
    "DataError",
    "Error",
    "InternalError",
    "IoError",
    "ModelError",
    "OutOfMemoryError",
    "ProviderError",
    "ShapeError",
]

E = TypeVar("E", bound=Error)


def make_error(kind: type[E], what: str, **parts: str) -> E:
    """Build an exception like those of the engine: a sentence, then the parts that are known."""
    lines = [what]
    lines += [f"  {name + ':':<9} {text}" for name, text in parts.items() if text]
    error = kind("\n".join(lines))
    error.what = what
    for name, text in parts.items():
        setattr(error, name, text)
    return error
