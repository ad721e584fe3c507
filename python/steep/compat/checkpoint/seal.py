"""What Steep writes behind a FlatBuffer: a digest, and what ONNX Runtime's format does not have.

ONNX Runtime reads a file from its root table on, and does not look behind the buffer. Steep puts a
text in JSON there, its length, a SHA-256 of all before, and a mark. A field of the root table says
that they are there, so that a file that lost them is detected too.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

_MARK = b"steepend"
_END = 4 + 32 + len(_MARK)


def seal(body: bytes, extras: dict[str, Any]) -> bytes:
    """Return a buffer with text and digest behind it."""
    text = json.dumps(extras).encode()
    head = [body, text, len(text).to_bytes(4, "little")]
    digest = hashlib.sha256()
    for part in head:
        digest.update(part)
    return b"".join([*head, digest.digest(), _MARK])


def open_seal(content: bytes) -> tuple[memoryview, dict[str, Any] | None]:
    """Return the buffer, and the text behind it, or None if there is no seal.

    Raises ValueError: there is one, and the bytes are not those that were sealed.
    """
    view = memoryview(content)
    if not content.endswith(_MARK):
        return view, None
    before = len(content) - _END
    size = int.from_bytes(view[before : before + 4], "little") if before >= 0 else -1
    if not 0 <= size <= before:
        raise ValueError("a seal without the bytes that it is of")
    digest = hashlib.sha256(view[: before + 4]).digest()
    if digest != view[before + 4 : before + 36]:
        raise ValueError("bytes that differ from those that were written")
    try:
        extras = json.loads(bytes(view[before - size : before]))
    except RecursionError as error:
        raise ValueError("a text behind it that is nested too deeply") from error
    if not isinstance(extras, dict):
        raise ValueError("a text behind it that has no names")
    return view[: before - size], extras
