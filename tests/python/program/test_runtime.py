"""The library that is built with STEEP_RUNTIME: what it has, how large it is, that it trains."""

import re
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from checkout import ROOT
from onnx import TensorProto, helper, numpy_helper
from steep_program import output_of

import steep

pytestmark = pytest.mark.runtime
CONSUMER = ROOT / "tests" / "consumer"
MIB = 1 << 20


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runtime")
    built = ROOT / "build" / "runtime"
    output_of("cmake", "--install", built, "--prefix", folder, "--strip")
    (found,) = folder.glob("lib*/**/libsteep.so")
    return found


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a classifier of 64 numbers, with 128 units within."""
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
    folder = tmp_path_factory.mktemp("artifact")
    opset = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), folder / "model.onnx")
    session = steep.TrainingSession(
        folder / "model.onnx", loss="softmax_cross_entropy", optimizer="adamw", lr=0.01
    )
    batch = (np.zeros((32, 64), np.float32), np.zeros(32, np.int64))
    session.save_artifact(folder / "model.steep", batch)
    return folder / "model.steep"


def test_a_program_in_c_trains_in_little_memory(
    library: Path, artifact: Path, tmp_path: Path
) -> None:
    folder = library.parent
    line = ["cc", "-std=c99", "-Wall", "-Werror", f"-I{folder.parent}/include"]
    line += [CONSUMER / "device.c", f"-L{folder}", f"-Wl,-rpath,{folder}", "-lsteep"]
    output_of(*line, "-o", tmp_path / "device")
    said = output_of(tmp_path / "device", artifact, tmp_path / "saved.steep")
    begin, end, right, kib = re.findall(
        r"trained: ([\d.]+) to ([\d.]+), (\d+) of 32 right, peak (\d+) KiB", said
    )[0]
    assert float(begin) > 1.5 and float(end) < 0.2 and int(right) > 28
    assert 0 < int(kib) * 1024 <= 16 * MIB, said


def test_the_library_is_small_and_needs_little(library: Path) -> None:
    assert library.stat().st_size <= 8 * MIB
    needed = re.findall(r"NEEDED.*\[(.*?)\.so", output_of("readelf", "-d", library))
    ours = {"libhwy", "libfmt", "libgomp", "libstdc++"}
    assert {*needed} <= {*ours, "libm", "libgcc_s", "libc", "ld-linux-x86-64"}


def test_its_symbols_are_a_part_of_the_whole_library_s(library: Path) -> None:
    table = output_of("nm", "-D", "--defined-only", library).splitlines()
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


def test_a_damaged_artifact_is_refused(library: Path, artifact: Path, tmp_path: Path) -> None:
    """The short form of tests/artifact, by the library that reads them on devices."""
    folder = library.parent
    line = ["cc", "-std=c99", f"-I{folder.parent}/include", CONSUMER / "device.c", f"-L{folder}"]
    output_of(*line, f"-Wl,-rpath,{folder}", "-lsteep", "-o", tmp_path / "device")
    whole = artifact.read_bytes()
    damaged = {
        "cut": whole[:-1],
        "flipped": whole[:-100] + bytes([whole[-100] ^ 1]) + whole[-99:],
        "version": whole[:8] + b"\2" + whole[9:],
    }
    for name, content in damaged.items():
        (tmp_path / name).write_bytes(content)
        done = subprocess.run(
            [tmp_path / "device", tmp_path / name, tmp_path / "saved"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 2 and done.stderr.startswith("CheckpointError: "), name
