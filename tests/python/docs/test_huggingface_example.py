"""The example that fine-tunes by Hugging Face's Trainer: Steep's losses are PyTorch's."""

import csv
import importlib.util
import json
import math
import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from checkout import ROOT

for package in ("torch", "transformers", "accelerate", "rich", "matplotlib"):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed", allow_module_level=True)

FOLDER = ROOT / "examples" / "huggingface"
SMALL = {
    "bert": {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2},
    "t5": {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 1, "num_decoder_layers": 1},
}


@pytest.fixture(scope="module")
def train():
    """The example as a module; it sets what must not stay set for other tests."""
    before = (dict(os.environ), list(sys.path))
    sys.path.insert(0, str(FOLDER))
    spec = importlib.util.spec_from_file_location("huggingface_train", FOLDER / "train.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    os.environ.clear()
    os.environ.update(before[0])
    sys.path[:] = before[1]


def run(train, folder, name, *options):
    """The status, and the rows of losses.csv, of a run with a model of a few thousand weights."""
    configuration = json.loads((FOLDER / "configs" / f"{name}.json").read_text())
    configuration["small"] = {"vocab_size": 400, **SMALL[name]}
    (folder / f"{name}.json").write_text(json.dumps(configuration))
    text = "\n\n".join(f"The {i}th of many lines counts {i * i} things." for i in range(200))
    (folder / "text.md").write_text(text)
    given = [folder / f"{name}.json", "--text", folder, "--out", folder, "--batch", 4, *options]
    status = train.main([str(word) for word in (*given, "--length", 32, "--turn", 2)])
    with (folder / name / "losses.csv").open(newline="") as file:
        return status, [{k: float(v) for k, v in row.items()} for row in csv.DictReader(file)]


def assert_same_losses(rows):
    for row in rows:
        assert row["steep"] == pytest.approx(row["pytorch"], rel=0, abs=2e-5)
        assert row["steep_seconds"] > 0 and row["pytorch_seconds"] > 0


@pytest.mark.matrix
def test_trains_as_pytorch_and_leaves_what_it_says(train, tmp_path, capsys):
    status, rows = run(train, tmp_path, "bert", "--steps", 6, "--lr", 0.01)
    said = capsys.readouterr().out
    assert status == 0, said
    assert len(rows) == 6
    assert_same_losses(rows)
    assert rows[-1]["steep"] < rows[0]["steep"] - 0.1  # it learns
    assert "1 graph, and nothing in PyTorch" in said
    assert (tmp_path / "bert" / "race.png").stat().st_size > 20_000
    saved = {f.name for f in (tmp_path / "bert" / "model").iterdir()}
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= saved


@pytest.mark.matrix
def test_ctrl_c_ends_between_steps_and_reports(train, tmp_path, capfd, monkeypatch):
    show, shown = train.Watch.show, []

    def interrupt(watch, contestant):
        show(watch, contestant)
        shown.append(contestant.name)
        if len(shown) == 7:
            for child in multiprocessing.active_children():  # a terminal's goes to all
                os.kill(child.pid, signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(train.Watch, "show", interrupt)
    before = signal.getsignal(signal.SIGINT)
    status, rows = run(train, tmp_path, "t5", "--steps", 1000)
    said, errors = capfd.readouterr()  # those of the processes, too
    assert (status, errors) == (130, "")
    assert shown == ["Steep", "PyTorch", "Steep", "Steep", "PyTorch", "PyTorch", "Steep"]
    assert "stopped after 3 of 1000 steps" in said
    assert len(rows) == 3
    assert_same_losses(rows)
    assert signal.getsignal(signal.SIGINT) is before
    assert not multiprocessing.active_children()


@pytest.mark.parametrize(("step", "wrong"), [(2, 2.002), (2, math.nan), (5, math.inf), (9, 2.02)])
def test_losses_that_differ_are_seen(train, step, wrong):
    race = sys.modules["race"]
    both = [race.Contestant(name, None, None) for name in (race.STEEP, race.PYTORCH)]
    both[0].losses, both[1].losses = [2.00005] * 5 + [2.005] * 5, [2.0] * 10
    assert race.Result(*both, turn=2).parted_at("float32") is None
    both[0].losses[step - 1] = wrong
    assert race.Result(*both, turn=2).parted_at("float32") == step


@pytest.mark.parametrize(
    ("given", "answer"),
    [
        (["bort"], "there is no model bort: choose of bart, bert, deberta"),
        (["bert", "--text", "absent"], "there is no absent: give --text a file"),
        (["bert", "--text", "empty.txt"], "empty.txt is empty"),
        (["bert", "--text", "."], "empty.txt is empty"),
        (["bert", "--text", "binary"], "binary is not UTF-8 text"),
        (["half.json"], "half.json has no model, tokenizer"),
        (["bert", "bert.json"], "two models of one name"),
        (["task.json"], "task.json has the task guess, not of mask, next"),
        (["bert", "--steps", "0"], "0 is not 1 or more"),
        (["all", "--length", "600"], "bert takes rows of at most 512"),
    ],
)
def test_what_is_wrong_is_said(train, tmp_path, monkeypatch, capsys, given, answer):
    monkeypatch.chdir(tmp_path)
    Path("empty.txt").write_text("\n \n")
    Path("binary").write_bytes(b"\xff\xfe\x00")
    Path("half.json").write_text("{}")
    whole = json.loads((FOLDER / "configs" / "bert.json").read_text())
    Path("bert.json").write_text(json.dumps(whole))
    Path("task.json").write_text(json.dumps({**whole, "task": "guess"}))
    if given[-1] == ".":
        answer = ". is empty"
    with pytest.raises(SystemExit) as error:
        train.main(given)
    assert error.value.code == 2
    assert answer in capsys.readouterr().err


def test_text_that_fills_no_row(train, tmp_path, capsys):
    (tmp_path / "text.txt").write_text("Too short.")
    given = ["gpt2", "--text", tmp_path / "text.txt", "--out", tmp_path]
    assert train.main([str(word) for word in given]) == 2
    assert "a row takes 128: give --text more of it" in capsys.readouterr().err


def test_status_of_the_program():
    done = subprocess.run(
        [sys.executable, FOLDER / "train.py", "bort"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "no model bort" in done.stderr and "Traceback" not in done.stderr


def restored(task, ids, labels, tokenizer):
    """The piece of text that a row is made of, from what is shown and what is asked for."""
    if task == "next":
        assert labels == ids
        return ids
    if task == "mask":
        assert sum(label >= 0 for label in labels) == round(0.15 * 30)
        both = zip(ids, labels, strict=True)
        return [i if label < 0 else label for i, label in both][1:-1]
    if task == "infill":
        mask = tokenizer.mask_token_id
        assert ids.count(mask) == 3
        shown = [t for i in ids for t in ([None] * 3 if i == mask else [i])]
        assert all(i in (None, label) for i, label in zip(shown, labels, strict=True))
        return labels[1:-1]
    spans, sentinels = (
        {},
        set(tokenizer.convert_tokens_to_ids([f"<extra_id_{i}>" for i in range(9)])),
    )
    for token in labels[:-1]:
        if token in sentinels:
            spans[(last := token)] = []
        else:
            spans[last].append(token)
    assert all(len(span) == 3 for span in spans.values())
    return [token for i in ids[:-1] for token in spans.get(i, [i])]


@pytest.mark.parametrize(
    ("kind", "task", "inside"),
    [
        ("BertTokenizer", "mask", 30),
        ("GPT2Tokenizer", "next", 32),
        ("BartTokenizer", "infill", 30),
        ("T5Tokenizer", "spans", 31),
    ],
)
def test_rows_ask_for_what_the_text_says(train, kind, task, inside):
    texts = sys.modules["texts"]
    _, paragraphs = texts.read(None)
    paragraphs = paragraphs[:60]
    tokenizer = texts.train_tokenizer(kind, paragraphs, 500)
    made = texts.Rows(tokenizer, paragraphs, 32, seed=3)
    all_tokens = [
        t for p in tokenizer(paragraphs, add_special_tokens=False)["input_ids"] for t in p
    ]
    pieces = {tuple(all_tokens[i : i + inside]) for i in range(0, made.size - inside + 1, inside)}
    rows = made.make(task, len(pieces) + 5)
    found = [
        tuple(restored(task, ids.tolist(), labels.tolist(), tokenizer))
        for ids, labels in zip(rows["input_ids"], rows["labels"], strict=True)
    ]
    assert set(found) == pieces
    assert len({row.tobytes() for row in rows["input_ids"]}) > len(pieces) or task == "next"
