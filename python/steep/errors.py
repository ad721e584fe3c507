"""The exceptions of Steep.

Every exception is an ``Error`` whose message names, where they exist, the node, the operator, what
was expected, what was received instead, and the remedy. The same parts are attributes.
"""

from __future__ import annotations

__all__ = [
    "CheckpointError",
    "DataError",
    "Error",
    "InstallationError",
    "InternalError",
    "IoError",
    "ModelError",
    "OutOfMemoryError",
    "OutOfRangeError",
    "PeerLostError",
    "ProviderError",
    "ShapeError",
    "VerificationError",
]


def counted(count: int, noun: str) -> str:
    """Return "1 row", "2 rows", "0 classes". ``noun`` is the singular, a regular one."""
    return f"{count} {noun}{'' if count == 1 else 'es' if noun.endswith('s') else 's'}"


class Error(Exception):
    """Base class of all exceptions of Steep.

    Attributes, each empty where it does not apply:
        what: one sentence that says what went wrong.
        node: name of the node; of the value, argument or file if there is no node.
        op: operator of the node.
        expected: what would have been right.
        received: what was found instead.
        remedy: what to do.
    """

    def __init__(
        self,
        what: str = "",
        *,
        node: str = "",
        op: str = "",
        expected: str = "",
        received: str = "",
        remedy: str = "",
    ) -> None:
        parts = {
            "node": node,
            "op": op,
            "expected": expected,
            "received": received,
            "remedy": remedy,
        }
        lines = [f"  {name + ':':<9} {text}" for name, text in parts.items() if text]
        super().__init__("\n".join([what, *lines]))
        self.what = what
        self.node = node
        self.op = op
        self.expected = expected
        self.received = received
        self.remedy = remedy

    def __str__(self) -> str:
        return str(self.args[0])


class ModelError(Error):
    """The model cannot be read, exported or trained."""


class ShapeError(Error, ValueError):
    """A shape or dtype disagrees with the model."""


class DataError(Error, ValueError):
    """Input values are wrong: a missing input, a label out of range."""


class OutOfRangeError(DataError, IndexError, RuntimeError):
    """An index in a captured module is out of range.

    PyTorch raises an IndexError in some operators (embedding, index_select, x[i], labels of losses)
    and a RuntimeError in others (gather, scatter): this class is both.
    """


class VerificationError(Error):
    """The values of engine and PyTorch differ, in a comparison by ``verify=True``."""


class ProviderError(Error):
    """There is no kernel for a node, or the device failed."""


class PeerLostError(ProviderError):
    """Another process of the training has ended or does not answer.

    From then on every exchange of this process raises it.
    """


class CheckpointError(Error):
    """A checkpoint is damaged or belongs to another model."""


class OutOfMemoryError(Error, MemoryError):
    """Memory cannot be allocated, or a step needs more than its budget."""


class IoError(Error, OSError):
    """A file could not be read or written."""


class InstallationError(Error, ImportError):
    """The compiled part of Steep, or a library it needs, is missing, hidden or another version."""


class InternalError(Error):
    """A bug in Steep; please report it."""
