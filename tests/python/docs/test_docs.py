"""What the documents show does run: their code, the program's own examples, the scripts.

Indented lines of the documents are commands for a checkout (`make …`), not for a user's folder.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from checkout import ROOT
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from steep_program import built

import steep
import steep.compat

LION = ROOT / "docs" / "your_own.md"
ADD_AN_OP = ROOT / "docs" / "add_an_op.md"  # shows parts of files: see its own test
DOCUMENTS = [ROOT / "README.md", *sorted(set((ROOT / "docs").glob("*.md")) - {ADD_AN_OP})]
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
INLINE = re.compile(r"`(steep (?:check|train|eval|dump|grad|plan) [^`…]*)`")

DRAW = {
    "linear_regression/benchmark.py": "linear_regression_times",
    "digits_mlp/two_ways.py": "digits",
    "digits_mlp/benchmark.py": "digits_times",
}
HUGGINGFACE = ("contestant", "picture", "race", "texts")
ELSEWHERE = {
    "digits_mlp/make_model.py": "test_program.py runs it, and the program that reads its files",
    "digits_wasm/make_artifact.py": "test_wasm.py",
    "linear_regression/make_model.py": "test_program.py, too",
    "huggingface/train.py": "test_huggingface_example.py",
    "linear_regression/two_ways.py": "test_linear_regression_in_two_ways",
    "linear_regression/picture.py": "imported by two_ways.py",
    **{path: "test_examples_that_draw" for path in DRAW},
    **{f"huggingface/{name}.py": "imported by train.py" for name in HUGGINGFACE},
    "bert_pretraining/prepare.py": "test_bert_example.py",
    "bert_pretraining/train.py": "test_bert_example.py",
    "bert_pretraining/rows.py": "imported by train.py",
    "bert_pretraining/picture.py": "imported by train.py",
    "transformer_lm/train.py": "test_demo.py",
    "transformer_lm/data.py": "imported by train.py",
    "transformer_lm/model.py": "imported by train.py",
    "transformer_lm/progress.py": "imported by train.py",
}


def blocks() -> list[Any]:
    found = []
    for document in DOCUMENTS:
        text = document.read_text()
        for i, (language, code) in enumerate(FENCED.findall(text)):
            found.append(pytest.param(language, code, id=f"{document.name}-{i}-{language}"))
        for i, command in enumerate(INLINE.findall(FENCED.sub("", text))):
            words = " ".join(command.split())
            found.append(pytest.param("sh", words, id=f"{document.name}-inline-{i}"))
    return found


def model(with_loss: bool, features: int) -> onnx.ModelProto:
    """x [rows, features] · weight → y [rows, 3]; or the mean of its tanh as `loss`."""
    info = helper.make_tensor_value_info
    nodes = [helper.make_node("MatMul", ["x", "weight"], ["y"])]
    output = info("y", TensorProto.FLOAT, ["rows", 3])
    if with_loss:
        nodes.append(helper.make_node("Tanh", ["y"], ["h"]))
        nodes.append(helper.make_node("ReduceMean", ["h"], ["loss"], keepdims=0))
        output = info("loss", TensorProto.FLOAT, [])
    weight = np.random.default_rng(0).normal(size=(features, 3)).astype(np.float32)
    graph = helper.make_graph(
        nodes,
        "documented",
        [info("x", TensorProto.FLOAT, ["rows", features])],
        [output],
        [numpy_helper.from_array(weight, "weight")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def network() -> onnx.ModelProto:
    """Two layers: weights `encoder.weight` and `head.weight`."""
    made = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 18]>
        network (float[rows, 4] x) => (float[rows, 3] y)
        { h = MatMul(x, e) a = Tanh(h) y = MatMul(a, w) }"""
    )
    random = np.random.default_rng(0)
    for node, name, shape in ((0, "encoder", (4, 4)), (2, "head", (4, 3))):
        made.graph.node[node].input[1] = f"{name}.weight"
        weight = random.normal(size=shape).astype(np.float32)
        made.graph.initializer.append(numpy_helper.from_array(weight, f"{name}.weight"))
    return made


def logistic_regression() -> onnx.ModelProto:
    """What skl2onnx writes for three classes of four features: labels, and a ZipMap of scores."""
    info, ml = helper.make_tensor_value_info, {"domain": "ai.onnx.ml"}
    classes = {"classlabels_int64s": [0, 1, 2]}
    weights = np.random.default_rng(0).normal(size=15).tolist()
    classifier = helper.make_node(
        "LinearClassifier",
        ["x"],
        ["label", "p"],
        coefficients=weights[:12],
        intercepts=weights[12:],
        post_transform="SOFTMAX",
        classlabels_ints=[0, 1, 2],
        **ml,
    )
    graph = helper.make_graph(
        [classifier, helper.make_node("ZipMap", ["p"], ["probabilities"], **classes, **ml)],
        "logistic",
        [info("x", TensorProto.FLOAT, ["rows", 4])],
        [
            info("label", TensorProto.INT64, ["rows"]),
            helper.make_value_info(
                "probabilities",
                helper.make_sequence_type_proto(
                    helper.make_map_type_proto(
                        TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, [])
                    )
                ),
            ),
        ],
    )
    versions = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=versions, ir_version=10)


def write_photos(folder: Path) -> None:
    """Folders of images, and a model of them."""
    made = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 18]>
        photos (float[rows, 3, 4, 4] x) => (float[rows, 2] y)
        { f = Flatten(x) y = MatMul(f, w) }"""
    )
    random = np.random.default_rng(0)
    weight = random.normal(size=(48, 2)).astype(np.float32)
    made.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    onnx.save(made, folder / "photos.onnx")
    for place in ("photos/cat", "photos/dog", "photos-validation/dog"):
        (folder / place).mkdir(parents=True)
        for i in range(3):
            pixels = random.integers(0, 256, (9, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / place / f"{i}.jpg")


def large() -> onnx.ModelProto:
    """Two layers, with weights of some pages."""
    text = """<ir_version: 10, opset_import: ["": 21]>
      net (float[n, 4] x) => (float[n, 3] y) {
        h = MatMul (x, w)
        t = Tanh (h)
        y = MatMul (t, v)
      }"""
    made = onnx.parser.parse_model(text)
    for name, shape in {"w": (4, 512), "v": (512, 3)}.items():
        values = np.random.default_rng(2).normal(0, 0.1, shape).astype(np.float32)
        made.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    return made


def write_files(folder: Path, code: str) -> None:
    """All that the documents name: models and data for them."""
    random = np.random.default_rng(1)
    x = random.normal(size=(64, 4)).astype(np.float32)
    values = {"x": x, "label": random.normal(size=(64, 3)).astype(np.float32)}
    classes = random.integers(0, 3, 64)
    with_loss = 'outputs=["loss"]' in code or "--output loss" in code
    shape = re.search(r"--shape x=\d+,(\d+)", code)
    for name in ("model.onnx", "mlp.onnx", "trained.onnx"):
        onnx.save(model(with_loss, int(shape[1]) if shape else 4), folder / name)
    onnx.save(network(), folder / "network.onnx")
    if "large.onnx" in code:
        onnx.save(large(), folder / "large.onnx", save_as_external_data=True, location="large.data")
    for name in ("train.npz", "validation.npz"):
        np.savez(folder / name, **values)
    np.savetxt(folder / "new.csv", x, delimiter=",", header="a,b,c,d", comments="")
    np.savez(folder / "tokens.npz", x=x, label=classes)
    onnx.save(logistic_regression(), folder / "logistic.onnx")
    np.savez(folder / "iris.npz", x=x, label=classes)
    if "libmirror.so" in code:
        library = ROOT / "build" / "release" / "mirror" / "libmirror.so"
        assert library.exists(), "examples/provider is not built: run `make build`"
        (folder / "libmirror.so").symlink_to(library)
    functions = re.findall(r'"""(<domain: "steep.optimizer".*?)"""', LION.read_text(), re.S)
    empty = '<ir_version: 10, opset_import: ["": 18]> ops () => () {}'
    onnx.save(onnx.parser.parse_model(empty + functions[0]), folder / "ops.onnx")
    if "photos" in code:
        write_photos(folder)
    session = 'steep.TrainingSession("model.onnx", loss="mse", parallel="gloo")'
    (folder / "script.py").write_text(f"import steep\n\n{session}\n")
    for name in ("digits.npz", "test.npz"):
        np.savez(folder / name, x=x, y=classes)


def names(code: str) -> dict[str, Any]:
    """What the documents' Python takes as given."""
    x, y = np.ones((8, 4), np.float32), np.zeros((8, 3), np.float32)
    given = {"np": np, "onnx": onnx, "steep": steep, "x": x, "y": y, "v": np.ones((4, 3), "f4")}
    if "TrainingSession" not in code and "session.export" in code:
        given["session"] = steep.TrainingSession("model.onnx", loss="mse")
    given["batches"] = [(x, np.zeros(8, np.int64))] * 2
    if re.search(r"torch|ORTModule|steep\.trainer", code):
        torch = pytest.importorskip("torch")
        network = torch.nn.Linear(4, 3)
        given.update(torch=torch, model=network, criterion=torch.nn.MSELoss())
        given.update(x=torch.from_numpy(x), y=torch.from_numpy(y))
        given["loader"] = [(given["x"], given["y"])] * 2
        given["optimizer"] = torch.optim.AdamW(network.parameters())
    return given


def run_sh(code: str, folder: Path) -> None:
    # the program, and what pip installs beside Python, such as torchrun
    path = f"{Path(built('steep')).parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", code],
        cwd=folder,
        env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT / "python")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def check_cpp(code: str) -> None:
    command = ["g++", "-std=c++20", "-fsyntax-only", "-xc++", f"-I{ROOT}/src", f"-I{ROOT}/include"]
    done = subprocess.run([*command, "-"], input=code, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("language", "code"), blocks())
def test_code_of_the_documents(
    language: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path, code)
    if language == "sh":
        if "torchrun" in code:
            pytest.importorskip("torch")
        run_sh(code, tmp_path)
    elif language == "cpp":
        check_cpp(code)
    elif language == "js":
        pytest.skip("tests/python/program/test_wasm.py calls the same functions in node")
    elif language == "c":
        pytest.skip("tests/python/program/test_c_library.py compiles it, and runs it")
    else:
        assert language == "python", "say the language, so that it can be tested"
        try:
            exec(compile(code, "block", "exec"), names(code))
        finally:
            for name in steep._steep.registered_ops():
                steep._steep.unregister_op(name)
            steep.compat.uninstall()


def test_the_quickstart_needs_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its blocks, one after another, in an empty folder."""
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    place: dict[str, Any] = {}
    for language, code in FENCED.findall((ROOT / "docs" / "quickstart_python.md").read_text()):
        assert language == "python"
        exec(compile(code, "block", "exec"), place)
    assert {path.name for path in tmp_path.iterdir()} == {"model.onnx", "trained.onnx"}


def test_code_of_add_an_op_is_that_of_the_files() -> None:
    """Each block stands in the file that the heading above it names."""
    sections = re.split(r"^## ", ADD_AN_OP.read_text(), flags=re.M)
    shown = []
    for section in sections:
        named = re.search(r"`([\w/]+\.\w+)`$", section.splitlines()[0])
        for _, code in FENCED.findall(section):
            assert named, f"no file is named above\n{code}"
            assert code in (ROOT / named[1]).read_text(), f"{named[1]} no longer has\n{code}"
            shown.append(named[1])
    assert len(shown) == 5
    assert shown[0] == "src/ops/defs/cum_sum.cc"


def test_readme_shows_measured_numbers() -> None:
    """Rounded to whole milliseconds or microseconds, in the first table of docs/benchmarks.md."""
    table = re.search(r"^\| work \|.*\n(?:\|.*\n)+", (ROOT / "README.md").read_text(), re.M)
    measured = (ROOT / "docs" / "benchmarks.md").read_text().partition("\n## ")[0]
    known = {f"{round(float(n))} {unit}" for n, unit in re.findall(r"([\d.]+) (ms|µs)", measured)}
    assert table
    shown = re.findall(r"([\d,]+) (ms|µs)", table[0])
    assert len(shown) == 12
    assert {f"{number.replace(',', '')} {unit}" for number, unit in shown} <= known


def test_add_an_op_explains_every_field() -> None:
    header = (ROOT / "src/ops/op_def.h").read_text()
    struct = re.search(r"^struct OpDef \{\n(.*?)^\};", header, re.M | re.S)
    assert struct
    fields = set(re.findall(r"(\w+)(?: = [^;]+|\{\})?;", re.sub(r"//.*", "", struct[1])))
    text = ADD_AN_OP.read_text()
    rows = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", text, re.M))))
    in_code = set(re.findall(r"\.(\w+) = ", text))
    assert rows | in_code == fields


@pytest.mark.parametrize(
    "command", ["check", "train", "launch", "eval", "predict", "info", "diff", "dump", "grad"]
)
def test_examples_of_the_program(command: str, tmp_path: Path) -> None:
    text = subprocess.run(
        [built("steep"), command, "--help"], capture_output=True, text=True, check=True
    ).stdout
    examples = re.findall(r"^  (steep (?:.*\\\n)*.*)$", text.split("Example")[1], re.M)
    assert examples
    for example in examples:
        code = example.replace("…", "--loss softmax_cross_entropy --label-array y")
        if "--resume" in code:
            run_sh(code.replace("--resume", "--checkpoint"), tmp_path)
        write_files(tmp_path, code)
        assert shlex.split(code)[1] == command
        run_sh(code, tmp_path)


def test_examples_in_python() -> None:
    scripts = {str(p.relative_to(ROOT / "examples")) for p in (ROOT / "examples").rglob("*.py")}
    assert set(ELSEWHERE) < scripts
    for script in sorted(scripts - set(ELSEWHERE)):
        done = subprocess.run(
            [sys.executable, ROOT / "examples" / script],
            env={**os.environ, "PYTHONPATH": str(ROOT / "python")},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("script", DRAW)
def test_examples_that_draw(script: str, tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    pytest.importorskip("matplotlib")
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / script, tmp_path],
        env={**os.environ, "PYTHONPATH": str(ROOT / "python")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    accuracies = re.findall(r"accuracy (\S+)", done.stdout)
    assert all(float(a) > 0.9 for a in accuracies)
    assert all(float(e) < 1e-3 for e in re.findall(r"largest error (\S+)", done.stdout))
    (picture,) = tmp_path.iterdir()
    assert picture.name == f"{DRAW[script]}.png"
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_linear_regression_in_two_ways(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "examples/linear_regression/two_ways.py", tmp_path],
        env={**os.environ, "PYTHONPATH": str(ROOT / "python")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "weight [0.25 0.5  0.75 1.  ]" in done.stdout
    if "no picture" not in done.stdout:
        for name in ("training_session", "gradient_session"):
            assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
