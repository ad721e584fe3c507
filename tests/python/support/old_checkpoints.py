"""Checkpoints of ONNX Runtime's format: files that its package wrote, and a writer for others.

The writer takes FlatBuffers' own builder and the numbers of the schema; it shares nothing with
Steep's.
"""

import base64

import flatbuffers
import numpy as np
import onnx
from onnx import helper, numpy_helper

TRAINED = ["fc1.bias", "fc2.weight", "fc2.bias"]
RATE = 0.05
LOSSES = [0.6504903435707092, 0.6234044432640076]
"""The losses of steps 4 and 5 in onnxruntime-training 1.19.2, at this rate, from THREE on."""


def model_and_data():
    """Return the forward model of the files below, and the five batches of their training."""
    rng = np.random.default_rng(0)
    shapes = {"fc1.weight": (4, 3), "fc1.bias": (4,), "fc2.weight": (2, 4), "fc2.bias": (2,)}
    weights = {n: rng.standard_normal(s).astype(np.float32) * 0.3 for n, s in shapes.items()}
    nodes = [
        helper.make_node("Gemm", ["x", "fc1.weight", "fc1.bias"], ["h"], transB=1),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Gemm", ["r", "fc2.weight", "fc2.bias"], ["scores"], transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "mlp",
        [helper.make_tensor_value_info("x", 1, ["n", 3])],
        [helper.make_tensor_value_info("scores", 1, ["n", 2])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    opset = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=8)
    data = [
        (rng.standard_normal((5, 3)).astype(np.float32), rng.standard_normal((5, 2)).astype("f4"))
        for _ in range(5)
    ]
    return model, data


THREE = base64.b64decode(
    """
GAAAAE9EVEMAAAAADAAUABAADAAIAAQADAAAACQAAAAMAAAANAMAAAIAAAABAAAAqAAAAAAACgAQAAwACAAEAAoAAAAMAAAA
EAAAABQAAAABAAAAFAAAAAEAAABYAAAAAQAAADAAAAAY/f//CAAAABAAAAAGAAAAbWxwIMO8AAAEAAAAbmFtZQAAAAAIABQA
EAAEAAgAAAADAAAAAAAAAAAAAAAEAAAABQAAAGVwb2NoAAAAZP3//wAAAD8EAAAABAAAAGJlc3QAAAAADAAYABQACAAQAAQA
DAAAABQAAAADAAAAAAAAAG8SgzoUAAAAAwAAAKgBAAD8AAAAEAAAAAYAAABncm91cDAAALz9//8IAAAAEAAAAAIAAAB4AAAA
FAAAAAoAAABmYzIud2VpZ2h0AACu/P//EAAAAAEAAAAsAAAAQAAAACAAAAAAAAAAHnUZNh9aNTjXgIA3AAAAABXgSzYGho42
+Nw7NwIAAAACAAAAAAAAAAQAAAAAAAAAAAAAAAkAAABtb21lbnR1bTEAAAAO/f//EAAAAAEAAAAsAAAAQAAAACAAAAAAAAAA
JA6Muwau6ztO0Ie8AAAAAB3SqjssWQC8WhZHOwIAAAACAAAAAAAAAAQAAAAAAAAAAAAAAAkAAABtb21lbnR1bTAAAACk/v//
CAAAABAAAAACAAAAWAAAABQAAAAIAAAAZmMyLmJpYXMAAAAAlv3//xAAAAABAAAAFAAAACAAAAAIAAAATQmaOu9wvjoBAAAA
AgAAAAAAAAAAAAAACQAAAG1vbWVudHVtMQAAANb9//8QAAAAAQAAABQAAAAgAAAACAAAAKbTmb0Ib6K7AQAAAAIAAAAAAAAA
AAAAAAkAAABtb21lbnR1bTAAAABM////CAAAABAAAAACAAAAYAAAABQAAAAIAAAAZmMxLmJpYXMAAAAAPv7//xAAAAABAAAA
HAAAACgAAAAQAAAAAAAAAACJgDiGnF02nhmfNwEAAAAEAAAAAAAAAAAAAAAJAAAAbW9tZW50dW0xAAAAhv7//xAAAAABAAAA
HAAAACQAAAAQAAAAAAAAAKCOGbxJ/qs7zrqlvAEAAAAEAAAAAAAAAAkAAABtb21lbnR1bTAAAAAIAAwACAAEAAgAAAAIAAAA
DAAAAAEAAAAUAAAAAwAAACQBAADYAAAAdAAAAPb+//8QAAAAAQAAADwAAABQAAAAMAAAAE9/Gj2ZVCK947xEPrnmAD3CjiS+
/SnePV9LyD6+eJE+/i9Yvmdewr5MeD++HiBLPAIAAAAEAAAAAAAAAAMAAAAAAAAAAAAAAAoAAABmYzEud2VpZ2h0AABm////
EAAAAAEAAAAsAAAAQAAAACAAAABGMie+bvMEPTqgSD7hR+g+gvEdvUkd0T4uMJ+9MlAJPgIAAAACAAAAAAAAAAQAAAAAAAAA
AAAAAAoAAABmYzIud2VpZ2h0AADG////EAAAAAEAAAAUAAAAHAAAAAgAAAClH8k+N3K5PQEAAAACAAAAAAAAAAgAAABmYzIu
YmlhcwAADgAUABAAAAAMAAgABAAOAAAAEAAAAAEAAAAcAAAAJAAAABAAAAD4jzK/gjkiPajHo74aN5a9AQAAAAQAAAAAAAAA
CAAAAGZjMS5iaWFzAAAAAA==
"""
)
"""Saved with the optimizer's state after three steps of AdamW, by onnxruntime-training 1.19.2."""

NOMINAL = base64.b64decode(
    """
EAAAAE9EVEMIAA4ACAAEAAgAAAAUAAAAAgAAAAAACgAQAAwACAAHAAoAAAAAAAABCAAAAAwAAAABAAAAFAAAAAMAAACgAAAA
YAAAADAAAAB6////EAAAAAEAAAAMAAAADAAAAAAAAAAAAAAACgAAAGZjMS53ZWlnaHQAAKb///8QAAAAAQAAAAwAAAAMAAAA
AAAAAAAAAAAIAAAAZmMyLmJpYXMAAAAA0v///xAAAAABAAAADAAAAAwAAAAAAAAAAAAAAAoAAABmYzIud2VpZ2h0AAAAAA4A
FAAQAAAADAAIAAQADgAAABAAAAABAAAADAAAAAwAAAAAAAAAAAAAAAgAAABmYzEuYmlhcwAAAAA=
"""
)
"""Written by generate_artifacts(…, nominal_checkpoint=True) of the same package."""


class Writer:
    """Builds a file; slots are those of the schema."""

    def __init__(self):
        self.builder = flatbuffers.Builder(1024)

    def table(self, slots, **fields):
        self.builder.StartObject(slots)
        for slot, (kind, value, default) in fields.items():
            prepend = getattr(self.builder, f"Prepend{kind}Slot")
            prepend(int(slot[1:]), value, default)
        return self.builder.EndObject()

    def at(self, place):
        return ("UOffsetTRelative", place, 0)

    def text(self, text):
        return self.at(self.builder.CreateString(text))

    def tables(self, places):
        self.builder.StartVector(4, len(places), 4)
        for place in reversed(places):
            self.builder.PrependUOffsetTRelative(place)
        return self.at(self.builder.EndVector())

    def tensor(self, name, array, dims=None, code=None, raw=None, external=-1):
        array = np.asarray(array)
        dims = array.shape if dims is None else dims
        code = helper.np_dtype_to_tensor_dtype(array.dtype) if code is None else code
        raw = array.tobytes() if raw is None else raw
        fields = {"s0": self.text(name)}
        fields["s2"] = self.at(self.builder.CreateNumpyVector(np.array(dims, np.int64)))
        fields["s3"] = ("Int32", code, 0)
        if external < 0:
            fields["s4"] = self.at(self.builder.CreateByteVector(raw))
        fields["s6"] = ("Int64", external, -1)
        return self.table(7, **fields)

    def group(self, states, name="group0", step=3, rate=0.25):
        made = [
            self.table(
                2,
                s0=self.text(parameter),
                s1=self.tables([self.tensor(n, a) for n, a in moments.items()]),
            )
            for parameter, moments in states
        ]
        return self.table(
            4,
            s0=self.text(name),
            s1=("Int64", step, 0),
            s2=("Float32", rate, 0.0),
            s3=self.tables(made),
        )

    def bag(self, ints=(), floats=(), strings=()):
        def of(pairs, kind):
            return self.tables(
                [self.table(2, s0=self.text(n), s1=kind(value)) for n, value in pairs]
            )

        return self.table(
            3,
            s0=of(ints, lambda value: ("Int64", value, 0)),
            s1=of(floats, lambda value: ("Float32", value, 0.0)),
            s2=of(strings, self.text),
        )

    def file(self, trained=(), frozen=(), groups=(), bag=None, version=2, flags=(0, 0)):
        module = self.table(
            4,
            s0=self.tables(list(trained)),
            s1=self.tables(list(frozen)),
            s2=("Bool", bool(flags[0]), 0),
            s3=("Bool", bool(flags[1]), 0),
        )
        fields = {"s0": ("Int32", version, 0), "s1": self.at(module)}
        fields["s2"] = self.tables(list(groups))
        if bag is not None:
            fields["s3"] = self.at(bag)
        root = self.table(4, **fields)
        self.builder.Finish(root, b"ODTC")
        return bytes(self.builder.Output())


STRING = onnx.TensorProto.STRING
