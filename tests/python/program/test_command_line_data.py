"""What the `steep` program makes of its files: arrays, labels, batches, room, and what it keeps."""

import csv
import os
import resource
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from steep_program import built, steep, weights

import steep as package

ROWS = 10
BAD_LABEL = [np.where(np.arange(ROWS) == 7, 9, 1), "9 in row 7"]
CROSS_ENTROPY = ("--loss", "softmax_cross_entropy")


def classifier(rows: str = "n") -> onnx.ModelProto:
    """Three numbers in, scores of two classes out."""
    return onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17]> g (float[{rows},3] x) => (float[{rows},2] y)
        <float[3,2] w = {{0.1, 0.2, 0.3, 0.4, 0.5, 0.6}}, float[2] b = {{0, 0}}>
        {{ p = MatMul(x, w) y = Add(p, b) }}"""
    )


def examples(rows: int = ROWS) -> dict[str, Any]:
    random = np.random.default_rng(0)
    x = random.standard_normal((ROWS, 3)).astype(np.float32)
    return {"x": x[:rows], "label": random.integers(0, 2, ROWS)[:rows]}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    onnx.save(classifier(), tmp_path / "m.onnx")
    np.savez(tmp_path / "t.npz", **examples())
    monkeypatch.chdir(tmp_path)
    for variable in os.environ:  # tests may themselves run under a launcher
        if variable.startswith(("OMPI_", "PMI_", "SLURM_")) or variable in ("WORLD_SIZE", "RANK"):
            monkeypatch.delenv(variable)
    return tmp_path


def test_names_of_columns_may_have_commas_and_quotes(folder: Path) -> None:
    x, label = examples().values()
    rows = np.column_stack([x, label]).astype(np.float64)

    def write(name: str, names: list[str], *, order: list[int]) -> None:
        with open(name, "w", newline="") as file:
            table = csv.writer(file)
            table.writerow([names[i] for i in order])
            table.writerows(rows[:, order].tolist())

    names = ["a,1", 'b "x"', "c", "label"]
    write("t.csv", names, order=[0, 1, 2, 3])
    write("v.csv", names, order=[3, 1, 2, 0])  # found by name
    words = ("train", "m.onnx", *CROSS_ENTROPY, "--lr", 0.1, "--no-shuffle", "--out")
    steep(*words, "whole.onnx", "--data", "t.npz")
    given = ("--data", "t.csv", "--validation", "v.csv")
    text = steep(*words, "of.onnx", *given)
    names_of_x = '"a,1","b ""x""",c'
    assert f"x from '{names_of_x}' float32[10, 3]" in text
    expected = weights("whole.onnx")
    for name, value in weights("of.onnx").items():
        np.testing.assert_array_equal(value, expected[name])
    mapped = ("--map", 'x=c,"a,1","b ""x"""')
    assert 'x from \'c,"a,1",' in steep(*words, "of.onnx", *given, *mapped)
    assert "has no array for input 'x'" in steep(
        *words, "of.onnx", *given, "--map", "x=c,d", code=3
    )


def test_a_trained_model_finds_its_columns_by_name(folder: Path) -> None:
    x, label = examples().values()
    columns = {"a": x[:, 0], "b": x[:, 1], "c": x[:, 2], "label": label}

    def write(name: str, *names: str) -> None:
        with open(name, "w", newline="") as file:
            table = csv.writer(file)
            table.writerow(names)
            table.writerows(zip(*(columns[n].tolist() for n in names), strict=True))

    write("abc.csv", *"abc", "label")
    write("cab.csv", *"cab", "label")
    write("abd.csv", *"ab", "label")
    steep("train", "m.onnx", *CROSS_ENTROPY, "--lr", 1, "--data", "abc.csv", "--out", "t.onnx")
    (entry,) = onnx.load("t.onnx").metadata_props
    assert (entry.key, entry.value) == ("steep.columns", '{"x":["a","b","c"]}')

    def outputs(table: str, *words: object) -> bytes:
        steep("predict", "t.onnx", "--data", table, *words, "--out", "p.npz")
        y: np.ndarray = np.load("p.npz")["y"]
        return y.tobytes()

    assert outputs("cab.csv") == outputs("abc.csv")
    assert outputs("cab.csv", "--map", "x=c,a,b") != outputs("abc.csv")
    losses = [
        steep("eval", "t.onnx", "--data", table, *CROSS_ENTROPY) for table in ("abc.csv", "cab.csv")
    ]
    assert losses[0].split("\n")[1:] == losses[1].split("\n")[1:]
    for words in (("predict", "t.onnx", "--out", "p.npz"), ("eval", "t.onnx", *CROSS_ENTROPY)):
        text = steep(*words, "--data", "abd.csv", code=3)
        assert "abd.csv has no column 'c', which the model was trained with for input 'x'" in text
        assert "--map x=COLUMN" in text
    again = ("train", "t.onnx", *CROSS_ENTROPY, "--no-shuffle", "--out")
    steep(*again, "one.onnx", "--data", "abc.csv")
    steep(*again, "other.onnx", "--data", "cab.csv")
    for name, value in weights("one.onnx").items():
        np.testing.assert_array_equal(value, weights("other.onnx")[name])
    # what is no longer known is not kept
    steep(*again, "plain.onnx", "--data", "t.npz")
    assert not onnx.load("plain.onnx").metadata_props


def test_a_table_of_very_many_columns(folder: Path) -> None:
    """Time is that of its cells, and messages do not name all columns."""
    count = 100_000
    rows = [[*(f"g{i}" for i in range(count)), "label"], ["1"] * (count + 1)]
    Path("wide.csv").write_text("".join(",".join(row) + "\n" for row in rows))
    before = os.times().children_user
    words = ("train", "m.onnx", "--data", "wide.csv", "--loss", "mse")
    text = steep(*words, code=3)
    assert os.times().children_user - before < 8
    assert "g19,… (100000 columns)" in text and len(text) < 1000
    text = steep(*words, "--map", "x=g0,g7,g2", "--map", "label=g0,g1")
    assert ", … and 99977 more" in text and len(text) < 1000


def run(*words: object, code: int = 0) -> str:
    sgd = ("--optimizer", "sgd", "--lr", 0.5, "--no-shuffle")
    return steep("train", "m.onnx", "--data", "t.npz", *CROSS_ENTROPY, *sgd, *words, code=code)


def losses(labels: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Of each row, of the weights that the file begins with."""
    scores = x @ np.array([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]])
    result: np.ndarray = np.logaddexp.reduce(scores, 1) - scores[np.arange(len(x)), labels]
    return result


# --- each option, with a file that is not what it should be ---------------------------------------

DAMAGE: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: None,
    "empty": lambda path: path.touch(),
    "text": lambda path: path.write_text("x,y\n1,2\n"),
    "a folder": lambda path: path.mkdir(),
}
COMMANDS = {
    "model": ("eval", "FILE", "--data", "t.npz", *CROSS_ENTROPY),
    "model to train": ("train", "FILE", "--data", "t.npz", *CROSS_ENTROPY),
    "--ops": ("train", "m.onnx", "--data", "t.npz", *CROSS_ENTROPY, "--ops", "FILE"),
    "--data": ("train", "m.onnx", "--data", "FILE", *CROSS_ENTROPY),
    "--data of eval": ("eval", "m.onnx", "--data", "FILE", *CROSS_ENTROPY),
    "--validation": ("train", "m.onnx", "--data", "t.npz", *CROSS_ENTROPY, "--validation", "FILE"),
    "--resume": ("train", "m.onnx", "--data", "t.npz", *CROSS_ENTROPY, "--resume", "FILE"),
    "--checkpoint": ("eval", "m.onnx", "--data", "t.npz", *CROSS_ENTROPY, "--checkpoint", "FILE"),
}


@pytest.mark.parametrize("option", COMMANDS)
def test_files_are_opened_before_the_first_step(folder: Path, option: str) -> None:
    out = ("--out", "o.onnx", "--metrics", "m.csv") if COMMANDS[option][0] == "train" else ()
    for kind, damage in DAMAGE.items():
        path = folder / "file"
        damage(path)
        words = [path if word == "FILE" else word for word in COMMANDS[option]]
        text = steep(*words, *out, code=None)
        assert "steep: " in text and "epoch" not in text, (kind, text)
        assert "file" in text or ("The model" in text and option.startswith("model"))
        assert "rows" not in text.split("steep: ")[0] and "bug" not in text, (kind, text)
        assert not (folder / "o.onnx").exists()
        if path.is_dir():
            path.rmdir()
        path.unlink(missing_ok=True)


# arrays in the file, other words, exit code, what the text says
ARRAYS: dict[str, tuple[dict[str, Any], tuple[object, ...], int, str]] = {
    "one row": (examples(1), (), 0, "1 row, 1 step an epoch"),
    "no row": (examples(0), (), 3, "has no rows"),
    "a batch short": (examples(), ("--batch", 4), 0, "3 steps an epoch"),
    "a batch short, dropped": (examples(), ("--batch", 4, "--drop-last"), 0, "2 steps an epoch"),
    "less than a batch": (examples(3), ("--drop-last",), 3, "Give --batch 3, or leave --drop-last"),
    "a label short": (examples() | {"label": np.zeros(9, np.int64)}, (), 3, "9 rows in 'label'"),
    "a scalar": (examples() | {"label": np.int64(1)}, (), 3, "expected: rows along a first axis"),
    "a column more": (examples() | {"x": np.ones((ROWS, 4))}, (), 3, "expected: float32[n, 3]"),
    "an axis more": (examples() | {"x": np.ones((ROWS, 1, 3))}, (), 3, "float32[10, 1, 3]"),
    "a class more": (examples() | {"label": BAD_LABEL[0]}, (), 3, str(BAD_LABEL[1])),
    "a number too large": (examples() | {"x": np.full((ROWS, 3), 1e300)}, (), 3, "at element 0"),
    "none that counts": (
        examples() | {"label": np.full(ROWS, -1)},
        ("--ignore-index", -1),
        3,
        "All labels have the ignored value",
    ),
    "weights alone": (
        {"x": examples()["x"], "sample_weight": np.ones(ROWS)},
        (),
        3,
        "no array for input 'label'",
    ),
    "two that may be labels": (
        {"x": examples()["x"], "y": np.ones(ROWS), "target": np.ones(ROWS)},
        (),
        3,
        "no array for input 'label'",
    ),
    "labels by another name": (
        {"x": examples()["x"], "Y": examples()["label"]},
        (),
        0,
        "label from 'Y' int64[10]",
    ),
    "labels named": (
        {"x": examples()["x"], "k": examples()["label"], "sample_weight": np.ones(ROWS)},
        ("--label-array", "k"),
        0,
        "label from 'k' int64[10]; not used: 'sample_weight'",
    ),
    "an array more": (examples() | {"id": np.ones(99)}, (), 0, "int64[10]; not used: 'id'"),
    "labels named twice": (examples(), ("--label-array", "x", "--map", "label=label"), 3, "one"),
    "an input named twice": (examples(), ("--map", "x=x", "--map", "x=label"), 3, "x and label"),
    "one-hot": (examples() | {"label": np.eye(2)[examples()["label"]]}, (), 0, "float64[10, 2]"),
    "probabilities": (examples() | {"label": np.full((ROWS, 2), 0.5)}, (), 3, "is not one-hot"),
    "fractions": (examples() | {"label": np.full(ROWS, 0.5)}, (), 3, "0.5 at element 0"),
}


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize("option", ["--data", "--validation"])
def test_arrays_are_looked_at_before_the_first_step(folder: Path, name: str, option: str) -> None:
    arrays, words, code, says = ARRAYS[name]
    np.savez(folder / "a.npz", **arrays)
    if option == "--data":
        shutil.move("a.npz", "t.npz")
        text = run(*words, "--out", "o.onnx", code=code)
        assert says in text
    else:  # which has a last batch in any case, and no steps
        if "step" in says or "--drop-last" in words or "--map" in words:
            return
        if "--label-array" in words:
            words = ("--map", f"label={words[1]}")
            np.savez("t.npz", **arrays)
        text = run(*words, "--validation", "a.npz", "--out", "o.onnx", code=code)
        assert says in text and ("validation, a.npz: " in text or code)
    assert ("epoch 1/1" in text) == (code == 0)
    assert Path("o.onnx").exists() == (code == 0)


def test_labels_in_any_form_train_as_class_numbers_do(folder: Path) -> None:
    run("--out", "o.onnx")
    expected = weights(folder / "o.onnx")
    label = examples()["label"]
    for other in (
        label[:, None],
        label.astype(np.int8),
        label.astype(np.float16),
        np.eye(2)[label],
    ):
        np.savez("t.npz", x=examples()["x"], label=other)
        run("--out", "o.onnx")
        for name, value in weights(folder / "o.onnx").items():
            np.testing.assert_array_equal(value, expected[name])


def test_a_schedule_is_as_long_as_what_is_fed(folder: Path) -> None:
    np.savez("t.npz", **examples(), extra=np.zeros((1000, 2)))
    run("--schedule", "linear", "--batch", 5, "--epochs", 2, "--metrics", "m.csv")
    rows = csv.DictReader(Path("m.csv").read_text().splitlines())
    rates = [float(row["lr"]) for row in rows]
    np.testing.assert_allclose(rates, [0.5, 0.375, 0.25, 0.125])


# --- batches of a model that fixes them -----------------------------------------------------------


def fixed(rows: int) -> onnx.ModelProto:
    """A classifier whose rows meet: of what each has, the mean of all is taken away."""
    model = classifier(str(rows))
    nodes = """{ p = MatMul(x, w) m = ReduceMean<axes=[0], keepdims=1>(p) q = Sub(p, m)
                 y = Add(q, b) }"""
    graph = onnx.parser.parse_graph(f"g (float[{rows},3] x) => (float[{rows},2] y) {nodes}")
    del model.graph.node[:]
    model.graph.node.extend(graph.node)
    return model


def test_a_model_that_fixes_its_rows(folder: Path) -> None:
    onnx.save(fixed(4), folder / "m.onnx")
    for words in ((), ("--batch", 4), ("--drop-last",)):
        text = run(*words)
        assert "the file fixes batches of 4 rows, and no others are taken, since ReduceMean" in text
        assert "mixes rows; 2 rows left out" in text and "2 steps an epoch" in text
    text = run("--batch", 5, code=3)
    assert "takes only batches of 4 rows: the file" in text and "Give --batch 4" in text
    assert "since ReduceMean" in text
    text = run("--validation", "t.npz")
    assert "batches of 4 rows, which the model fixes; 2 rows left out" in text
    data = ("--data", "t.npz", *CROSS_ENTROPY)
    text = steep("eval", "m.onnx", *data)
    assert "2 rows left out" in text and "rows 8" in text
    assert '"rows_left_out":2' in steep("eval", "m.onnx", *data, "--json")
    # Outputs are of each row.
    assert "is short" in steep("eval", "m.onnx", *data, "--out", "o.npz", code=3)
    assert "is short" in steep("predict", "m.onnx", "--data", "t.npz", "--out", "o.npz", code=3)
    np.savez("t.npz", **examples(3))
    assert "too few rows for one batch" in run(code=3)


def test_a_model_whose_fixed_rows_do_not_matter(folder: Path) -> None:
    run("--out", "o.onnx", "--batch", 3)
    expected = weights(folder / "o.onnx")
    for rows in ("1", "4"):  # as exporters leave it
        onnx.save(classifier(rows), folder / "m.onnx")
        text = run("--out", "o.onnx", "--batch", 3)
        assert "batches of any size are taken" in text and "4 steps an epoch" in text
        for name, value in weights(folder / "o.onnx").items():
            np.testing.assert_array_equal(value, expected[name])
        assert "rows 10  loss" in steep("eval", "m.onnx", "--data", "t.npz", *CROSS_ENTROPY)
        assert "rows 10" in steep("predict", "o.onnx", "--data", "t.npz", "--out", f"{rows}.npz")
        assert "rows 10" in steep("eval", "o.onnx", "--data", "t.npz", "--out", "e.npz")
        y = np.load(f"{rows}.npz")["y"]
        np.testing.assert_array_equal(y, np.load("e.npz")["y"])
        x = np.load("t.npz")["x"]
        np.testing.assert_allclose(y, x @ expected["w"] + expected["b"], rtol=1e-5)


def test_a_last_batch_that_only_nodes_refuse(folder: Path) -> None:
    model = classifier()
    model.graph.CopyFrom(
        onnx.parser.parse_graph(
            """g (float[n,3] x) => (float[n,2] y) <float[3,2] w = {1, 2, 3, 4, 5, 6},
            int64[2] two = {2, 2}>
            { p = MatMul(x, w) a, b = Split<axis=0>(p, two) y = Concat<axis=0>(a, b) }"""
        )
    )
    onnx.save(model, folder / "m.onnx")
    text = run("--batch", 4, code=3)
    assert "The last batch, of 2 rows" in text and "--drop-last" in text and "epoch 1" not in text
    assert "epoch 1/1" in run("--batch", 4, "--drop-last")


# --- labels that are ignored ----------------------------------------------------------------------


def test_ignored_labels_count_for_nothing(folder: Path) -> None:
    data = examples()
    label = data["label"].copy()
    label[[0, 1, 2, 3, 8]] = -100
    np.savez("i.npz", x=data["x"], label=label)
    counts = label >= 0
    mean = losses(data["label"], data["x"])[counts].mean()
    scores = data["x"] @ np.array([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]])
    right = (scores.argmax(1) == label)[counts].mean()
    ignoring = ("--ignore-index", -100)
    for batch in (1, 2, 4, 10):
        words = ("--data", "i.npz", *CROSS_ENTROPY, *ignoring, "--batch", batch)
        text = steep("eval", "m.onnx", *words)
        assert f"loss {mean:.5f}"[:-1] in text and f"accuracy {right:.4f}" in text
        assert "labels 5, without 5 ignored" in text and "nan" not in text
        text = steep("train", "m.onnx", "--validation", "i.npz", "--no-shuffle", "--lr", 0, *words)
        assert text.count(f"loss {mean:.5f}"[:-1]) == 2 and "nan" not in text
        assert ("no label counts: " in text) == (batch < 10)


def test_a_loss_inside_of_the_model_counts_as_its_labels_weigh(folder: Path) -> None:
    model = classifier()
    model.graph.CopyFrom(
        onnx.parser.parse_graph(
            """g (float[n,3] x, int64[n] label) => (float loss)
            <float[3,2] w = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6}, float[2] cw = {1, 3}> {
            y = MatMul(x, w) l = SoftmaxCrossEntropyLoss<ignore_index=-1>(y, label, cw)
            loss = Identity(l) }"""
        )
    )
    onnx.save(model, folder / "m.onnx")
    data = examples()
    weight = np.where(data["label"] == 1, 3, 1) * (np.arange(ROWS) >= 4)
    mean = (losses(data["label"], data["x"]) * weight).sum() / weight.sum()
    label = np.where(np.arange(ROWS) >= 4, data["label"], -1)
    np.savez("i.npz", x=data["x"], label=label)
    for batch in (1, 4, 10):
        text = steep("eval", "m.onnx", "--data", "i.npz", "--batch", batch)
        assert f"loss {mean:.5f}"[:-1] in text
    session = package.TrainingSession("m.onnx")
    result = session.eval(data["x"], label)
    assert result.weight == weight.sum() and abs(result.loss - mean) < 1e-5


@pytest.mark.parametrize("inside", [False, True])
def test_a_loss_of_no_labels_is_an_error(folder: Path, inside: bool) -> None:
    """Labels that are all ignored: in data that are read at once, or found by the model's loss."""
    if inside:
        model = classifier()
        model.graph.CopyFrom(
            onnx.parser.parse_graph(
                """g (float[n,3] x, int64[n] label) => (float loss)
                <float[3,2] w = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6}> {
                y = MatMul(x, w) l = SoftmaxCrossEntropyLoss<ignore_index=-1>(y, label)
                loss = Identity(l) }"""
            )
        )
        onnx.save(model, folder / "m.onnx")
    np.savez("i.npz", x=examples()["x"], label=np.full(ROWS, -1))
    words = () if inside else (*CROSS_ENTROPY, "--ignore-index", -1)
    for batch in (4, 10):
        text = steep("eval", "m.onnx", "--data", "i.npz", "--batch", batch, *words, code=3)
        assert ("nan, since no label counts" if inside else "ignored value") in text
        assert "-nan" not in text


# --- evaluating without labels, and without a loss ------------------------------------------------


def test_eval_without_labels(folder: Path) -> None:
    x = examples()["x"]
    np.savez("x.npz", x=x)
    expected = x @ weights(folder / "m.onnx")["w"]
    for words in (CROSS_ENTROPY, ("--loss", "mse"), ()):
        text = steep("eval", "m.onnx", "--data", "x.npz", "--out", "y.npz", *words, "--batch", 4)
        assert "rows 10" in text and "no loss" in text and "loss 0" not in text
        np.testing.assert_allclose(np.load("y.npz")["y"], expected, rtol=1e-6)
    np.savez("x.npz", x=x, k=np.ones(ROWS))  # which may be labels
    assert "--label-array" in steep("eval", "m.onnx", "--data", "x.npz", *CROSS_ENTROPY, code=3)
    assert "not used: 'k'" in steep("eval", "m.onnx", "--data", "x.npz")


def test_a_loss_that_is_not_finite_is_an_error(folder: Path) -> None:
    x = examples()["x"]
    x[5] = np.nan
    np.savez("x.npz", x=x, label=examples()["label"])
    words = ("--data", "x.npz", *CROSS_ENTROPY, "--batch", 4, "--out", "y.npz")
    assert "nan in rows 4 to 7" in steep("eval", "m.onnx", *words, code=3)
    assert (
        np.isnan(np.load("y.npz")["y"]).any(axis=1).tolist() == [False] * 5 + [True] + [False] * 4
    )


# --- what is kept ---------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["--out", "--checkpoint"])
def test_room_is_looked_for_first(folder: Path, option: str) -> None:
    little = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20, 20))  # noqa: E731
    done = subprocess.run(
        [built("steep"), "train", "m.onnx", "--data", "t.npz", *CROSS_ENTROPY, option, "o"],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=little,
    )
    assert done.returncode == 4 and f"{option} o: the largest file" in done.stderr
    assert "epoch" not in done.stdout and not (folder / "o").exists()


def run_and_lose(folder: Path, *words: object) -> tuple[int, str]:
    """A run whose folder `gone` goes while it trains: its exit code and what it said."""
    (folder / "gone").mkdir()
    command = [built("steep"), "train", "m.onnx", "--data", "t.npz", *CROSS_ENTROPY]
    command += [*map(str, words), "--epochs", "1000", "--batch", "1"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        text = ""
        for line in process.stdout:
            text += line
            if line.startswith("epoch 1/"):
                shutil.rmtree("gone")
        return process.wait(60), text


def test_results_that_cannot_be_written_go_elsewhere(folder: Path) -> None:
    (folder / "o.onnx").write_text("mine")
    code, text = run_and_lose(folder, "--out", "gone/o.onnx")
    assert code == 4 and "cannot write into gone" in text
    assert f"what was trained is in {folder / 'o-2.onnx'}" in text
    assert (folder / "o.onnx").read_text() == "mine"
    assert np.abs(weights(folder / "o-2.onnx")["w"] - weights(folder / "m.onnx")["w"]).max() > 0


def test_what_an_error_ends_is_kept(folder: Path) -> None:
    x = examples()["x"]
    x[7] = np.inf
    np.savez("t.npz", x=x, label=examples()["label"])
    text = run("--batch", 2, "--checkpoint", "run", code=3)
    assert "what was trained is in run.failed" in text and "The loss of step 4" in text
    assert not Path("run").exists()
    np.savez("t.npz", **examples())
    assert "after step 3" in run("--batch", 2, "--resume", "run.failed")


# --- the environment ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "variables",
    [
        {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"},
        {"PMI_SIZE": "4", "PMI_RANK": "0"},
        {"SLURM_NTASKS": "2", "SLURM_PROCID": "0"},
        {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1"},
    ],
)
def test_one_of_several_processes_does_not_train(
    folder: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    text = run("--out", "o.onnx", code=4)
    size = next(iter(variables))
    assert f"{size}={variables[size]}" in text and "Start it once" in text
    assert not (folder / "o.onnx").exists()
    monkeypatch.setenv("STEEP_ALONE", "1")  # it is meant
    run()
    monkeypatch.delenv("STEEP_ALONE")
    monkeypatch.setenv(size, "1")
    run()


def test_the_script_of_a_batch_job_is_one_process(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = {"ENVIRONMENT": "BATCH", "SLURM_NTASKS": "2", "SLURM_PROCID": "0"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    run()
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")  # of srun
    run(code=4)


def test_limits_that_cannot_be_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for word in ("8Q", "0", "-1", "inf", "0K"):
        assert "--max-bytes: " in run("--max-bytes", word, code=2)
        monkeypatch.setenv("STEEP_MAX_BYTES", word)
        for words in (("--help",), ("check", "m.onnx")):
            text = steep(*words, code=2)
            assert text.startswith("steep: STEEP_MAX_BYTES cannot be read") and word in text
        monkeypatch.delenv("STEEP_MAX_BYTES")
    assert "--max-nodes: " in run("--max-nodes", -1, code=2)
