"""`steep train --parallel`: several processes give the results of one with the whole batch."""

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import onnx.parser
import pytest
from safetensors.numpy import load_file
from steep_program import built, steep, weights

ROWS = 23  # the last batch of 6 has 5 rows
ADAM = ("--optimizer", "adam", "--lr", 0.05)
CROSS_ENTROPY = ("--loss", "softmax_cross_entropy")

pytestmark = pytest.mark.skipif(
    not Path(built("steep")).with_name("libsteep_comm_gloo.so").exists(),
    reason="gloo was not found when Steep was built (libgloo-dev)",
)


def classifier(hidden: int = 5) -> onnx.ModelProto:
    random = np.random.default_rng(0)
    first = ", ".join(map(str, random.normal(size=3 * hidden).round(3)))
    second = ", ".join(map(str, random.normal(size=hidden * 4).round(3)))
    return onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17]> g (float[n,3] x) => (float[n,4] y)
        <float[3,{hidden}] w = {{{first}}}, float[{hidden},4] v = {{{second}}},
         float[4] b = {{0, 0, 0, 0}}>
        {{ p = MatMul(x, w) h = Tanh(p) q = MatMul(h, v) y = Add(q, b) }}"""
    )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    onnx.save(classifier(), tmp_path / "m.onnx")
    random = np.random.default_rng(1)
    labels = random.integers(0, 4, ROWS)
    np.savez(
        tmp_path / "t.npz", x=random.standard_normal((ROWS, 3)).astype(np.float32), label=labels
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for variable in os.environ:  # tests may themselves run under a launcher
        if variable.startswith(("OMPI_", "PMI_", "SLURM_")) or variable in ("WORLD_SIZE", "RANK"):
            monkeypatch.delenv(variable)
    return tmp_path


def train(processes: int, *words: object, code: int = 0) -> str:
    batch = () if "--batch" in words else ("--batch", 6)
    command = ("train", "m.onnx", "--data", "t.npz", *CROSS_ENTROPY, *ADAM, *batch, *words)
    launch = ("launch", "-n", processes) if processes > 1 else ()
    return steep(*launch, *command, code=code)


def assert_same(one: str, other: str) -> None:
    expected = weights(Path(one))
    for name, weight in weights(Path(other)).items():
        np.testing.assert_allclose(weight, expected[name], atol=1e-6, rtol=1e-5, err_msg=name)


def epochs(text: str) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return [line for line in lines if line["report"] == "epoch"]


WORDS: dict[str, tuple[object, ...]] = {
    "plain": (),
    "parts": ("--accumulate", 3, "--clip-norm", 0.5),
    "labels that do not count": ("--ignore-index", 2),
    "weighed classes, parts": ("--class-weights", "1,0.5,2,1", "--accumulate", 2),
    "less rows than processes": ("--batch", 2),
    "validation": ("--validation-split", 0.3, "--metric", "accuracy", "--early-stopping", 2),
}


@pytest.mark.parametrize("kind", WORDS)
def test_two_and_three_processes_do_what_one_does(folder: Path, kind: str) -> None:
    words = ("--epochs", 3, "--json", *WORDS[kind])
    one = epochs(train(1, *words, "--out", "1.onnx"))
    assert len(one) >= 2
    for count in (2, 3):
        text = train(count, *words, "--out", f"{count}.onnx", "--metrics", "m.csv")
        assert f"{count} processes share the" in text
        assert_same("1.onnx", f"{count}.onnx")
        each = epochs(text)
        assert len(each) == len(one)
        for expected, found in zip(one, each, strict=True):
            for name in set(expected) - {"samples_per_second"}:
                assert found[name] == pytest.approx(expected[name], abs=1e-5), (name, text)


def test_a_run_continues_with_another_number_of_processes(folder: Path) -> None:
    train(1, "--epochs", 4, "--out", "whole.onnx")
    train(2, "--epochs", 2, "--checkpoint", "run")
    train(1, "--epochs", 3, "--checkpoint", "run", "--resume", "run")
    train(3, "--epochs", 4, "--checkpoint", "run", "--resume", "run", "--out", "parts.onnx")
    assert_same("whole.onnx", "parts.onnx")


def chain(width: int = 512, layers: int = 12) -> onnx.ModelProto:
    """Weights of 11 MiB: several buckets."""
    random = np.random.default_rng(0)
    extents = [3, *[width] * layers, 4]
    nodes, arrays, value = [], [], "x"
    for i, shape in enumerate(itertools.pairwise(extents)):
        array = (random.normal(size=shape) / shape[0] ** 0.5).astype(np.float32)
        arrays.append(onnx.numpy_helper.from_array(array, f"w{i}"))
        nodes.append(onnx.helper.make_node("MatMul", [value, f"w{i}"], [f"p{i}"]))
        nodes.append(onnx.helper.make_node("Tanh", [f"p{i}"], [f"h{i}"]))
        value = f"h{i}"
    ends = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", extent])
        for name, extent in (("x", 3), (value, 4))
    ]
    graph = onnx.helper.make_graph(nodes, "chain", ends[:1], ends[1:], arrays)
    opsets = [onnx.helper.make_opsetid("", 17)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)


def events_of(path: str) -> list[dict[str, Any]]:
    events = json.loads(Path(path).read_text())["traceEvents"]
    return sorted((e for e in events if e["ph"] == "X"), key=lambda e: e["ts"])


@pytest.mark.parametrize("zero", [0, 1, 2])
def test_gradients_leave_while_backward_makes_others(folder: Path, zero: int) -> None:
    model = chain()
    onnx.save(model, folder / "m.onnx")
    words = ("train", "m.onnx", "--data", "t.npz", *CROSS_ENTROPY, "--optimizer", "sgd")
    words += ("--lr", 0.05, "--batch", 6, "--epochs", 6, "--out")
    steep(*words, "one.onnx")
    several = ("--parallel", "gloo", "--zero", zero, "--profile", "t.json")
    steep("launch", "-n", 2, *words, "o.onnx", *several)
    assert_same("one.onnx", "o.onnx")
    events = events_of("t.json")
    starts = [i for i, e in enumerate(events) if e["name"] == "the start of a step"]
    assert len(starts) == 6 * 4
    early = 0  # buckets that begin before backward has the last gradient
    sizes = {w.name: 4 * int(np.prod(w.dims)) for w in model.graph.initializer}
    for i, j in itertools.pairwise([*starts, len(events)]):
        step = events[i:j]
        buckets = [e for e in step if "bucket" in e["args"]]
        assert [e["args"]["bucket"] for e in buckets] == list(range(len(buckets)))
        assert len(buckets) > 1
        assert sum(e["args"]["bytes"] for e in buckets) == sum(sizes.values())
        last = max(e["ts"] for e in step if e["cat"] == "steep.Deliver")
        early += sum(e["ts"] < last for e in buckets)
    assert early > 0
    assert len({e["tid"] for e in events if e["cat"] == "communication"}) == 1


@pytest.mark.parametrize("kind", ["plain", "parts", "less rows than processes", "validation"])
@pytest.mark.parametrize("zero", [1, 2])
def test_divided_states_do_what_one_process_does(folder: Path, zero: int, kind: str) -> None:
    words = ("--epochs", 3, "--json", *WORDS[kind])
    one = epochs(train(1, *words, "--out", "1.onnx"))
    for count in (2, 4):  # of three parameters
        text = train(count, *words, "--zero", zero, "--out", f"{count}.onnx")
        more = " and gradients" if zero == 2 else ""
        assert f"rows of each batch, and the optimizer's states{more}" in text
        assert_same("1.onnx", f"{count}.onnx")
        for expected, found in zip(one, epochs(text), strict=True):
            for name in set(expected) - {"samples_per_second"}:
                assert found[name] == pytest.approx(expected[name], abs=1e-5), (name, text)


def test_divided_states_continue_on_another_number_of_processes(folder: Path) -> None:
    train(1, "--epochs", 4, "--out", "whole.onnx")
    train(2, "--epochs", 2, "--checkpoint", "run", "--zero", 1)
    moments = moments_of("run", 2)
    for count, zero in ((1, ()), (3, ("--zero", 1)), (4, ("--zero", 2)), (2, ())):
        again = f"again{count}"
        text = train(count, "--epochs", 2, "--checkpoint", again, "--resume", "run", *zero)
        assert "are done already" in text
        assert moments_of(again, count if zero else 1) == moments
    words = ("--resume", "run", "--zero", 1, "--full-checkpoints")
    train(3, "--epochs", 2, "--checkpoint", "full", *words)
    assert moments_of("full", 1) == moments
    train(1, "--epochs", 3, "--checkpoint", "run", "--resume", "run")
    words = ("--checkpoint", "run", "--checkpoint-every", 1, "--out", "parts.onnx", "--zero", 2)
    train(3, "--epochs", 4, "--resume", "run", *words)
    assert_same("whole.onnx", "parts.onnx")


def moments_of(folder: str, shards: int) -> dict[str, bytes]:
    files = [f for f in Path(folder).iterdir() if f.name.startswith("optimizer")]
    assert len(files) == shards == len([*Path(folder).iterdir()]) - 2
    each = [(name, array.tobytes()) for file in files for name, array in load_file(file).items()]
    assert len(each) == len(dict(each))
    return dict(each)


def test_shards_that_cannot_be_written_there_are_elsewhere(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = folder / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    launcher = start_long(3, zero=1)
    (folder / "run" / "thesis.tex").write_text("years of work")
    end = time.monotonic() + 60
    while not (home / "run" / "manifest.json").exists() and time.monotonic() < end:
        time.sleep(0.1)
    launcher.send_signal(signal.SIGINT)
    text = launcher.communicate(timeout=60)[0]
    assert f"what was trained is in {home / 'run'}" in text
    assert f"the checkpoint is in {home / 'run'}" in text
    assert [*folder.glob("*steep-tmp*")] == []
    moments_of(str(home / "run"), 3)
    train(2, "--epochs", 1, "--resume", home / "run", "--batch", 32, "--zero", 2)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("zero", [0, 1, 2])
def test_a_step_sends_the_bytes_of_one_sum(folder: Path, zero: int, precision: str) -> None:
    model = classifier(hidden=1)
    random = np.random.default_rng(0)
    for i, shape in enumerate([(3, 40000), (40000, 4), (4,)]):
        array = random.normal(size=shape).astype(np.float32) / 100
        name = model.graph.initializer[i].name
        model.graph.initializer[i].CopyFrom(onnx.numpy_helper.from_array(array, name))
    onnx.save(model, "m.onnx")
    words = ("--epochs", 3, "--json", "--zero", zero, "--wire-precision", precision)
    steps = 4  # in an epoch: 23 rows in batches of 6
    # Of two processes, each sends all gradients once. With --zero 1, rank 0 owns the larger matrix:
    # it sends the gradients of the rest, and its weights as they are.
    weights_sent = 4 * 40000 if zero else 0
    gradient = 4 if precision == "float32" else 2
    gradients = steps * gradient * (7 * 40000 + 4 - weights_sent)
    for parts in (1, 2):  # those of a step are sent once; with --zero 2, those of each part
        least = gradients / (1 if zero == 2 else parts) + steps * 4 * weights_sent / parts
        for epoch in epochs(train(2, *words, "--accumulate", parts))[1:]:  # states first
            assert least <= epoch["sent_bytes"] <= 1.02 * least


def test_states_that_cannot_be_divided_are_refused(folder: Path) -> None:
    assert "--parallel" in train(1, "--zero", 1, code=2)
    assert "--zero" in train(2, "--zero", 3, code=2)
    assert "Leave out ema_decay" in train(2, "--zero", 1, "--ema", 0.9, code=3)


def test_an_error_of_all_is_printed_once(folder: Path) -> None:
    text = train(3, "--resume", "nowhere", code=4)
    assert text.count("nowhere") == train(1, "--resume", "nowhere", code=4).count("nowhere")


def processes_of(launcher: subprocess.Popen[str], count: int) -> list[int]:
    """The children's ids, by rank."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        text = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text()
        ids = [int(word) for word in text.split()]
        if len(ids) == count:
            return sorted(ids, key=rank_of)
        time.sleep(0.05)
    raise AssertionError("the processes do not start")


def rank_of(process: int) -> str:
    variables = Path(f"/proc/{process}/environ").read_text().split("\0")
    return next((v for v in variables if v.startswith("STEEP_RANK=")), "")


def start_long(count: int, zero: int = 0) -> subprocess.Popen[str]:
    """Starts a run that does not end, and waits for its first checkpoint."""
    command = ("launch", "-n", count, "train", "m.onnx", "--data", "t.npz", *CROSS_ENTROPY, *ADAM)
    words = (*command, "--epochs", 1000000, "--checkpoint", "run", "--zero", zero)
    launcher = subprocess.Popen(
        [built("steep"), *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    end = time.monotonic() + 120
    while not Path("run/manifest.json").exists() and time.monotonic() < end:
        assert launcher.poll() is None, launcher.communicate()[0]
        time.sleep(0.1)
    return launcher


@pytest.mark.parametrize(("lost", "zero"), [(0, 0), (1, 0), (0, 1), (1, 1), (1, 2)])
def test_the_others_end_when_a_process_is_killed(folder: Path, lost: int, zero: int) -> None:
    launcher = start_long(3, zero)
    os.kill(processes_of(launcher, 3)[lost], signal.SIGKILL)
    text = launcher.communicate(timeout=60)[0]
    assert launcher.returncode in (4, 128 + signal.SIGKILL)
    assert f"steep: rank {lost} was ended by signal 9" in text
    assert f"rank {lost} was killed" in text and "bug" not in text
    assert text.count("Another process of this training ended") == 1
    train(2, "--epochs", 1, "--resume", "run", "--batch", 32, "--zero", zero)


@pytest.mark.parametrize("zero", [0, 1])
def test_ctrl_c_ends_all_with_one_checkpoint(folder: Path, zero: int) -> None:
    launcher = start_long(2, zero)
    launcher.send_signal(signal.SIGINT)
    text = launcher.communicate(timeout=60)[0]
    assert launcher.returncode == 130
    assert text.count("the checkpoint is in run") == 1
    again = re.search(r"resume with: (.*)", text)
    assert again and again[1].startswith("steep launch -n 2 train m.onnx"), text
    steps = re.search(r"stopped after step (\d+)", text)
    assert steps
    text = train(1, "--epochs", 1000000, "--resume", "run", "--checkpoint-every", 1, code=2)
    assert "--checkpoint" in text


@pytest.mark.parametrize("zero", [pytest.param(0, marks=pytest.mark.matrix), 1])
def test_a_process_that_is_stopped_is_noticed(folder: Path, zero: int) -> None:
    launcher = start_long(2, zero)
    stopped = processes_of(launcher, 2)[1]
    os.kill(stopped, signal.SIGSTOP)
    begin = time.monotonic()
    text = launcher.communicate(timeout=120)[0]
    assert "rank 1 did not answer" in text
    assert time.monotonic() - begin < 60
    assert not Path(f"/proc/{stopped}").exists()


def test_other_data_on_one_process_is_named(folder: Path) -> None:
    """Started by hand, as on several machines."""
    (folder / "meeting").mkdir()
    onnx.save(classifier(hidden=6), folder / "other.onnx")
    each = []
    for rank, model in enumerate(("m.onnx", "other.onnx")):
        words = ("train", model, "--data", "t.npz", *CROSS_ENTROPY, *ADAM, "--parallel", "gloo")
        variables = {"STEEP_RANK": str(rank), "STEEP_SIZE": "2", "STEEP_RENDEZVOUS": "meeting"}
        each.append(
            subprocess.Popen(
                [built("steep"), *map(str, words), "--out", f"{rank}.onnx"],
                env=os.environ | variables,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    for process in each:
        text = process.communicate(timeout=120)[0]
        assert process.returncode == 3, text
        assert "do not train the same model" in text and "rank 1: model" in text
    assert not (folder / "0.onnx").exists()


def test_a_fixed_number_of_rows_is_refused(folder: Path) -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]> g (float[6,3] x) => (float[6,4] y)
        <float[3,4] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3}>
        { m = ReduceMean <axes = [0], keepdims = 1> (x) d = Sub(x, m) y = MatMul(d, w) }"""
    )
    onnx.save(model, "m.onnx")
    text = train(2, code=3)
    assert "fixes the number of rows" in text


def test_what_cannot_start_says_why(folder: Path) -> None:
    assert "STEEP_RENDEZVOUS" in train(1, "--parallel", "gloo", code=4)
    assert "gloo" in train(1, "--parallel", "nccl", code=2)
    assert "launch starts `train`" in steep("launch", "-n", 2, "eval", "m.onnx", code=2)
    for number in (0, -1, 100000, "two"):  # not a word about the options of train
        text = steep("launch", "-n", number, "train", "m.onnx", "--data", "t.npz", code=2)
        assert "-n: expected a whole number from 1 to 1024" in text
    assert "-n" in steep("launch", "train", "m.onnx", code=2)


# --- MPI ------------------------------------------------------------------------------------------

MPI = Path(built("steep")).with_name("libsteep_comm_mpi.so")
needs_mpi = pytest.mark.skipif(
    shutil.which("mpirun") is None or not MPI.exists(),
    reason="Open MPI is not there (libopenmpi-dev, openmpi-bin)",
)


def mpirun(count: int, *words: object) -> str:
    options = ("--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", count)
    command = ("train", "m.onnx", "--data", "t.npz", *CROSS_ENTROPY, *ADAM, "--batch", 6, *words)
    process = subprocess.run(
        ["mpirun", *map(str, options), built("steep"), *map(str, command)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    return f"exit code {process.returncode}\n{process.stdout}"


@needs_mpi
def test_mpi_does_what_one_process_does(folder: Path) -> None:
    train(1, "--epochs", 2, "--out", "1.onnx")
    for zero in (0, 1, 2):
        words = ("--parallel", "mpi", "--zero", zero)
        text = mpirun(2, "--epochs", 2, "--out", f"{zero}of2.onnx", *words)
        assert "exit code 0" in text and text.count("wrote") == 1, text
        assert_same("1.onnx", f"{zero}of2.onnx")


@needs_mpi
def test_mpi_without_the_option_is_refused(folder: Path) -> None:
    text = mpirun(2)
    assert "exit code 4" in text and "--parallel mpi" in text
