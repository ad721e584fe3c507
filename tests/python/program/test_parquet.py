"""Parquet files as data of the `steep` program."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from steep_program import built, steep, weights

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

ROWS = 10
WORDS = ("--loss", "softmax_cross_entropy", "--optimizer", "sgd", "--lr", 0.5, "--no-shuffle")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    assert Path(built("steep")).with_name("libsteep_parquet.so").exists()
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[n,3] x) => (float[n,2] y)
        <float[3,2] w = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6}> { y = MatMul(x, w) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def columns() -> dict[str, Any]:
    random = np.random.default_rng(0)
    x = random.standard_normal((ROWS, 3)).astype(np.float32)
    label = random.integers(0, 2, ROWS)
    return {"a": x[:, 0], "b": x[:, 1], "c": x[:, 2], "label": label}


def write(table: dict[str, Any], **options: Any) -> None:
    pq.write_table(pa.table(table), "t.parquet", **options)


def test_a_page_whose_checksum_does_not_match(folder: Path) -> None:
    table = columns()
    write(table, write_page_checksum=True, use_dictionary=False, compression="none")
    train()
    file = bytearray(Path("t.parquet").read_bytes())
    file[file.index(table["b"][3:5].tobytes())] ^= 1
    Path("t.parquet").write_bytes(file)
    text = train(code=3)
    assert "a column that cannot be read: 'b'" in text and "checksum" in text


def train(*words: object, code: int = 0, data: str = "t.parquet") -> str:
    return steep("train", "m.onnx", "--data", data, *WORDS, *words, code=code)


FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "groups": {"row_group_size": 3},
    "zstd": {"compression": "zstd", "data_page_version": "2.0"},
    "no dictionary": {"use_dictionary": False, "compression": "none"},
    "split": {"use_byte_stream_split": ["a"], "use_dictionary": False},
}


@pytest.mark.parametrize("form", FORMS)
def test_tables_train_as_arrays_do(folder: Path, form: str) -> None:
    table = columns()
    x = np.stack([table["a"], table["b"], table["c"]], 1)
    np.savez("t.npz", x=x, label=table["label"])
    train("--out", "a.onnx", "--batch", 4, data="t.npz")
    write(table, **FORMS[form])
    said = train("--out", "p.onnx", "--batch", 4)
    assert "x from 'a,b,c'" in said and "label from 'label' int64[10]" in said
    np.testing.assert_array_equal(weights(folder / "p.onnx")["w"], weights(folder / "a.onnx")["w"])


@pytest.mark.parametrize("kind", ["fixed", "lists", "large lists", "float64"])
def test_lists_are_rows(folder: Path, kind: str) -> None:
    table = columns()
    x = np.stack([table["a"], table["b"], table["c"]], 1)
    np.savez("t.npz", x=x, label=table["label"])
    train("--out", "a.onnx", data="t.npz")
    value = pa.float64() if kind == "float64" else pa.float32()
    types = {"fixed": pa.list_(value, 3), "large lists": pa.large_list(value)}
    lists = pa.array(x.tolist(), types.get(kind, pa.list_(value)))
    write({"x": lists, "label": table["label"].astype(np.uint8)}, row_group_size=4)
    said = train("--out", "p.onnx")
    assert f"x from 'x' {'float64' if kind == 'float64' else 'float32'}[10, 3]" in said
    np.testing.assert_array_equal(weights(folder / "p.onnx")["w"], weights(folder / "a.onnx")["w"])


def test_types(folder: Path) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> g (%s x) => (%s y) { y = Identity(x) }"""
    for dtype, name in (("bool", "bool"), ("int16", "int16"), ("uint64", "uint64")):
        onnx.save(onnx.parser.parse_model(text % (f"{name}[n]", f"{name}[n]")), "i.onnx")
        values = np.array([0, 1, 1, 0], dtype)
        write({"x": values, "id": ["a", "b", "c", "d"]}, row_group_size=3)
        said = steep("predict", "i.onnx", "--data", "t.parquet", "--out", "o.npz")
        assert "'id' not read: string" in said
        np.testing.assert_array_equal(np.load("o.npz")["y"], values)
    onnx.save(onnx.parser.parse_model(text % ("float16[n]", "float16[n]")), "i.onnx")
    write({"x": np.array([0.5, 2], np.float16)})
    steep("predict", "i.onnx", "--data", "t.parquet", "--out", "o.npz")
    np.testing.assert_array_equal(np.load("o.npz")["y"], np.float16([0.5, 2]))


def test_several_files(folder: Path) -> None:
    Path("parts").mkdir()
    for i, rows in enumerate((slice(0, 4), slice(4, ROWS))):
        table = {name: values[rows] for name, values in columns().items()}
        pq.write_table(pa.table(table), f"parts/{i}.parquet")
    said = train(data="parts")
    assert "parts/0.parquet and 1 more" in said and "10 rows" in said


def test_columns_that_nobody_uses_are_not_read(folder: Path) -> None:
    """Neither their bytes, nor what is wrong with them, nor the memory that they would take."""
    plain = columns()
    write(plain)
    words = ("--map", "x=a,b,c")
    train(*words, "--out", "a.onnx")
    holes = np.full(ROWS, None, object)
    ragged = [[1.0] * i for i in range(ROWS)]
    large = np.random.default_rng(1).normal(size=(ROWS, 1 << 17))
    for other in (pa.array(holes, pa.float32()), pa.array(ragged), pa.array(large.tolist())):
        write({"other": other, **plain}, use_dictionary=False, compression="none")
        said = train(*words, "--out", "p.onnx", "--max-bytes", 8 << 20)
        assert "not used: 'other'" in said
        made = weights(folder / "p.onnx")["w"]
        np.testing.assert_array_equal(made, weights(folder / "a.onnx")["w"])
    assert "--max-bytes" in train("--map", "x=other", "--max-bytes", 8 << 20, code=3)
    meta = pq.ParquetFile("t.parquet").metadata.row_group(0).column(0)
    damaged = bytearray(Path("t.parquet").read_bytes())
    begin = meta.data_page_offset
    damaged[begin : begin + meta.total_compressed_size] = bytes(meta.total_compressed_size)
    Path("t.parquet").write_bytes(damaged)
    train(*words, "--out", "p.onnx")
    np.testing.assert_array_equal(weights(folder / "p.onnx")["w"], weights(folder / "a.onnx")["w"])
    assert "cannot be read: 'other'" in train("--map", "x=other", code=3)


def test_columns_of_some_files(folder: Path) -> None:
    """Columns of tables beside arrays, and the same columns in a table of another kind."""
    table = {k: v.astype(np.float64) if k != "label" else v for k, v in columns().items()}
    write({"a": table["a"], "b": table["b"], "c": table["c"], "id": ["x"] * ROWS})
    np.savez("l.npz", label=table["label"])
    said = steep("train", "m.onnx", "--data", "t.parquet", "l.npz", *WORDS)
    assert "x from 'a,b,c'" in said and "label from 'label'" in said
    lines = [",".join(("a", "b", "c"))]
    lines += [f"{a},{b},{c}" for a, b, c in zip(table["a"], table["b"], table["c"], strict=True)]
    Path("t.csv").write_text("\n".join(lines))
    np.savez("l.npz", label=np.tile(table["label"], 2))
    said = steep("train", "m.onnx", "--data", "t.csv", "t.parquet", "l.npz", *WORDS)
    assert f"{2 * ROWS} rows" in said


def test_a_column_of_several_types(folder: Path) -> None:
    """Numbers in text have no type; each reader has its own."""
    table = columns()
    halves = [{name: v[rows] for name, v in table.items()} for rows in (slice(5), slice(5, ROWS))]
    np.savez("t.npz", x=np.stack([table["a"], table["b"], table["c"]], 1), label=table["label"])
    train("--out", "a.onnx", data="t.npz")
    lines = [",".join(halves[0])]
    for row in zip(*halves[0].values(), strict=True):
        lines.append(",".join(repr(float(v)) if v != int(v) else str(int(v)) for v in row))
    Path("1.csv").write_text("\n".join(lines))
    pq.write_table(pa.table(halves[0]), "1.parquet")
    np.savez("1.npz", **halves[0])
    for label in (np.int64, np.uint8, np.bool_, np.float32):
        second = {**halves[1], "label": halves[1]["label"].astype(label)}
        pq.write_table(pa.table({k: pa.array(v) for k, v in second.items()}), "2.parquet")
        for first in ("1.csv", "1.parquet"):
            steep("train", "m.onnx", "--data", first, "2.parquet", *WORDS, "--out", "p.onnx")
            made = weights(folder / "p.onnx")["w"]
            np.testing.assert_array_equal(made, weights(folder / "a.onnx")["w"], f"{first} {label}")
    said = steep("train", "m.onnx", "--data", "1.csv", "1.npz", *WORDS)
    assert f"{ROWS} rows" in said


def test_files_that_cannot_be_joined(folder: Path) -> None:
    write({"a": [[1.0, 2.0]], "label": [1]})
    Path("t.csv").write_text("a,label\n1,1\n")
    said = steep("train", "m.onnx", "--data", "t.csv", "t.parquet", *WORDS, "--map", "x=a", code=3)
    assert "Array 'a' of t.parquet cannot be joined with that of t.csv" in said
    assert "float64[1, 2]" in said and "rename one" in said
    Path("t.csv").write_text("a,b,label\n1,2,1\n")
    said = steep("train", "m.onnx", "--data", "t.csv", "t.parquet", *WORDS, code=3)
    assert "t.parquet shares some arrays with t.csv, but not all" in said
    assert "a, b, label in t.csv; a, label in t.parquet" in said.replace("'", "")


@pytest.mark.parametrize("named", ["x=c", "x=a,b,c"])
def test_a_named_column_that_is_not_numbers(folder: Path, named: str) -> None:
    write({**columns(), "c": ["text"] * ROWS})
    said = train("--map", named, code=3)
    assert "Column 'c' of t.parquet is not read" in said and "received: string" in said


def test_errors_name_file_row_and_column(folder: Path) -> None:
    table = columns()
    holes = table["b"].astype(object)
    holes[7] = None
    write({**table, "b": pa.array(holes, pa.float32())}, row_group_size=3)
    said = train(code=3)
    assert "t.parquet has a null in row 8, column 'b'" in said
    lists = [[1.0, 2, 3]] * 6 + [[1.0, 2]] + [[1.0, 2, 3]] * 3
    write({"x": lists, "label": table["label"]}, row_group_size=4)
    said = train(code=3)
    assert "t.parquet has lists of different lengths in column 'x', row 7" in said
    lists[6] = [1.0, None, 3]
    write({"x": lists, "label": table["label"]}, row_group_size=4)
    assert "has a null in row 7, column 'x'" in train(code=3)
    write({**table, "c": ["text"] * ROWS})
    assert "Column 'c' of t.parquet is not read" in train("--map", "x=c", code=3)
    write({name: values[:0] for name, values in table.items()})
    assert "t.parquet has no rows" in train(code=3)
    write({"id": ["text"]})
    assert "has no column that is read" in train(code=3)


def test_damaged_files_are_refused(folder: Path) -> None:
    write(columns(), row_group_size=5)
    whole = Path("t.parquet").read_bytes()
    for part in (b"", b"PAR1", whole[:-9], whole[100:], b"a,b\n1,2\n"):
        Path("t.parquet").write_bytes(part)
        said = train(code=3)
        assert "t.parquet cannot be read as Parquet" in said or "column that cannot be" in said
    random = np.random.default_rng(0)
    for _ in range(60):
        changed = bytearray(whole)
        for at in random.integers(0, len(whole), 4):
            changed[at] ^= int(random.integers(1, 256))
        Path("t.parquet").write_bytes(bytes(changed))
        words = ("--out", "o.onnx")
        said = steep_of_any_end(*words)
        assert "bug" not in said, said
    many = np.random.default_rng(0).standard_normal(100_000)
    write({"a": many, "b": many, "c": many, "label": np.zeros(100_000, int)}, row_group_size=1000)
    said = train("--max-bytes", "1M", code=3)
    assert "t.parquet exceeds the memory limit" in said and "Raise --max-bytes" in said


def steep_of_any_end(*words: object) -> str:
    """A damaged number may be read as another one: the run ends well, or with an error."""
    try:
        return train(*words)
    except AssertionError as error:
        said = str(error)
        assert "steep: " in said, said
        return said


def test_without_the_module(folder: Path) -> None:
    write(columns())
    os.link(built("steep"), "steep")
    process = os.popen("./steep predict m.onnx --data t.parquet --out o.npz 2>&1")
    said = process.read()
    assert process.close() == 3 << 8
    assert "t.parquet is Parquet" in said and "numpy.savez" in said


def program_without_libraries(folder: Path, plug_in: str) -> Path:
    """A copy of the program with a plug-in that needs a library which is not there."""
    program = Path(shutil.copy(built("steep"), folder))
    commands = (
        "echo 'int x;' | cc -shared -fPIC -xc -Wl,-soname,libgone.so.7 -o libgone.so -",
        f"echo 'int y;' | cc -shared -fPIC -xc -Wl,--no-as-needed -o {plug_in} - -L. -lgone",
    )
    for command in commands:
        subprocess.run(command, shell=True, cwd=folder, check=True)
    return program


@pytest.mark.parametrize(
    ("plug_in", "words", "parts"),
    [
        (
            "libsteep_parquet.so",
            ("--data", "t.parquet"),
            ("expected: the libraries that ", "Apache Arrow", "Or: Convert it: python -c"),
        ),
        (
            "libsteep_comm_gloo.so",
            ("--data", "t.npz", "--parallel", "gloo"),
            ("The plug-in for communication by gloo cannot", "libraries", "(libgloo-dev)"),
        ),
    ],
)
def test_a_library_of_a_plug_in_is_missing(
    folder: Path, plug_in: str, words: tuple[str, ...], parts: tuple[str, ...]
) -> None:
    table = columns()
    write(table)
    np.savez("t.npz", x=np.stack([table["a"], table["b"], table["c"]], 1), label=table["label"])
    program = program_without_libraries(folder, plug_in)
    done = subprocess.run(
        [program, "train", "m.onnx", *map(str, (*words, *WORDS))],
        env={**os.environ, "STEEP_RANK": "0", "STEEP_SIZE": "1", "STEEP_RENDEZVOUS": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode > 0
    for part in (plug_in, "libgone.so.7", *parts):
        assert part in done.stderr
