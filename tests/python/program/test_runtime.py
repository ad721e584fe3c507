"""The library that is built with STEEP_RUNTIME: what it has, how large it is, that it trains.

For this machine, for ARM in an emulator, and for browsers in node."""

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from arm64_build import COMPILER, EMULATOR
from checkout import ROOT
from onnx import TensorProto, helper, numpy_helper
from steep_program import output_of
from wasm_build import WASM, needs_wasm

import steep

CONSUMER = ROOT / "tests" / "consumer"
MIB = 1 << 20


def compiled(
    compiler: tuple[str, ...], source: str, include: Path, library: Path, to: Path
) -> Path:
    line = [*compiler, "-std=c99", "-Wall", "-Werror", f"-I{include}", CONSUMER / source]
    output_of(*line, f"-L{library}", f"-Wl,-rpath,{library}", "-lsteep", "-o", to)
    return to


@dataclass(frozen=True)
class Runtime:
    """The installed library, and how to make and run programs that link it."""

    library: Path
    compiler: tuple[str, ...]
    emulator: tuple[str, ...]
    linker: str
    known_isa: tuple[str, ...]

    @property
    def in_node(self) -> bool:
        return self.emulator == ("node",)

    def program(self, source: str, to: Path) -> list[object]:
        """A command, of a file in tests/consumer."""
        if self.in_node:
            return [*self.emulator, WASM / Path(source).with_suffix(".cjs").name]
        folder = self.library.parent
        include = folder.parent / "include"
        return [*self.emulator, compiled(self.compiler, source, include, folder, to)]


HERE = ("runtime", ("cc",), (), "ld-linux-x86-64", ("avx512", "avx2", "sse4", "scalar"))
ARM = ("arm64", COMPILER, EMULATOR, "ld-linux-aarch64", ("neon",))
NODE = ("wasm", (), ("node",), "", ("simd128",))


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(HERE, id="here", marks=pytest.mark.runtime),
        pytest.param(ARM, id="arm64", marks=pytest.mark.arm64),
        pytest.param(NODE, id="wasm", marks=pytest.mark.wasm),
    ],
)
def runtime(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Runtime:
    build, *rest = request.param
    if build == "wasm":
        needs_wasm()
        return Runtime(WASM / "steep_runtime.wasm", *rest)
    folder = tmp_path_factory.mktemp(build)
    output_of("cmake", "--install", ROOT / "build" / build, "--prefix", folder, "--strip")
    (library,) = folder.glob("lib*/**/libsteep.so")
    return Runtime(library, *rest)


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return classifier(tmp_path_factory.mktemp("artifact"), "adamw", 0.01)


def classifier(folder: Path, optimizer: str, lr: float) -> Path:
    """The artifact of a classifier of 64 numbers, with 128 units within."""
    random = np.random.default_rng(0)

    def weight(name: str, *extents: int) -> onnx.TensorProto:
        return numpy_helper.from_array((random.normal(size=extents) * 0.2).astype(np.float32), name)

    graph = helper.make_graph(
        [
            helper.make_node("Gemm", ["x", "w0", "b0"], ["h"], transB=1),
            helper.make_node("Relu", ["h"], ["r"]),
            helper.make_node("Gemm", ["r", "w1", "b1"], ["logits"], transB=1),
        ],
        "classifier",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 64])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["rows", 10])],
        [weight("w0", 128, 64), weight("b0", 128), weight("w1", 10, 128), weight("b1", 10)],
    )
    opset = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), folder / "model.onnx")
    session = steep.TrainingSession(
        folder / "model.onnx", loss="softmax_cross_entropy", optimizer=optimizer, lr=lr
    )
    batch = (np.zeros((32, 64), np.float32), np.zeros(32, np.int64))
    session.save_artifact(folder / "model.steep", batch)
    return folder / "model.steep"


def test_a_program_in_c_trains_in_little_memory(
    runtime: Runtime, artifact: Path, tmp_path: Path
) -> None:
    device = runtime.program("device.c", tmp_path / "device")
    said = output_of(*device, artifact, tmp_path / "saved.steep")
    begin, end, right, kib = re.findall(
        r"trained: ([\d.]+) to ([\d.]+), (\d+) of 32 right, peak (\d+) KiB", said
    )[0]
    assert float(begin) > 1.5 and float(end) < 0.2 and int(right) > 28
    if not runtime.emulator:  # whose memory it would be
        assert 0 < int(kib) * 1024 <= 16 * MIB, said


# Adam divides gradients by their size, so that rounding has a say in those near zero: on x86-64,
# AVX-512 and plain loops differ by 1e-4, too.
@pytest.mark.parametrize(("optimizer", "lr", "atol"), [("sgd", 0.05, 1e-6), ("adamw", 0.001, 2e-4)])
def test_losses_and_weights_are_those_of_the_whole_library(
    runtime: Runtime, tmp_path: Path, optimizer: str, lr: float, atol: float
) -> None:
    """And it goes on from what the other one saved."""
    written = classifier(tmp_path, optimizer, lr)
    release = ROOT / "build" / "release"
    whole = compiled(("cc",), "replay.c", ROOT / "include", release, tmp_path / "whole")
    replay = runtime.program("replay.c", tmp_path / "replay")
    random = np.random.default_rng(1)
    batches = tmp_path / "batches"
    with batches.open("wb") as file:
        for _ in range(30):
            file.write(random.normal(size=(32, 64)).astype(np.float32).tobytes())
            file.write(random.integers(10, size=32).tobytes())
    begin = (written, written)
    for part in ("first", "second"):
        here, there = (tmp_path / f"{part}.{name}" for name in ("here", "there"))
        expected = output_of(whole, begin[0], batches, here).splitlines()
        received = output_of(*replay, begin[1], batches, there).splitlines()
        assert len(received) == len(expected) == 34
        for mine, other in zip(received, expected, strict=True):
            if runtime.emulator:
                close(mine, other, atol)
            else:  # the same kernels, as the products are small
                assert mine == other
        begin = (there, here)


def close(received: str, expected: str, atol: float) -> None:
    """Compares two lines of a name and numbers."""
    mine, *x = received.split()
    other, *y = expected.split()
    assert mine == other
    np.testing.assert_allclose(np.array(x, float), np.array(y, float), rtol=1e-6, atol=atol)


def test_the_library_is_small_and_needs_little(runtime: Runtime) -> None:
    assert runtime.library.stat().st_size <= 8 * MIB
    if runtime.in_node:
        return
    needed = re.findall(r"NEEDED.*\[(.*?)\.so", output_of("readelf", "-d", runtime.library))
    ours = {"libhwy", "libfmt", "libgomp", "libstdc++"}
    assert {*needed} <= {*ours, "libm", "libgcc_s", "libc", runtime.linker}


def test_an_unknown_instruction_set_is_refused_with_those_that_exist(
    runtime: Runtime, artifact: Path, tmp_path: Path
) -> None:
    if runtime.in_node:
        pytest.skip("a program in node does not see this process's environment")
    known = runtime.known_isa
    device = runtime.program("device.c", tmp_path / "device")
    for name in (*known, "mmx"):
        done = subprocess.run(
            [*map(str, device), artifact, tmp_path / "saved"],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "STEEP_MAX_ISA": name},
        )
        assert done.returncode == (0 if name in known else 2), done.stderr
    expected = " or ".join(filter(None, [", ".join(known[:-1]), known[-1]]))
    assert done.stderr.startswith("ProviderError: ")
    assert expected in done.stderr and "mmx" in done.stderr


def test_its_symbols_are_a_part_of_the_whole_library_s(runtime: Runtime) -> None:
    if runtime.in_node:
        pytest.skip("what a module exports is what steep_artifact.mjs calls")
    table = output_of("nm", "-D", "--defined-only", runtime.library).splitlines()
    names = {line.split()[-1].partition("@")[0] for line in table} - {"STEEP_0.1"}
    assert names <= {*(CONSUMER / "steep_c.symbols").read_text().split()}
    sections = (
        "artifact",
        "error",
        "tensors",
        "bytes",
        "strings",
        "version",
        "code",
        "dtype",
        "set",
    )
    assert {name.split("_")[1] for name in names} == {*sections}


def test_a_damaged_artifact_is_refused(runtime: Runtime, artifact: Path, tmp_path: Path) -> None:
    """The short form of tests/artifact, by the library that reads them on devices."""
    device = runtime.program("device.c", tmp_path / "device")
    whole = artifact.read_bytes()
    damaged = {
        "cut": whole[:-1],
        "flipped": whole[:-100] + bytes([whole[-100] ^ 1]) + whole[-99:],
        "version": whole[:8] + b"\2" + whole[9:],
    }
    for name, content in damaged.items():
        (tmp_path / name).write_bytes(content)
        done = subprocess.run(
            [*map(str, device), tmp_path / name, tmp_path / "saved"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 2 and done.stderr.startswith("CheckpointError: "), name
