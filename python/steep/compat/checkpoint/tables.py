"""Reads the tables of a FlatBuffer whose bytes are not trusted.

FlatBuffers' own package for Python checks nothing. Here every offset, length, vector and string is
checked to lie within the bytes before it is read.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from steep._steep import Limits
from steep.compat.checkpoint.schema import Slots
from steep.errors import CheckpointError, InstallationError, counted

_SHARED = 1 << 20  # bytes that fields may have in common
_REMEDY = "load a file that CheckpointState.save_checkpoint or generate_artifacts wrote"


def runtime() -> ModuleType:
    """Return the package ``flatbuffers``. Raises InstallationError if it is not installed."""
    try:
        package = importlib.import_module("flatbuffers")
        for part in ("builder", "encode", "packer", "table"):
            importlib.import_module(f"flatbuffers.{part}")
    except ImportError as error:
        raise InstallationError(
            "A checkpoint of ONNX Runtime's format needs the package flatbuffers.",
            node="flatbuffers",
            expected="an installed package",
            received=str(error),
            remedy='pip install flatbuffers, or pip install "steep[compat]"',
        ) from error
    return package


class Buffer:
    """The bytes of a file, with checks.

    Args:
        content: the bytes.
        where: the file, for errors.

    Raises:
        InstallationError: the package ``flatbuffers`` is not installed.
    """

    def __init__(self, content: bytes | memoryview, where: str) -> None:
        self.runtime = runtime()
        self.content = memoryview(content)
        self._where = where
        self._tables, self._most = 0, Limits().max_nodes
        self._left = len(self.content) + _SHARED

    def wrong(
        self, field: str, expected: str, received: str, remedy: str = _REMEDY
    ) -> CheckpointError:
        """Return the error of a field whose bytes are not what they should be."""
        return CheckpointError(
            "A checkpoint of ONNX Runtime's format is damaged.",
            node=self._where,
            op=field,
            expected=expected,
            received=received,
            remedy=remedy,
        )

    def require(self, begin: int, size: int, field: str) -> None:
        """Raise CheckpointError if these bytes are not all in the file."""
        if begin < 0 or begin + size > len(self.content):
            raise self.wrong(
                field,
                f"{counted(size, 'byte')} within the file, which has {len(self.content)}",
                f"a place that begins at byte {begin}",
            )

    def integer(self, kind: str, at: int) -> int:
        """Return the integer at a place that was checked, of a kind that FlatBuffers names."""
        packer = getattr(self.runtime.packer, kind)
        return int(self.runtime.encode.Get(packer, self.content, at))

    def real(self, at: int) -> float:
        """Return the float32 at a place that was checked."""
        return float(self.runtime.encode.Get(self.runtime.packer.float32, self.content, at))

    def follow(self, at: int, field: str) -> int:
        """Return where the offset at a checked place points. Raises CheckpointError."""
        target = at + self.integer("uoffset", at)
        if target == at:
            raise self.wrong(field, "an offset", "0")
        self.require(target, 4, field)
        return target

    def count_table(self, field: str) -> None:
        """Count a table. Raises CheckpointError if there are more than ``max_nodes``."""
        self._tables += 1
        if self._tables > self._most:
            raise self.wrong(
                field, f"at most {self._most} tables, max_nodes of steep.Limits", "more tables"
            )

    def spend(self, size: int, field: str) -> None:
        """Count bytes that will be copied. Raises CheckpointError beyond those of the file.

        Otherwise a small file, whose fields all point to the same bytes, could fill the memory.
        """
        self._left -= size
        if self._left < 0:
            raise self.wrong(
                field, "fields that each have bytes of their own", "fields that overlap"
            )

    def root(self, slots: Slots) -> CheckedTable:
        """Return the table of the whole file. Raises CheckpointError."""
        self.require(0, 8, "identifier")
        return CheckedTable(self, self.follow(0, "root"), slots, "")


class CheckedTable:
    """A table of a buffer; its fields are read by name.

    Args:
        buffer: the bytes.
        at: its place.
        slots: its fields.
        path: its name, for errors.

    Raises:
        CheckpointError: it does not lie within the bytes; so do all methods for their fields.
    """

    def __init__(self, buffer: Buffer, at: int, slots: Slots, path: str) -> None:
        self.buffer, self.path = buffer, path
        self._at, self._slots = at, slots
        field = path or "root"
        buffer.count_table(field)
        buffer.require(at, 4, field)
        vtable = at - buffer.integer("soffset", at)
        buffer.require(vtable, 4, field)
        size = buffer.integer("voffset", vtable)
        self._extent = buffer.integer("voffset", vtable + 2)
        if size < 4 or size % 2 or self._extent < 4:
            raise buffer.wrong(
                field, "a table with its fields", f"{size} and {counted(self._extent, 'byte')}"
            )
        buffer.require(vtable, size, field)
        buffer.require(at, self._extent, field)
        self._table = buffer.runtime.table.Table(buffer.content, at)

    def field(self, name: str) -> str:
        """Return the name of a field with those of the tables around it."""
        return f"{self.path}.{name}" if self.path else name

    def wrong(self, name: str, expected: str, received: str, **more: str) -> CheckpointError:
        """Return the error of a field."""
        return self.buffer.wrong(self.field(name), expected, received, **more)

    def integer(self, name: str, kind: str, default: int = 0) -> int:
        """Return an integer of a kind that FlatBuffers names; the default if there is none."""
        place = self._place(name, getattr(self.buffer.runtime.packer, kind).size)
        return self.buffer.integer(kind, place) if place else default

    def real(self, name: str) -> float:
        """Return a float32; 0 if there is none."""
        place = self._place(name, 4)
        return self.buffer.real(place) if place else 0.0

    def flag(self, name: str) -> bool:
        """Return a truth value; False if there is none."""
        return bool(self.integer(name, "uint8"))

    def array(self, name: str, dtype: DTypeLike) -> np.ndarray[Any, Any] | None:
        """Return a vector of numbers, in the memory of the file; None if there is none."""
        kind = np.dtype(dtype)
        vector = self._vector(name, kind.itemsize)
        if vector is None:
            return None
        begin, count = vector
        return np.frombuffer(self.buffer.content, kind, count, begin)

    def text(self, name: str) -> str | None:
        """Return a string; None if there is none."""
        vector = self._vector(name, 1)
        if vector is None:
            return None
        begin, size = vector
        self.buffer.require(begin, size + 1, self.field(name))
        self.buffer.spend(size, self.field(name))
        if self.buffer.content[begin + size]:
            raise self.wrong(name, "a string with a zero byte at its end", "another byte")
        try:
            return bytes(self.buffer.content[begin : begin + size]).decode()
        except UnicodeDecodeError as error:
            raise self.wrong(name, "text in UTF-8", str(error)) from error

    def name(self, field: str) -> str:
        """Return a string that must be there."""
        text = self.text(field)
        if text is None:
            raise self.wrong(field, "a name", "none")
        return text

    def table(self, name: str, slots: Slots) -> CheckedTable | None:
        """Return a table; None if there is none."""
        place = self._place(name, 4)
        if not place:
            return None
        field = self.field(name)
        return CheckedTable(self.buffer, self.buffer.follow(place, field), slots, field)

    def tables(self, name: str, slots: Slots) -> list[CheckedTable] | None:
        """Return a vector of tables; None if there is none."""
        vector = self._vector(name, 4)
        if vector is None:
            return None
        begin, count = vector
        tables = []
        for i in range(count):
            field = f"{self.field(name)}[{i}]"
            at = self.buffer.follow(begin + 4 * i, field)
            tables.append(CheckedTable(self.buffer, at, slots, field))
        return tables

    def _place(self, name: str, size: int) -> int:
        """Return the place of a field; 0 if the table does not have it."""
        offset = int(self._table.Offset(4 + 2 * self._slots[name]))
        if not offset:
            return 0
        if not 4 <= offset <= self._extent - size:
            raise self.wrong(
                name,
                f"{counted(size, 'byte')} within the {self._extent} of its table",
                f"offset {offset}",
            )
        return self._at + offset

    def _vector(self, name: str, size: int) -> tuple[int, int] | None:
        """Return the place of a vector's first element, and how many there are."""
        place = self._place(name, 4)
        if not place:
            return None
        begin = self.buffer.follow(place, self.field(name))
        count = self.buffer.integer("uoffset", begin)
        self.buffer.require(begin + 4, count * size, self.field(name))
        return begin + 4, count
