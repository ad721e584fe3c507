"""Functions of the C library called at random: good, null, wrong and freed handles, odd arguments.

    python tests/attack/c_calls.py LIBRARY [--calls 3000] [--seed 0]

The header says what there is, so that a new function is called without a change here. Every call
ends, with a code of the header's; a code other than 0 comes with an error that says what is wrong,
and names null and wrong handles. A session that has seen it all still trains. A crash ends this
process: run it in one of its own. Works in the present folder; prints findings and lines ATTACK.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import random
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

INCLUDE = Path(__file__).resolve().parents[2] / "include"
HEADERS = sorted(INCLUDE.glob("steep_*.h"))
KINDS = (
    *("error", "options", "training", "inference", "gradients", "run", "artifact"),
    *("tensors", "bytes", "strings", "report", "memory", "data", "batches", "peers", "parallel"),
)
ARGUMENT, LAST = 10, 11  # STEEP_ERROR_ARGUMENT; the last code
LEFT_ALONE = {
    "steep_set_interrupt_check",  # takes a function
    "steep_register_provider",  # loads code into this process
    # use the caller's arrays after the call, which here live as long as it
    "steep_training_open_weights",
    "steep_gradients_bind_weights",
    "steep_gradients_bind_flat",
}
KEYS = """
loss output label optimizer schedule precision lr weight_decay epsilon momentum clip_norm
loss_scale attributes.x attributes. ignore_index warmup_steps seed nesterov check_finite trainable
frozen step_outputs threads optimize wrt outputs scalar_gradients lr_multiplier for_inference
external_data max_bytes max_nodes max_depth batch_size shuffle drop_last merge_adapters
zero wire_precision
""".split()  # noqa: SIM905
TEXTS = """
mse softmax_cross_entropy adamw sgd linear fp16 x w y label exp_avg/w none a/b
model.onnx out.onnx arrays.npz checkpoint folder trace.json {"a":1} steep.optimizer.x
""".split()  # noqa: SIM905
OPTIONS_OF = {
    "inference": 2,
    "gradient": 3,
    "gradients": 6,
    "write": 5,
    "batches": 7,
    "parallel": 8,
}  # by the second word of a function
# by the parameter
GOOD_TEXTS = {"path": b"model.onnx", "model": b"model.onnx", "user": b"{}", "way": b"gloo"}
GOOD_OPTIONS = {  # by their kind
    1: ((b"loss", b"mse"), (b"output", b"y")),
    3: ((b"wrt", b"x"), (b"outputs", b"y")),
    4: ((b"optimizer", b"sgd"),),
    6: ((b"wrt", b"w"), (b"outputs", b"y")),
}


WRONG = (  # of the first array of a batch, with the code of the error
    *(("name", None, ARGUMENT), ("name", b"label", ARGUMENT), ("name", b"none", 3)),
    *(("dtype", dtype, ARGUMENT) for dtype in (0, 7, 8, 29, 99, -5)),
    *(("rank", rank, ARGUMENT) for rank in (-1, 0, 1, 65, 1 << 30)),
    *(("bytes", size, ARGUMENT) for size in (0, 31, 33, (1 << 64) - 1)),
    *(("dims", None, ARGUMENT), ("data", None, ARGUMENT), ("data", 1, ARGUMENT)),
)


class Array(ctypes.Structure):
    """steep_array."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("dtype", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("dims", ctypes.c_void_p),
        ("data", ctypes.c_void_p),
        ("bytes", ctypes.c_size_t),
    )


def declarations() -> list[tuple[str, str, list[str]]]:
    """Name, type of the result and parameters of each function."""
    text = re.sub(r"/\*.*?\*/", "", "".join(header.read_text() for header in HEADERS), flags=re.S)
    found = re.findall(r"^STEEP_API ([\w *]+?)(steep_\w+)\(([^;]*)\);", text, re.M | re.S)
    return [
        (name, result.strip(), [" ".join(p.split()) for p in parameters.split(",")])
        for result, name, parameters in found
    ]


def write_model(path: Path) -> None:
    """x [rows, 4] · w → y [rows, 3], and x once more as `same`."""
    info = helper.make_tensor_value_info
    weight = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["y"]),
            helper.make_node("Identity", ["x"], ["same"]),
        ],
        "called",
        [info("x", TensorProto.FLOAT, ["rows", 4])],
        [info("y", TensorProto.FLOAT, ["rows", 3]), info("same", TensorProto.FLOAT, ["rows", 4])],
        [numpy_helper.from_array(weight, "w")],
    )
    opset = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), path)


class Caller:
    """Handles that live and handles that are gone, and calls with any of them."""

    def __init__(self, library: str, seed: int) -> None:
        self.library = ctypes.CDLL(library)
        self.rng = random.Random(seed)
        self.live: dict[str, list[int]] = {kind: [] for kind in KINDS}
        self.gone: list[int] = []
        self.kept: list[Any] = []  # what a call points to
        self.findings: list[str] = []
        self.refused = 0
        self.fitting: dict[int, ctypes.c_void_p] = {}  # options, by their kind
        self.name = ""  # of what is called
        self.block = ctypes.create_string_buffer(64)
        self.model = b""
        self.functions = [f for f in declarations() if f[0] not in LEFT_ALONE]
        for name, result, _ in declarations():
            types = {"size_t": ctypes.c_size_t, "const char*": ctypes.c_char_p}
            getattr(self.library, name).restype = types.get(result, ctypes.c_int)

    def keep(self, value: Any) -> Any:
        self.kept.append(value)
        return value

    def call(self, name: str, *arguments: Any) -> int:
        return getattr(self.library, name)(*arguments)

    def make(self, name: str, kind: str, *arguments: Any) -> int:
        """A handle, of a call that must succeed."""
        handle = ctypes.c_void_p()
        assert self.call(name, *arguments, ctypes.byref(handle), None) == 0, name
        assert handle.value
        self.live[kind].append(handle.value)
        return handle.value

    def refresh(self) -> None:
        """What calls need to get somewhere: a model that no call has written over, sessions."""
        write_model(Path("model.onnx"))
        self.model = Path("model.onnx").read_bytes()
        session = h(self.session())
        arrays = (Array * 2)(*self.batch())
        saved = ("steep_training_save_artifact", session, b"model.steep", arrays, 2, 1, None)
        assert self.call(*saved) == 0
        self.make("steep_artifact_open", "artifact", b"model.steep", ctypes.c_uint64(0))
        self.make("steep_inference_open", "inference", b"model.onnx", None)
        for kind in (1, 2, 3, 4, 5, 6, 7, 8):
            options = h(self.make("steep_options_new", "options", kind))
            self.fitting[kind] = options
            for key, value in GOOD_OPTIONS.get(kind, ()):
                put = "steep_options_add" if kind in (3, 6) else "steep_options_set_string"
                assert self.call(put, options, key, value, None) == 0
        self.make("steep_gradients_open", "gradients", b"model.onnx", self.fitting[6])
        peers = h(self.make("steep_peers_connect", "peers", b"gloo"))
        self.make("steep_parallel_new", "parallel", h(self.session()), peers, self.fitting[8])

    def session(self) -> int:
        options = h(self.make("steep_options_new", "options", 1))
        for key, value in GOOD_OPTIONS[1]:
            assert self.call("steep_options_set_string", options, key, value, None) == 0
        return self.make("steep_training_open", "training", b"model.onnx", options)

    # --- arguments ------------------------------------------------------------------------------

    def handle(self, kind: str, parameter: str) -> ctypes.c_void_p:
        if kind == "options" and "free" not in self.name and self.rng.random() < 0.5:
            fits = OPTIONS_OF.get(self.name.split("_")[1], 1)
            return self.fitting[4 if parameter == "group" else 5 if "export" in self.name else fits]
        odd = [0, 0x10, 0xDEADBEEF, (1 << 64) - 1, ctypes.addressof(self.block), *self.gone[-8:]]
        others = [handle for handles in self.live.values() for handle in handles[-2:]]
        pick = self.rng.random()
        if pick < 0.7 and self.live[kind]:
            return h(self.rng.choice(self.live[kind][-4:]))
        return h(self.rng.choice(odd if pick < 0.9 or not others else others))

    def text(self, parameter: str) -> bytes | None:
        words = KEYS if parameter.endswith("key") else TEXTS
        pick = self.rng.random()
        if pick < 0.5 and parameter in GOOD_TEXTS:
            return GOOD_TEXTS[parameter]
        return None if pick > 0.9 else self.rng.choice(words).encode()

    def array(self, name: bytes | None, extents: list[int], dtype: int = 1) -> Array:
        """An array that is what it says."""
        size = {1: 4, 7: 8, 11: 8, 9: 1, 16: 2}.get(dtype, 4)
        count = int(np.prod([e for e in extents if 0 <= e < 64], dtype=np.int64))
        data = self.keep(np.ones(count * size // 4 + 16, np.float32))
        dims = self.keep((ctypes.c_int64 * 8)(*extents))
        rank, address = len(extents), ctypes.addressof(dims)
        return Array(name, dtype, rank, address, data.ctypes.data, count * size)

    def odd_array(self) -> Array:
        name = self.rng.choice([b"x", b"w", b"label", b"none", None])
        extents = self.rng.choice([[2, 4], [2, 3], [0, 4], [], [-1, 4], [1 << 62, 1 << 62]])
        return self.array(name, extents, self.rng.choice([1, 7, 11, 9, 16, 0, 99, -5]))

    def batch(self) -> list[Array]:
        """What fits the model."""
        return [self.array(b"x", [2, 4]), self.array(b"label", [2, 3])]

    def arrays(self, parameter: str) -> list[Array]:
        """As many as a call may want: those that fit, of which one may be spoilt, or odd ones."""
        rng = self.rng
        if rng.random() < 0.2:
            return [self.odd_array() for _ in range(rng.randrange(4))]
        states = {"weights": b"w", "state": b"exp_avg/w"}
        if parameter == "output_gradients":
            made = [self.array(b"y", [2, 3])]
        elif parameter in states:
            made = [self.array(states[parameter], [4, 3])]
        else:
            made = self.batch()[: rng.choice([1, 2, 2])]
        if rng.random() < 0.6:
            array = rng.choice(made)
            odd = {
                "name": [None, b"none", b"x"],
                "dtype": [0, 7, 9, 99, -5],
                "rank": [-1, 0, 1, 65, 1 << 30],
                "dims": [None],
                "data": [None, array.data + 1],
                "bytes": [0, 1, (1 << 64) - 1],
            }
            field = rng.choice(list(odd))
            setattr(array, field, rng.choice(odd[field]))
        return made

    def value(self, parameter: str, given: dict[str, int]) -> Any:
        """An argument for a parameter. `given` has the sizes that go with earlier ones."""
        rng = self.rng
        kind, _, name = parameter.rpartition(" ")
        if name in ("count", "name_count", "row_count", "size") and "*" not in kind:
            return ctypes.c_size_t(given.pop("size", 0))
        if kind == "const int64_t*":
            given["size"] = rng.choice([0, 1, 4])
            return self.keep((ctypes.c_int64 * 4)(*rng.choices([0, 1, 2, -1], k=4)))
        if kind == "const steep_array*":
            arrays = self.arrays(name)
            given["size"] = len(arrays)
            return self.keep((Array * len(arrays))(*arrays)) if arrays else None
        if kind == "const void*":
            given["size"] = rng.choice([0, 1, 40, len(self.model), len(self.model)])
            return (
                None if rng.random() < 0.1 else self.keep(ctypes.create_string_buffer(self.model))
            )
        if kind == "const char* const*":
            given.setdefault("size", rng.randrange(3))
            texts = [self.text(name) for _ in range(given["size"])]
            if name == "keys":  # `values` are as many
                given["size"] = len(texts)
            return self.keep((ctypes.c_char_p * 4)(*texts)) if rng.random() < 0.8 else None
        if kind == "const char*":
            return self.text(name)
        handle = re.fullmatch(r"(?:const )?steep_(\w+)\*", kind)
        if handle and handle[1] in KINDS:
            return self.handle(handle[1], name)
        if "*" in kind:  # where a result goes; 256 bytes hold any
            return None if rng.random() < 0.1 else self.keep(ctypes.create_string_buffer(256))
        numbers = [0, 1, 2, 5, -1, 100, (1 << 31) - 1, -(1 << 63), (1 << 63) - 1]
        if kind == "double":
            return ctypes.c_double(rng.choice([0.0, 0.1, -1.0, 1e300, float("nan"), float("inf")]))
        types = {"int32_t": ctypes.c_int32, "int64_t": ctypes.c_int64}
        return types.get(kind, ctypes.c_uint64)(rng.choice(numbers))

    # --- a call ---------------------------------------------------------------------------------

    def once(self) -> None:
        name, result, parameters = self.rng.choice(self.functions)
        self.name = name
        if name.endswith("_free") and self.rng.random() < 0.7:
            return
        self.kept.clear()
        with_error = parameters[-1].endswith("error") and "**" in parameters[-1]
        given: dict[str, int] = {}
        values = [] if parameters == ["void"] else [self.value(p, given) for p in parameters]
        error = ctypes.c_void_p(0xBAD)
        if with_error:
            values[-1] = ctypes.byref(error)
        code = self.call(name, *values)
        if result == "steep_code" and name != "steep_error_code":
            self.look(name, code, error if with_error else None)
            self.sort(name, code, parameters, values)

    def look(self, name: str, code: int, error: ctypes.c_void_p | None) -> None:
        """Do the code and the error agree?"""
        if not 0 <= code <= LAST:
            self.findings.append(f"{name}: code {code}")
        if code == 9:
            message = self.call("steep_error_message", error) if error else b""
            self.findings.append(f"{name}: InternalError: {message.decode()}")
        self.refused += code != 0
        if error is None:
            return
        if (error.value is None) != (code == 0):
            self.findings.append(f"{name}: code {code}, error {error.value}")
        elif code != 0:
            said = self.call("steep_error_code", error), self.call("steep_error_message", error)
            if said[0] != code or not said[1]:
                self.findings.append(f"{name}: code {code}, but the error has {said}")
            if self.rng.random() < 0.1:
                self.live["error"].append(error.value)
            else:
                assert self.call("steep_error_free", error) == 0

    def sort(self, name: str, code: int, parameters: list[str], values: list[Any]) -> None:
        """Which handles live, and which are gone?"""
        if code != 0:
            return
        if name.endswith("_free") and values[0].value:
            (kind,) = (k for k in KINDS if name == f"steep_{k}_free")
            self.live[kind].remove(values[0].value)
            self.gone.append(values[0].value)
        for parameter, value in zip(parameters, values, strict=True):
            made = re.fullmatch(r"steep_(\w+)\*\* \w+", parameter)
            if made and made[1] != "error" and value is not None:
                handle = ctypes.c_uint64.from_buffer(value).value
                self.live[made[1]].append(handle)

    def refuses_wrong_arrays(self, session: int) -> None:
        """Is each thing that can be wrong with an array an error, by itself?"""
        for field, value, code in WRONG:
            arrays = (Array * 2)(*self.batch())
            setattr(arrays[0], field, value)
            if field == "data" and value is not None:
                arrays[0].data = arrays[1].data + value
            found = self.call("steep_training_step", h(session), arrays, 2, None, None, None)
            if found != code:
                self.findings.append(f"{field} of {value} is code {found}, not {code}")

    def trains(self, session: int) -> bool:
        """Does a step of a session lower the loss of the next?"""
        losses = []
        arrays = (Array * 2)(*self.batch())
        for _ in range(5):
            step = (ctypes.c_double * 8)()
            if self.call("steep_training_step", h(session), arrays, 2, step, None, None) != 0:
                return False
            losses.append(step[0])
        return losses[-1] < losses[0]


def h(handle: int) -> ctypes.c_void_p:
    """As an argument: ctypes would cut an int to 32 bits."""
    return ctypes.c_void_p(handle)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("library")
    parser.add_argument("--calls", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    begin = time.monotonic()
    os.environ.update(STEEP_RANK="0", STEEP_SIZE="1", STEEP_RENDEZVOUS=".")
    caller = Caller(str(Path(options.library).resolve()), options.seed)
    for i in range(options.calls):
        if i % 50 == 0:
            caller.refresh()
        caller.once()
    caller.refresh()
    caller.refuses_wrong_arrays(caller.live["training"][-1])
    if not caller.trains(caller.live["training"][-1]):
        caller.findings.append("a new session does not train")
    for finding in caller.findings:
        print("FINDING", finding)
    seconds = time.monotonic() - begin
    print(f"calls {options.calls}, refused {caller.refused}")
    print(f"ATTACK c_calls {options.calls} {len(caller.findings)} {seconds:.1f}")
    return len(caller.findings) > 0


if __name__ == "__main__":
    raise SystemExit(main())
