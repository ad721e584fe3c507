"""Files of a training state whose digest fits, and whose header does not."""

import copy
import json

import numpy as np
import pytest

import steep
from steep.compat import state_file

VALUES = [None, -1, 0, 2**63, 10**15, 1.5, "", "x", [], {}, [1], True, [-1, 2], {"a": 1}, "F64"]
GONE = object()
ARRAY = np.ones((2, 3), np.float32)
MOMENTS = state_file.OptimizerState(1, 0.1, 0.1, {"m/w": ARRAY})
STATES = {
    "whole": state_file.TrainingState({"w": ARRAY}, ["w"], {"a": 1, "b": 0.5}, MOMENTS),
    "nominal": state_file.TrainingState({"w": ARRAY}, ["w"], nominal=True),
}


def places(value, path=()):
    if path:
        yield path
    if isinstance(value, (dict, list)):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from places(value[key], (*path, key))


def changed(value, path, new):
    made = inner = copy.deepcopy(value)
    for key in path[:-1]:
        inner = inner[key]
    if new is GONE:
        del inner[path[-1]]
    else:
        inner[path[-1]] = new
    return made


def written(header, data):
    header["__metadata__"].pop("sha256")
    header["__metadata__"]["sha256"] = state_file._digest(header, [memoryview(data)])
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


@pytest.mark.parametrize("kind", STATES)
def test_a_header_that_does_not_fit_is_a_checkpoint_error(kind):
    content = state_file.encode(STATES[kind], with_optimizer=True)
    end = 8 + int.from_bytes(content[:8], "little")
    header, data = json.loads(content[8:end]), content[end:]
    assert state_file.decode(written(copy.deepcopy(header), data), "there")
    told = json.loads(header["__metadata__"]["state"])
    files = []
    for value in (*VALUES, GONE):
        tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
        files += [
            {**changed(tensors, path, value), "__metadata__": dict(header["__metadata__"])}
            for path in places(tensors)
        ]
        for path in places(told):
            made = copy.deepcopy(header)
            made["__metadata__"]["state"] = json.dumps(changed(told, path, value))
            files.append(made)
    refused = 0
    for made in files:
        try:
            state = state_file.decode(written(made, data), "there")
        except steep.CheckpointError as error:
            refused += error.node == "there"
        else:  # another number or name, which may be right
            assert all(isinstance(array, np.ndarray) for array in state.values.values())
    assert refused > len(files) / 2


def test_a_nominal_state_beyond_the_limits_is_refused():
    header = json.dumps({"trained": [], "nominal": True, "draws": 0, "properties": {},
                         "shapes": [["w", "F32", [10**9, 10**9]]]})  # fmt: skip
    metadata = {"format": "steep.compat.state/1", "state": header, "sha256": ""}
    with pytest.raises(steep.CheckpointError, match="max_bytes"):
        state_file.decode(written({"__metadata__": metadata}, b""), "there")
