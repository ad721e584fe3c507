#!/usr/bin/env python
"""Any bytes read as a checkpoint of ONNX Runtime's format are accepted or refused with an error.

    python tests/fuzz/old_checkpoint_fuzz.py [OPTIONS OF LIBFUZZER] [FOLDERS OF INPUTS]

What is accepted is written and read again, and must be the same. The first byte selects the form:
the bytes as they are, or with a correct seal around what follows their first line, which is the
text of the seal.
"""

from __future__ import annotations

import json
import sys

import atheris
import numpy as np

with atheris.instrument_imports(include=["steep.compat", "flatbuffers"]):
    from steep.compat.checkpoint import reader, writer
    from steep.compat.checkpoint.seal import seal
    from steep.compat.state_file import TrainingState
import steep


def kept(state: TrainingState) -> object:
    """What a file keeps of a state, comparable."""

    def arrays(named: dict[str, np.ndarray]) -> object:
        return {name: (str(a.dtype), a.shape, a.tobytes()) for name, a in named.items()}

    moments = state.optimizer and (state.optimizer.step, arrays(state.optimizer.moments))
    return arrays(state.values), state.trained, moments, repr(state.properties), state.nominal


def sealed(content: bytes) -> bytes:
    text, _, body = content.partition(b"\n")
    try:
        extras = json.loads(text)
    except (ValueError, RecursionError):
        extras = {}
    return seal(body, extras)


def test_one_input(data: bytes) -> None:
    content = data[1:] if data[:1] < b"\x80" else sealed(data[1:])
    try:
        state = reader.decode(content, "input")
    except steep.CheckpointError:
        return
    if state.optimizer and not state.optimizer.moments:
        state.optimizer = None  # one without moments is written with zeros, as ONNX Runtime reads
    try:
        again = writer.encode(state, True)
    except steep.DataError:  # what only other formats hold
        return
    if kept(reader.decode(again, "again")) != kept(state):
        raise AssertionError("a checkpoint differs after it was written and read again")


if __name__ == "__main__":
    atheris.Setup(sys.argv, test_one_input)
    atheris.Fuzz()
