"""Files of a few KB that ask for more than any machine has, each run in a process of its own.

    python tests/attack/bombs.py [NAME...]      # prints one line of JSON for each

A bomb ends with an error of Steep's; one that only computes for long ends when it is interrupted.
"""

from __future__ import annotations

import io
import json
import os
import resource
import signal
import struct
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, parser

if __name__ == "__main__":
    # Of address space, half of which is what Python and the libraries map.
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (704 << 20, hard))

import steep

FLOATS = TensorProto.FLOAT
OPTIONS = steep.SessionOptions()
BOMBS: dict[str, Callable[[], object]] = {}
ENDLESS: dict[str, Callable[[], object]] = {}


def bomb(function):
    BOMBS[function.__name__] = function
    return function


def endless(function):
    ENDLESS[function.__name__] = function
    return function


def text_model(text: str, opset: int = 21) -> bytes:
    return parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : {opset}, "f" : 1]> {text}'
    ).SerializeToString()


def run(model: bytes, **inputs: np.ndarray) -> object:
    return steep.InferenceSession(model, OPTIONS).run(None, inputs)


def node_model(op: str, inputs: dict[str, np.ndarray], outputs: int = 1, **attributes) -> bytes:
    """One node. Its first input is fed; the others are initializers."""
    node = helper.make_node(op, list(inputs), [f"y{i}" for i in range(outputs)], **attributes)
    values = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for name, a in inputs.items()
    ]
    given = [
        helper.make_tensor(
            name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape, a.tobytes(), raw=True
        )
        for name, a in list(inputs.items())[1:]
    ]
    results = [helper.make_tensor_value_info(f"y{i}", FLOATS, None) for i in range(outputs)]
    graph = helper.make_graph([node], "g", values[:1], results, given)
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10
    ).SerializeToString()


def run_node(op: str, *arrays: np.ndarray, **attributes) -> object:
    inputs = {f"x{i}": a for i, a in enumerate(arrays)}
    return run(node_model(op, inputs, **attributes), x0=arrays[0])


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


# --- windows --------------------------------------------------------------------------------------


@bomb
def average_pool_2_62():
    run_node("AveragePool", ones(1, 1, 8, 8), kernel_shape=[2**62, 2**62], auto_pad="SAME_UPPER")


@bomb
def max_pool_steps_overflow():
    run_node(
        "MaxPool",
        ones(1, 1, 8),
        kernel_shape=[2**31 - 1],
        dilations=[2**40],
        strides=[2**62],
        auto_pad="SAME_LOWER",
    )


@bomb
def lp_pool_pads():
    pads = [2**40, 2**40]
    run_node("LpPool", ones(1, 1, 8), kernel_shape=[2**20], pads=pads, ceil_mode=1)


# --- sizes ----------------------------------------------------------------------------------------


@bomb
def resize_sizes():
    run_node("Resize", ones(1, 1, 2, 2), ones(0), ones(0), ints(1, 1, 2**40, 2), mode="linear")


@bomb
def resize_scales():
    run_node("Resize", ones(1, 1, 2, 2), ones(0), np.float32([1, 1, 3e8, 1]), mode="cubic")


@bomb
def affine_grid():
    run_node("AffineGrid", ones(1, 2, 3), ints(1, 1, 2**31, 2**10))


@bomb
def affine_grid_within_a_step():
    run_node("AffineGrid", ones(1, 2, 3), ints(1, 1, 2**12, 2**16))


@bomb
def constant_of_shape():
    run_node("ConstantOfShape", ints(2**20, 2**25))


@bomb
def expand():
    run_node("Expand", ones(1), ints(2**45))


@bomb
def tile():
    run_node("Tile", ones(4), ints(2**42))


@bomb
def tile_beyond_64_bits():
    run_node("Tile", ones(4, 4), ints(2**40, 2**40))


@bomb
def range_():
    run(
        text_model(
            "g (int64 n) => (int64[m] y) { a = Constant <value_int: int = 0> () "
            "b = Constant <value_int: int = 1> () y = Range (a, n, b) }"
        ),
        n=np.array(2**40),
    )


@bomb
def one_hot():
    run_node("OneHot", ints(1, 2), np.array(2**42), np.float32([0, 1]))


@bomb
def pad():
    run_node("Pad", ones(4), ints(0, 2**44))


@bomb
def random():
    run(text_model(f"g () => (float[n] y) {{ y = RandomNormal <shape: ints = [{2**44}]> () }}"))


@bomb
def hann_window():
    run(text_model("g (int64 n) => (float[m] y) { y = HannWindow (n) }"), n=np.array(2**44))


@bomb
def dft():
    run_node("DFT", ones(1, 2**17 - 1, 1))


@bomb
def concat_doubled():
    lines = " ".join(f"x{i + 1} = Concat <axis = 0> (x{i}, x{i})" for i in range(45))
    run(text_model(f"g (float[1] x0) => (float[n] x45) {{ {lines} }}"), x0=ones(1))


@bomb
def outer_product():
    lines = "a = Unsqueeze (x, c) b = Mul (x, a) d = Unsqueeze (b, c) y = Mul (x, d) "
    run(
        text_model(f"g (float[n] x) => (float[p, q, r] y) <int64[1] c = {{-1}}> {{ {lines} }}"),
        x=ones(1 << 14),
    )


@bomb
def many_large_results():
    names = [f"y{i}" for i in range(64)]
    lines = " ".join(f"x{i + 1} = Exp (x{i}) y{i} = Expand (x{i}, s)" for i in range(64))
    outs = ", ".join(f"float[m] {n}" for n in names)
    run(
        text_model(f"g (float[1] x0) => ({outs}) <int64[1] s = {{{2**25}}}> {{ {lines} }}"),
        x0=ones(1),
    )


# --- graphs ---------------------------------------------------------------------------------------


def doubled(levels: int, body: str) -> bytes:
    """Functions of which each calls the one below twice."""
    functions = ['<domain: "f", opset_import: ["" : 21, "f" : 1]> f0 (x) => (y) { y = Neg (x) }']
    for i in range(1, levels + 1):
        functions.append(
            f'<domain: "f", opset_import: ["" : 21, "f" : 1]> f{i} (x) => (y) '
            f"{{ {body.replace('F', f'f.f{i - 1}')} }}"
        )
    graph = f"g (float[1] x) => (float[1] y) {{ y = f.f{levels} (x) }} "
    return text_model(graph + " ".join(functions))


@bomb
def functions_doubled():
    run(doubled(19, "a = F (x) y = F (a)"), x=ones(1))


@bomb
def branches_doubled():
    body = (
        "s = ReduceSum <keepdims = 0> (x) z = Constant <value_float: float = 0.0> () "
        "c = Greater (s, z) y = If (c) <then_branch = t () => (p) { p = F (x) }, "
        "else_branch = e () => (q) { q = F (x) }>"
    )
    run(doubled(16, body), x=ones(1))


@bomb
def loops_doubled():
    body = (
        "n = Constant <value_int: int = 2> () c = Constant <value: tensor = bool {1}> () "
        "y = Loop (n, c, x) <body = b (int64 i, bool k, v) => (k1, w) "
        "{ k1 = Identity (k) a = F (v) w = F (a) }>"
    )
    run(doubled(14, body), x=ones(1))


@bomb
def loop_grows_a_sequence():
    run(
        text_model(
            f"""g (float[2] x) => (seq(float[2]) y) <int64 n = {{{2**40}}}, bool t = {{1}}> {{
            s = SequenceEmpty ()
            y = Loop (n, t, s) <body = b (int64 i, bool c, seq(float[2]) v) => (bool d,
                seq(float[2]) w) {{ d = Identity (c) w = SequenceInsert (v, x) }}> }}"""
        ),
        x=ones(2),
    )


@bomb
def loop_doubles_its_value():
    run(
        text_model(
            """g (float[n] x) => (float[m] y) <int64 n = {60}, bool t = {1}> {
            y = Loop (n, t, x) <body = b (int64 i, bool c, float[k] v) => (bool d, float[l] w)
                { d = Identity (c) w = Concat <axis = 0> (v, v) }> }"""
        ),
        x=ones(1024),
    )


# --- training -------------------------------------------------------------------------------------


@bomb
def step_plan():
    wide = text_model(
        f"""g (float[n, 1] x) => (float[m, 1] z) <float[1, 1] w = {{1}}, int64[2] r =
        {{{10**10}, 1}}> {{ t = Tile (x, r) y = MatMul (t, w) z = ReduceMean (y) }}"""
    )
    steep.TrainingSession(wide, output="z").step(ones(1, 1))


# --- data -----------------------------------------------------------------------------------------


def train_on(archive: bytes) -> None:
    """`steep train`, whose exit code says what kind of error there was."""
    import subprocess

    model = text_model(
        "g (float[n, 1] x) => (float[n, 1] y) <float[1, 1] w = {1}> { y = MatMul (x, w) }"
    )
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "m.onnx").write_bytes(model)
        Path(folder, "d.npz").write_bytes(archive)
        program = Path(sys.executable).with_name("steep")
        if not program.exists():
            program = Path(__file__).parents[2] / "build/release/steep"
        done = subprocess.run(
            [program, "train", "m.onnx", "--data", "d.npz", "--loss", "mse", "--out", "o.onnx"],
            cwd=folder, capture_output=True, text=True, check=False,
        )  # fmt: skip
    if done.returncode == 3:
        raise steep.DataError(done.stderr)
    raise RuntimeError(f"{done.returncode}: {done.stdout} {done.stderr}")


def zip_of(members: list[tuple[str, int, int, int, int]], data: bytes) -> bytes:
    """Members as (name, offset of their header, packed, unpacked, crc) over `data`."""
    directory = b"".join(
        struct.pack(
            "<IHHHHHHIIIHHHHHII", 0x02014B50, 20, 20, 0, 8, 0, 0x21, crc, packed, size,
            len(name), 0, 0, 0, 0, 0, offset,
        ) + name.encode()
        for name, offset, packed, size, crc in members
    )  # fmt: skip
    end = struct.pack(
        "<IHHHHIIH", 0x06054B50, 0, 0, len(members), len(members), len(directory), len(data), 0
    )
    return data + directory + end


def deflated_zeros(size: int) -> tuple[bytes, int, int]:
    """An .npy of `size` zeros, its length and its checksum."""
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        head, {"descr": "|u1", "fortran_order": False, "shape": (size,)}
    )
    squeeze = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed, crc = squeeze.compress(head.getvalue()), zlib.crc32(head.getvalue())
    block = bytes(1 << 20)
    for begin in range(0, size, len(block)):
        part = block[: size - begin]
        packed += squeeze.compress(part)
        crc = zlib.crc32(part, crc)
    return packed + squeeze.flush(), len(head.getvalue()) + size, crc


def local_header(packed: int, size: int, crc: int) -> bytes:
    return struct.pack(
        "<IHHHHHIIIHH", 0x04034B50, 20, 0, 8, 0, 0x21, crc, packed, size, 1, 0
    ) + b"x"  # fmt: skip


@bomb
def archive_overlaps():
    packed, size, crc = deflated_zeros(16 << 20)
    data = local_header(len(packed), size, crc) + packed
    train_on(zip_of([(f"{i}", 0, len(packed), size, crc) for i in range(2000)], data))


@bomb
def archive_overlaps_below_the_limit():
    packed, size, crc = deflated_zeros(1 << 20)
    data = local_header(len(packed), size, crc) + packed
    train_on(zip_of([(f"{i}", 0, len(packed), size, crc) for i in range(100)], data))


@bomb
def archive_claims():
    packed, _, crc = deflated_zeros(1 << 20)
    data = local_header(len(packed), 0xFFFFFFF0, crc) + packed
    train_on(zip_of([("x", 0, len(packed), 0xFFFFFFF0, crc)], data))


# --- what only takes time -------------------------------------------------------------------------


@endless
def loop():
    run(
        text_model(
            f"""g (float[2] x) => (float[2] y) <int64 n = {{{9_000_000}}}, bool t = {{1}}> {{
            y = Loop (n, t, x) <body = b (int64 i, bool c, float[2] v) => (bool d, float[2] w)
                {{ d = And (c, c) w = Add (v, x) }}> }}"""
        ),
        x=ones(2),
    )


@endless
def product():
    side = 1 << 13
    lines = "a = Expand (x, s) " + " ".join(
        f"a{i} = MatMul ({'a' if i == 0 else f'a{i - 1}'}, a)" for i in range(100)
    )
    run(
        text_model(
            f"g (float[1] x) => (float[m, n] a99) <int64[2] s = {{{side}, {side}}}> {{ {lines} }}"
        ),
        x=ones(1),
    )


@endless
def pooling():
    side = 1 << 12
    run_long = (
        f"a = Expand (x, s) y = AveragePool <kernel_shape = [{side}, {side}], "
        'auto_pad = "SAME_UPPER"> (a)'
    )
    run(
        text_model(
            f"g (float[1] x) => (float[k, l, m, n] y) <int64[4] s = {{1, 1, {side}, {side}}}> "
            f"{{ {run_long} }}"
        ),
        x=ones(1),
    )


@endless
def training():
    lines = " ".join(f"h{i + 1} = MatMul (h{i}, v)" for i in range(200))
    model = text_model(
        f"""g (float[n, 1] x) => (float[n, m] z) <float[1, 1] w = {{1}}, int64[2] s =
        {{1024, 1024}}> {{ v = Expand (w, s) h0 = MatMul (x, w) e = Expand (h0, s)
        {lines.replace("(h0", "(e")} z = Identity (h200) }}"""
    )
    session = steep.TrainingSession(
        model, loss="mse", optimizer="sgd", lr=0.0, limits=OPTIONS.limits
    )
    while True:
        session.step(ones(1, 1), ones(1024, 1024))


# --- running them ---------------------------------------------------------------------------------


def run_by_name(name: str) -> object:
    if name in ENDLESS:
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
        OPTIONS.limits = steep.Limits(max_bytes=8 << 30)
    return (BOMBS.get(name) or ENDLESS[name])()


def explode(name: str, report: int) -> None:
    """In the child: what it ends with goes to `report`."""
    try:
        run_by_name(name)
        result = "nothing"
    except BaseException as error:
        result = f"{type(error).__name__}: {error}"
    os.write(report, result.encode()[:4000])


def run_one(name: str) -> dict[str, object]:
    reader, writer = os.pipe()
    start = time.monotonic()
    child = os.fork()
    if child == 0:
        explode(name, writer)
        os._exit(0)
    os.close(writer)
    if name in ENDLESS:
        time.sleep(1.5)
        os.kill(child, signal.SIGINT)
        start = time.monotonic()
    while True:
        done, status, usage = os.wait4(child, os.WNOHANG)
        if done:
            break
        if time.monotonic() - start > 60:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.01)
    result = os.read(reader, 4000).decode()
    os.close(reader)
    return {
        "name": name,
        "seconds": round(time.monotonic() - start, 2),
        "cpu": round(usage.ru_utime + usage.ru_stime, 2),
        "megabytes": usage.ru_maxrss >> 10,
        "status": status,
        "result": result,
    }


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in sys.argv[1:] or [*BOMBS, *ENDLESS]:
        print(json.dumps(run_one(name)), flush=True)
