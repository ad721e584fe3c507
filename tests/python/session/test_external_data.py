"""Every exporter, of models whose tensors lie in files beside them, into other folders."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from steep_program import steep as program

import steep
from steep.compat.onnxblock import artifacts

F = np.float32
X = np.linspace(-1, 1, 12, dtype=F).reshape(3, 4)
W = np.linspace(-1, 2, 16, dtype=F).reshape(4, 4)
CONSTANT, THEN, ELSE, LOOP, FUNCTION = (
    np.linspace(i, i + 1, 4, dtype=F) for i in (0.5, 1.5, 2.5, 3.5, 4.5)
)
BIG = np.linspace(0, 1, 400, dtype=F).reshape(100, 4)  # more than what stays inside of a file
DATA = {
    "w.bin": W,
    "constant.bin": CONSTANT,
    "then.bin": THEN,
    "else.bin": ELSE,
    "loop.bin": LOOP,
    "function.bin": FUNCTION,
    "values.bin": np.array([2, 3], F),
    "big.bin": BIG,
}


def outside(name: str, data: np.ndarray, location: str) -> TensorProto:
    tensor = numpy_helper.from_array(data, name)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", location
    return tensor


def info(name: str, extents: list[object], dtype: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, extents)


def branch(name: str, data: np.ndarray) -> onnx.GraphProto:
    return helper.make_graph(
        [helper.make_node("Add", ["h", name], [name + "_y"])],
        name + "_graph",
        [],
        [info(name + "_y", ["n", 4])],
        [outside(name, data, name + ".bin")],
    )


def source() -> onnx.ModelProto:
    """A tensor outside wherever one may stand."""
    body = helper.make_graph(
        [
            helper.make_node("Constant", [], ["step"], value=outside("", LOOP, "loop.bin")),
            helper.make_node("Add", ["s", "step"], ["s2"]),
            helper.make_node("Identity", ["go"], ["on"]),
        ],
        "body",
        [info("i", [], TensorProto.INT64), info("go", [], TensorProto.BOOL), info("s", ["n", 4])],
        [info("on", [], TensorProto.BOOL), info("s2", ["n", 4])],
    )
    function = helper.make_function(
        "own",
        "shift",
        ["a"],
        ["b"],
        [
            helper.make_node("Constant", [], ["c"], value=outside("", FUNCTION, "function.bin")),
            helper.make_node("Add", ["a", "c"], ["b"]),
        ],
        [helper.make_opsetid("", 18)],
    )
    sparse = helper.make_sparse_tensor(
        outside("sparse", np.array([2, 3], F), "values.bin"),
        numpy_helper.from_array(np.array([1, 3]), "at"),
        [4],
    )
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["p"]),
            helper.make_node("Constant", [], ["c"], value=outside("", CONSTANT, "constant.bin")),
            helper.make_node("Add", ["p", "c"], ["h"]),
            helper.make_node(
                "If",
                ["which"],
                ["y1"],
                then_branch=branch("then", THEN),
                else_branch=branch("else", ELSE),
            ),
            helper.make_node("Constant", [], ["two"], value_int=2),
            helper.make_node("Loop", ["two", "", "y1"], ["y2"], body=body),
            helper.make_node("shift", ["y2"], ["y3"], domain="own"),
            helper.make_node("Add", ["y3", "sparse"], ["y4"]),
            helper.make_node("ReduceMean", ["big"], ["m"], keepdims=0),
            helper.make_node("Add", ["y4", "m"], ["y"]),
        ],
        "g",
        [info("x", ["n", 4]), info("which", [], TensorProto.BOOL)],
        [info("y", ["n", 4])],
        [outside("w", W, "w.bin"), outside("big", BIG, "big.bin")],
        sparse_initializer=[sparse],
    )
    return helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid("own", 1)],
        functions=[function],
        ir_version=8,
    )


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The model in a folder, and beside it one with other bytes under the same names."""
    for folder, factor in (("from", 1), ("to", 7)):
        (tmp_path / folder).mkdir()
        for name, data in DATA.items():
            (tmp_path / folder / name).write_bytes((factor * data).astype(F).tobytes())
    path = tmp_path / "from" / "m.onnx"
    path.write_bytes(source().SerializeToString())
    return path


def run(model: object, which: bool) -> np.ndarray:
    session = steep.InferenceSession(model)
    (y,) = session.run(["y"], {"x": X, "which": np.array(which)})
    return np.asarray(y)


def session_of(model: Path) -> steep.TrainingSession:
    return steep.TrainingSession(
        str(model), loss="mse", optimizer="sgd", lr=0.0, trainable=["w", "then"]
    )


def written(**options: object) -> Callable[[Path, Path], object]:
    def export(model: Path, to: Path) -> object:
        session_of(model).export_onnx(to, **options)  # type: ignore[arg-type]
        return to

    return export


def of_session(for_inference: bool) -> Callable[[Path, Path], object]:
    return lambda model, _: session_of(model).export_onnx_bytes(for_inference)


def to_file(**options: bool) -> Callable[[Path, Path], object]:
    def export(model: Path, to: Path) -> object:
        assert steep.model_for_inference(model, to, **options) is None
        return to

    return export


def resumed(model: Path, to: Path) -> object:
    checkpoint = model.parent.parent / "checkpoint"
    session_of(model).save_checkpoint(checkpoint)
    session = session_of(model)
    session.load_checkpoint(checkpoint)
    session.export_onnx(to)
    return to


def gradients_by_program(model: Path, to: Path) -> object:
    program("grad", model, "-o", to, "--wrt", "x,then", "--output", "y")
    return to


EXPORTERS: dict[str, Callable[[Path, Path], object]] = {
    "export_onnx": written(),
    "export_onnx, for inference": written(for_inference=True),
    "export_onnx, external": written(external_data=True),
    "export_onnx, external, for inference": written(external_data=True, for_inference=True),
    "export_onnx, too large for one file": written(max_file_bytes=1000),
    "export_onnx_bytes": of_session(False),
    "export_onnx_bytes, for inference": of_session(True),
    "model_for_inference": lambda model, _: steep.model_for_inference(model),
    "model_for_inference, to a path": to_file(),
    "model_for_inference, external": to_file(external_data=True),
    "grad": lambda model, _: steep.grad(model, wrt=["x", "then"], outputs=["y"]),
    "grad, by the program": gradients_by_program,
    "export_onnx, from a checkpoint": resumed,
}


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("folder", ["to", "from"])
def test_holds_the_data_of_its_own_model(model: Path, exporter: str, folder: str) -> None:
    """In another folder, with files of the same names there; and in the model's own."""
    to = model.parent.parent / folder / "t.onnx"
    made = EXPORTERS[exporter](model, to)
    for which in (True, False):
        if exporter.startswith("grad"):
            got = steep.InferenceSession(made).run(
                ["grad_then"],
                {"x": X, "which": np.array(which), "grad_y": np.ones_like(X)},
            )[0]
            np.testing.assert_allclose(got, np.full(4, 3 if which else 0), rtol=1e-6)
        else:
            np.testing.assert_allclose(run(made, which), run(model, which), rtol=1e-6)
    if folder == "to" and isinstance(made, Path):
        beside = {p.name for p in to.parent.iterdir()} - set(DATA)
        far = "external" in exporter or "large" in exporter
        assert beside == ({"t.onnx", "t.onnx.data"} if far else {"t.onnx"})
        for name, data in DATA.items():  # the others are as they were
            assert (to.parent / name).read_bytes() == (7 * data).astype(F).tobytes()


def test_what_the_program_trains_is_of_its_own_folder(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run in a folder that has other data of the same names."""
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["p"]),
            helper.make_node("Constant", [], ["c"], value=outside("", CONSTANT, "constant.bin")),
            helper.make_node("Add", ["p", "c"], ["y"]),
        ],
        "g",
        [info("x", ["n", 4])],
        [info("y", ["n", 4])],
        [outside("w", W, "w.bin")],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    model.write_bytes(made.SerializeToString())
    monkeypatch.chdir(model.parent.parent / "to")
    np.savez("rows.npz", x=X, label=np.zeros_like(X))
    told = ("--data", "rows.npz", "--loss", "mse", "--optimizer", "sgd", "--lr", "0")
    program("train", model, *told, "--checkpoint", "run", "--out", "t.onnx")
    program("train", model, *told, "--resume", "run", "--epochs", "2", "--out", "u.onnx")
    for name in ("t.onnx", "u.onnx"):
        (y,) = steep.InferenceSession(name).run(None, {"x": X})
        np.testing.assert_allclose(y, X @ W + CONSTANT, rtol=1e-5, atol=1e-6)


def locations(path: Path) -> list[str]:
    made = onnx.load(path, load_external_data=False)
    return [
        next(e.value for e in t.external_data if e.key == "location") if t.external_data else ""
        for t in made.graph.initializer
    ]


def test_keeps_what_is_outside_and_untouched_in_the_same_folder(model: Path) -> None:
    session = session_of(model)
    session.export_onnx(model)  # over itself
    assert locations(model) == ["", "big.bin"]
    session.step(X, np.array(True), np.zeros_like(X))
    session.export_onnx(model)  # once more: its files are still there
    assert locations(model) == ["", "big.bin"]
    again = session_of(model)
    again.export_onnx(model.parent / "u.onnx", external_data=True)
    assert locations(model.parent / "u.onnx")[1] == "big.bin"


@pytest.mark.parametrize("change", ["replaced", "written to"])
@pytest.mark.parametrize("folder", ["to", "from"])
def test_data_that_changed_since_the_session_read_it_is_not_exported(
    model: Path, change: str, folder: str
) -> None:
    """The model would be neither the one that was trained, nor the new one."""
    session, to = session_of(model), model.parent.parent / folder / "t.onnx"
    data, other = model.parent / "big.bin", model.parent / "other"
    before = data.read_bytes()
    if change == "replaced":
        other.write_bytes(before)
        other.replace(data)
    else:
        data.write_bytes((2 * BIG).tobytes())
    with pytest.raises(steep.DataError, match="was written to, or replaced, since") as caught:
        session.export_onnx(to)
    assert "big" in str(caught.value) and not to.exists()
    session_of(model).export_onnx(to)  # one that reads it as it is now


@pytest.mark.parametrize("file", ["m.onnx", "w.bin"])
def test_a_default_is_not_replaced_in_a_file_that_changed_since(tmp_path: Path, file: str) -> None:
    """The session reads its model again for other inputs, and has to read the same one."""
    nodes = [("MatMul", ["x", "w"], ["h"]), ("Mul", ["h", "by"], ["y"])]
    graph = helper.make_graph(
        [helper.make_node(*node) for node in nodes],
        "g",
        [info("x", ["n", 4]), info("by", [1])],
        [info("y", ["n", 4])],
        [outside("w", W, "w.bin"), numpy_helper.from_array(np.ones(1, F), "by")],
    )
    (tmp_path / "w.bin").write_bytes(W.tobytes())
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    onnx.save(model, tmp_path / "m.onnx")
    session = steep.InferenceSession(tmp_path / "m.onnx")
    feeds = {"x": X, "by": np.full(1, 2, F)}
    (tmp_path / file).rename(tmp_path / "aside")
    if file == "w.bin":
        (tmp_path / file).write_bytes((2 * W).tobytes())
    else:
        model.graph.node[1].op_type = "Add"
        onnx.save(model, tmp_path / file)
    with pytest.raises(steep.DataError, match="written to, or replaced, since it was read"):
        session.run(None, feeds)
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], X @ W)
    (tmp_path / "aside").replace(tmp_path / file)
    np.testing.assert_allclose(session.run(None, feeds)[0], 2 * (X @ W), rtol=1e-6)


def large_model() -> onnx.ModelProto:
    weights = np.zeros((32, 32), F)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [info("x", ["n", 32])],
        [info("y", ["n", 32])],
        [numpy_helper.from_array(weights, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def large() -> steep.TrainingSession:
    return steep.TrainingSession(large_model(), loss="mse", optimizer="sgd", lr=1.0)


def test_the_data_of_the_last_export_is_the_only_one_there(tmp_path: Path) -> None:
    session, to = large(), tmp_path / "t.onnx"
    x, label = np.ones((1, 32), F), np.ones((1, 32), F)
    for _ in range(3):
        session.step(x, label)
        session.export_onnx(to, external_data=True)
        want = np.asarray(session.weights()["w"])
        (tensor,) = onnx.load(to).graph.initializer
        np.testing.assert_array_equal(numpy_helper.to_array(tensor), want)
        assert len(list(tmp_path.iterdir())) == 2
    session.export_onnx(to)
    assert [p.name for p in tmp_path.iterdir()] == ["t.onnx"]


def test_a_file_of_somebody_else_stays(tmp_path: Path) -> None:
    (tmp_path / "t.onnx.data").write_bytes(b"mine")
    large().export_onnx(tmp_path / "t.onnx", external_data=True)
    assert (tmp_path / "t.onnx.data").read_bytes() == b"mine"
    assert locations(tmp_path / "t.onnx") == ["t.onnx.data-2"]
    onnx.load(tmp_path / "t.onnx")


def test_the_program_writes_data_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(large_model().SerializeToString())
    np.savez(tmp_path / "d.npz", x=np.ones((2, 32), F), label=np.ones((2, 32), F))
    out = ("--out", tmp_path / "t.onnx", "--external-data")
    told = ("--data", tmp_path / "d.npz", "--loss", "mse", "--optimizer", "sgd")
    program("train", tmp_path / "m.onnx", *told, *out)
    assert (tmp_path / "t.onnx.data").stat().st_size == 32 * 32 * 4
    assert np.abs(numpy_helper.to_array(onnx.load(tmp_path / "t.onnx").graph.initializer[0])).max()
    assert "--out" in program("train", tmp_path / "m.onnx", *told, "--external-data", code=2)


def test_artifacts_of_a_model_whose_data_is_elsewhere_are_refused(tmp_path: Path) -> None:
    made = large_model()
    constant = outside("", CONSTANT, "constant.bin")
    made.graph.node.append(helper.make_node("Constant", [], ["unread"], value=constant))
    with pytest.raises(steep.DataError, match="not in the model"):
        artifacts.generate_artifacts(made, requires_grad=["w"], artifact_directory=tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_limit_that_the_program_is_given_holds_for_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "m.onnx").write_bytes(large_model().SerializeToString())
    rows = np.ones((10_000, 32), F)
    monkeypatch.setenv("STEEP_MAX_BYTES", "1M")
    for kind in ("npz", "safetensors"):
        data = tmp_path / f"d.{kind}"
        arrays = {"x": rows, "label": rows}
        if kind == "npz":
            np.savez_compressed(data, **arrays)  # as it is, it would be read as it is used
        else:
            of = {"dtype": "F32", "shape": rows.shape}
            ends = {n: [i * rows.nbytes, (i + 1) * rows.nbytes] for i, n in enumerate(arrays)}
            head = json.dumps({n: {**of, "data_offsets": ends[n]} for n in arrays}).encode()
            data.write_bytes(len(head).to_bytes(8, "little") + head + 2 * rows.tobytes())
        told = ("eval", tmp_path / "m.onnx", "--data", data, "--loss", "mse", "--batch", 100)
        assert "rows 10000" in program(*told, "--max-bytes", "1G")
        refused = program(*told, code=None)
        assert "--max-bytes" in refused and "damaged" not in refused and "valid" not in refused
