"""What the `steep` program says about words it cannot use, and where its output goes."""

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from checkout import ROOT
from steep_program import built, linear, steep, train, weights

import steep as package


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "linear.onnx"
    onnx.save(linear.linear_model(10), path)
    np.savez(tmp_path / "linear.npz", **linear.linear_data(256, 10))
    return path


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--batch", "0 -1 1e3 99999999999999999999 2.5 nan"),
        ("--epochs", "0 -1 9223372036854775807"),
        ("--seed", "-1 1.5 99999999999999999999"),
        ("--lr", "nan -1 inf abc 1e400"),
        ("--weight-decay", "nan -1"),
        ("--momentum", "nan -1"),
        ("--dampening", "nan"),
        ("--beta1", "nan 2"),
        ("--beta2", "nan -1"),
        ("--epsilon", "nan -1"),
        ("--clip-norm", "nan -1"),
        ("--warmup-steps", "-1"),
        ("--total-steps", "0 -1"),
        ("--min-lr-ratio", "4 nan"),
        ("--loss-scale", "0 nan 1e30"),
        ("--loss-scale-window", "-1"),
        ("--checkpoint-every", "0 -1"),
        ("--ignore-index", "1.5 x"),
    ],
)
def test_numbers_outside_their_range(model: Path, option: str, words: str) -> None:
    for word in [*words.split(), ""]:
        text = steep("train", model, "--data", "d.npz", option, word, code=2)
        assert f"{option}: expected" in text and f"received '{word}'" in text and len(text) < 200


def test_an_octal_looking_number_is_decimal(model: Path) -> None:
    assert "26 steps an epoch" in train(model, "--batch", "010")


@pytest.mark.parametrize("option", ["--out", "--checkpoint", "--resume", "--data", "--train"])
def test_empty_words(model: Path, option: str) -> None:
    text = steep("train", model, option, "", code=2)
    assert option in text and "empty" in text


def test_misspelt_words() -> None:
    assert "did you mean 'train'?" in steep("trian", "m.onnx", code=2)
    assert "there are train, eval" in steep("fly", code=2)
    assert "a command is needed: train, eval" in steep(code=2)
    assert "did you mean '--version'?" in steep("--verison", code=2)
    for words in (("--optimzer", "sgd"), ("--optimzer=sgd",)):
        assert "did you mean '--optimizer'?" in steep("train", "m.onnx", *words, code=2)
    assert "did you mean" not in steep("train", "m.onnx", "--fly", code=2)


def test_options_that_would_change_nothing(model: Path) -> None:
    for words in (
        ("--optimizer", "adam", "--momentum", 0.9),
        ("--optimizer", "sgd", "--beta1", 0.8),
        ("--loss-scale", 8),
        ("--min-lr-ratio", 0.1),
        ("--ignore-index", 1),
        ("--for-inference",),
        ("--checkpoint-every", 3),
    ):
        assert "requires" in train(model, *words, code=2)
    assert "requires" in steep("dump", model, "--freeze", "nothing", code=2)
    assert "requires" in steep("check", model, "--label", "y", code=2)


def test_shapes_that_cannot_be_read(model: Path) -> None:
    for shape in ("x=2,", "x=a,b", "x=-1,10", "x", "=2,10", "x=99999999999999999999,10"):
        assert "cannot be read" in steep("check", model, "--loss", "mse", "--shape", shape, code=3)


def test_names_that_match_nothing(model: Path) -> None:
    for option in ("--train", "--freeze"):
        for words in (("train", "--data", model.with_suffix(".npz")), ("check",), ("dump",)):
            text = steep(words[0], model, *words[1:], "--loss", "mse", option, "wight*", code=None)
            assert "no such initializer" in text and "one of: weight, bias" in text


def test_data_of_another_format(tmp_path: Path, model: Path) -> None:
    (tmp_path / "rows.txt").write_text("x,y\n1,2\n3,4\n")
    (tmp_path / "empty.npz").touch()
    for name, kind in (
        ("rows.txt", "text, for instance CSV"),
        ("empty.npz", "a file of 0 bytes"),
        ("linear.onnx", "another format"),
    ):
        text = steep("eval", model, "--loss", "mse", "--data", tmp_path / name, code=3)
        assert "neither an .npz, .npy nor a .safetensors file" in text and kind in text
        assert "numpy.savez" in text


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="needs /dev/full")
def test_output_that_does_not_arrive(model: Path) -> None:
    data = ["--data", model.with_suffix(".npz"), "--loss", "mse"]
    shape = ["--loss", "mse", "--shape", "x=3,10"]
    for words in (
        ["dump", model],
        ["dump", model, *shape],
        ["check", model],
        ["eval", model, *data],
        ["grad", model, "--wrt", "x", "-o", model.with_name("g.onnx")],
        ["--help"],
        ["--version"],
    ):
        with Path("/dev/full").open("w") as full:
            done = subprocess.run(
                [built("steep"), *map(str, words)],
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                check=False,
            )
        assert done.returncode == 4
        assert done.stderr.startswith("steep: cannot write to standard output")


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="needs /dev/full")
def test_training_whose_output_does_not_arrive_says_why(model: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [built("steep"), "train", model, "--data", model.with_suffix(".npz"), "--loss", "mse"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            cwd=model.parent,
        )
    assert done.returncode != 0
    assert "cannot write to standard output: No space left on device" in done.stderr


def start(model: Path, *words: object, **options: object) -> subprocess.Popen[str]:
    data = ("--data", model.with_suffix(".npz"), "--loss", "mse", "--optimizer", "adam")
    return subprocess.Popen(
        [built("steep"), "train", str(model), *map(str, (*data, "--batch", 1, *words))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=model.parent,
        **options,
    )


def wait_for_rows(metrics: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while not metrics.exists() or metrics.stat().st_size < 2000:
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.01)


def resumes_bit_exactly(model: Path, checkpoint: Path, stopped: str) -> None:
    done = int(stopped.split("stopped after step ")[1].split(";", maxsplit=1)[0])
    words = ("--optimizer", "adam", "--batch", 1, "--epochs", done // 256 + 1)
    folder = model.parent
    train(model, *words, "--resume", checkpoint, "--out", folder / "parts.onnx")
    train(model, *words, "--out", folder / "whole.onnx")
    whole = weights(folder / "whole.onnx")
    for name, value in weights(folder / "parts.onnx").items():
        np.testing.assert_array_equal(value, whole[name])


def test_a_closed_output_saves(model: Path) -> None:
    run = model.parent / "it's a run"  # a shell reads what is to be pasted
    words = ("--rate", "*=1e-3", "--epochs", 100000, "--checkpoint", run)
    process = start(model, *words)
    assert process.stdout is not None and process.stderr is not None
    assert "training 11 parameters" in process.stdout.readline()
    process.stdout.close()
    assert process.wait(60) == 130
    text = process.stderr.read()
    assert f"the checkpoint is in {run}" in text
    again = shlex.split(text.split("resume with: ")[1])
    assert again[-8:] == [*map(str, words), "--resume", str(run)]
    resumes_bit_exactly(model, run, text)


def test_hangups_save(model: Path) -> None:
    """The terminal sends one, and its shell another."""
    metrics, run = model.parent / "metrics.csv", model.parent / "linear.checkpoint"
    process = start(model, "--epochs", 100000, "--metrics", metrics)
    wait_for_rows(metrics, process)
    for _ in range(3):
        process.send_signal(signal.SIGHUP)
    text, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the checkpoint is in linear.checkpoint" in text
    resumes_bit_exactly(model, run, text)


def test_nohup_is_respected(model: Path) -> None:
    metrics = model.parent / "metrics.csv"
    ignore = lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)  # noqa: E731
    process = start(model, "--epochs", 40, "--metrics", metrics, preexec_fn=ignore)
    wait_for_rows(metrics, process)
    process.send_signal(signal.SIGHUP)
    text, _ = process.communicate(timeout=60)
    assert process.returncode == 0 and "epoch 40/40" in text


def test_weights_that_are_not_kept_are_spoken_of(model: Path) -> None:
    text = train(model)
    assert text.index("will not be kept") < text.index("epoch 1/1") < text.index("were not kept")
    for words in (("--out", model.parent / "out.onnx"), ("--checkpoint", model.parent / "run")):
        assert "the trained weights" not in train(model, *words)


def test_a_stop_before_the_first_step_replaces_nothing(model: Path) -> None:
    run = model.parent / "run"
    train(model, "--checkpoint", run)
    before = {f.name: f.read_bytes() for f in run.iterdir()}
    process = start(model, "--checkpoint", run, "--epochs", 100000)
    assert process.stdout is not None
    process.stdout.close()  # mostly before the first line
    assert process.wait(60) == 130
    if "before the first step" in process.stderr.read():
        assert before == {f.name: f.read_bytes() for f in run.iterdir()}


def wait_until_caught(number: signal.Signals, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while True:
        assert time.monotonic() < deadline and process.poll() is None
        status = Path(f"/proc/{process.pid}/status").read_text()
        if int(status.split("SigCgt:")[1].split()[0], 16) >> (number - 1) & 1:
            return
        time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("command", ["eval", "predict", "lr-find"])
def test_commands_that_keep_nothing_say_that_they_were_stopped(
    model: Path, command: str, number: signal.Signals
) -> None:
    data = linear.linear_data(1_000_000, 10)
    np.savez(model.with_suffix(".npz"), **data)
    out = model.parent / ("rates.svg" if command == "lr-find" else "outputs.npz")
    rates = ("--from", 1e-9, "--to", 1e-8, "--steps", 1_000_000)  # which do not diverge
    words = {
        "eval": ("--batch", 1, "--loss", "mse", "--out", out),
        "predict": ("--batch", 1, "--out", out),
        "lr-find": ("--batch", 64, "--loss", "mse", "--plot", out, *rates),
    }[command]
    with subprocess.Popen(
        [
            *(built("steep"), command, str(model), "--data", str(model.with_suffix(".npz"))),
            *map(str, words),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        wait_until_caught(number, process)
        time.sleep(0.3)  # into the first batches
        process.send_signal(number)
        printed, text = process.communicate(timeout=60)
    assert process.returncode == 130, text
    assert text == "steep: interrupted; nothing was saved\n" and not out.exists()
    if command == "lr-find" and number == signal.SIGINT:  # the rates that it tried
        assert re.search(r"\n +1e-09( +[\d.e+-]+){2}\n", printed), printed
        assert "suggestion" not in printed


def test_work_that_does_not_look_ends_too(model: Path) -> None:
    """Here a write to a pipe that is full."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while os.write(writer, bytes(4096)):
            pass
    os.set_blocking(writer, True)
    with subprocess.Popen(
        [built("steep"), "info", str(model)], stdout=writer, stderr=subprocess.PIPE, text=True
    ) as process:
        wait_until_caught(signal.SIGINT, process)
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        _, text = process.communicate(timeout=60)
    os.close(reader)
    os.close(writer)
    assert process.returncode == 130 and text == "steep: interrupted; nothing was saved\n"


HOSTILE: dict[str, object] = {
    "epoch": "one",
    "next_batch": 1.5,
    "loss_sum": None,
    "loss_rows": -1,
    "setting": [],
    "rows": {},
    "seed": "\x00",
    "shuffle": 1,
}


def test_hostile_positions_are_checkpoint_errors(model: Path) -> None:
    run, bad = model.parent / "run", model.parent / "bad"
    train(model, "--checkpoint", run)
    session = package.TrainingSession(model, loss="mse", optimizer="sgd", lr=0.1)
    good = json.loads(session.load_checkpoint(run))["run"]
    changes = [{name: value} for name, value in HOSTILE.items()]
    changes += [{"epoch": 2**64 - 1}, {"epoch": 2**62}, {"next_batch": 9}, {"next_batch": 1e300}]
    changes += [{"epoch": -1}, {"epoch": None}, {"setting": 3}, {"batch": [[1]]}]
    for change in changes:
        user = json.loads(json.dumps(good))
        for name, value in change.items():
            (user["setting"] if name in user["setting"] else user)[name] = value
        session.save_checkpoint(bad, json.dumps({"run": user}))
        text = train(model, "--resume", bad, code=4)
        assert f"'{next(iter(change))}' of the run is damaged" in text, text
        assert "json" not in text and len(text) < 400
    for user in ({}, {"run": 3}, {"run": {}}, {"run": {"setting": {}}}):
        session.save_checkpoint(bad, json.dumps(user))
        train(model, "--resume", bad, code=4)


def test_python_m_steep(model: Path) -> None:
    def run(*words: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "steep", *map(str, words)],
            env={**os.environ, "PYTHONPATH": str(ROOT / "python")},
            capture_output=True,
            text=True,
            check=False,
        )

    assert run("--version").stdout == f"steep {package.__version__}\n"
    assert "can be trained" in run("check", model).stdout
    assert run("trian").returncode == 2
    command = f"{sys.executable} -m steep dump {model} | true"
    text = subprocess.run(
        ["bash", "-c", f"sleep 0.1 | {command}"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "python")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert text.stderr == ""


@pytest.mark.parametrize("option", ["--out", "--checkpoint", "--metrics", "--profile"])
def test_destinations_are_tried_first(model: Path, option: str) -> None:
    folder = model.parent
    os.mkfifo(folder / "pipe")
    (folder / "other").mkdir()
    (folder / "other/file").write_text("mine")
    (folder / "lasso").symlink_to(folder / "lasso")
    names = ["pipe", "other", "lasso", "linear.npz/x"]
    names += [] if option == "--checkpoint" else ["nowhere/x"]
    before = sorted(folder.rglob("*"))
    for name in names:
        text = steep("train", model, "--data", "unread.npz", option, folder / name, code=4)
        assert Path(name).parts[0] in text and "unread.npz" not in text
    assert before == sorted(folder.rglob("*"))
    assert (folder / "other/file").read_text() == "mine"


def test_results_do_not_replace_each_other(model: Path) -> None:
    data, same = model.with_suffix(".npz"), model.parent / "same"
    for words in (
        ("--out", same, "--metrics", same),
        ("--out", same, "--checkpoint", same),
        ("--metrics", data),
        ("--profile", model),
    ):
        assert "are the same file" in train(model, *words, code=4)
    train(model, "--out", model)
    assert weights(model)["weight"].any()


def test_other_commands_try_their_destination_first(model: Path) -> None:
    nowhere = model.parent / "nowhere/out.npz"
    missing = model.parent / "missing"
    assert "nowhere" in steep("grad", missing, "--wrt", "x", "-o", nowhere, code=4)
    assert "nowhere" in steep("eval", missing, "--data", missing, "--out", nowhere, code=4)
    assert "ends in .npz" in steep("eval", model, "--data", missing, "--out", "y.csv", code=2)
