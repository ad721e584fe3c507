"""Sessions with parallel="torch": N processes train as one does with all of their rows."""

import json
import os
import signal
import time

import numpy as np
import onnx.parser
import pytest

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")

from parallel_sessions import (  # noqa: E402
    CASES,
    CLASSES,
    IGNORED,
    X,
    Y,
    alone,
    assert_same,
    labels_of,
    model,
    rows_of,
    together,
)
from several_processes import in_processes  # noqa: E402

import steep  # noqa: E402

DROPS = """<ir_version: 8, opset_import: ["": 17]>
    net (float[n,4] x) => (float[n,4] y, float[n,4] dropped)
    <float ratio = {0.5}, bool mode = {1}> {
        dropped = Dropout (x, ratio, mode)
        y = MatMul (dropped, w) }"""
NORMALISES = """<ir_version: 8, opset_import: ["": 17]>
    net (float[n,4] x) => (float[n,4] y)
    <float[4] scale = {1, 1, 1, 1}, float[4] bias = {0, 0, 0, 0},
     float[4] mean = {0, 0, 0, 0}, float[4] variance = {1, 1, 1, 1}> {
        y, m, v = BatchNormalization <training_mode = 1> (x, scale, bias, mean, variance) }"""


def equal_one_process(rank):
    # Rank 0 sends its weights: those of the others are of another seed.
    for name, options in CASES.items():
        for divided in ((8, 8), (3, 1), (13, 3)):
            expected = alone(**options)
            session = together(**options)
            session.set_weights({n: np.asarray(w) + rank for n, w in session.weights().items()})
            mine, every = rows_of(rank, *divided), slice(0, sum(divided))
            label = labels_of(options)
            for _ in range(5):
                wanted = expected.step(X[every], label[every])
                found = session.step(X[mine], label[mine])
                assert found.loss == pytest.approx(wanted.loss, abs=1e-6), name
                assert found.grad_norm == pytest.approx(wanted.grad_norm, abs=1e-6), name
                assert (found.step, found.lr) == (wanted.step, wanted.lr), name
            assert_same(session, expected)
            moments = session.optimizer_state()
            for key, value in expected.optimizer_state().items():
                np.testing.assert_allclose(np.asarray(moments[key]), value, atol=1e-6, err_msg=key)


def have_parts_or_no_rows(rank):
    options = CASES["adamw"]
    expected, session = alone(**options), together(**options)
    for divided in ((4, 0), (0, 4), (3, 1)):
        mine = rows_of(rank, *divided)
        wanted = expected.step(X[:4], Y[:4])
        assert session.step(X[mine], Y[mine]).loss == pytest.approx(wanted.loss, abs=1e-6)
        assert_same(session, expected)
    with pytest.raises(steep.DataError, match="no rows"):
        session.step(X[:0], Y[:0])
    ignoring = alone(**CASES["ignored labels"]), together(**CASES["ignored labels"])
    wanted = ignoring[0].step(X[:8], IGNORED[:8])
    mine = rows_of(rank, 2, 6)  # no label of rank 0 counts
    assert ignoring[1].step(X[mine], IGNORED[mine]).loss == pytest.approx(wanted.loss, abs=1e-6)
    assert_same(ignoring[1], ignoring[0])
    # parts: four of rank 0, two of rank 1
    wanted = expected.step(X[:12], Y[:12])
    for i in range(*((0, 8, 2) if rank == 0 else (8, 12, 2))):
        session.step(X[i : i + 2], Y[i : i + 2], accumulate=True)
    with pytest.raises(steep.DataError, match="wait to be applied"):
        session.step(X[:4], Y[:4])
    assert session.apply_gradients().loss == pytest.approx(wanted.loss, abs=1e-6)
    assert_same(session, expected)


class Unread:
    """Labels whose reader fails."""

    def __dlpack__(self):
        raise KeyError("no such column")


def fail_together(rank):
    options = CASES["classes"]
    expected, session = alone(**options), together(**options)
    mine = rows_of(rank, 8, 8)
    wrong = [
        (steep.DataError, (X[mine], np.full(8, 7) if rank == 1 else CLASSES[mine])),
        (steep.ShapeError, (X[mine, :2] if rank == 1 else X[mine], CLASSES[mine])),
        (steep.DataError, (X[mine] * (np.nan if rank == 1 else 1), CLASSES[mine])),
        (steep.DataError, (object() if rank == 1 else X[mine], CLASSES[mine])),
        (steep.DataError, (X[mine], Unread() if rank == 1 else CLASSES[mine])),
    ]
    before = session.run_count
    for kind, fed in wrong:
        with pytest.raises(kind) as raised:
            session.step(*fed)
        if rank == 0:
            assert raised.value.node == "rank 1", raised.value
            assert "no weight was changed" in raised.value.what
        assert session.accumulated == 0 and session.run_count == before
    assert "no such column" in str(raised.value)  # the last one's, on all
    expected.step(X, CLASSES)
    session.step(X[mine], CLASSES[mine])
    assert_same(session, expected)
    session.lr = 0.5 + rank
    with pytest.raises(steep.DataError, match="update differently") as raised:
        session.step(X[mine], CLASSES[mine])
    assert raised.value.node == "rank 1" and "1.5" in raised.value.received
    session.lr = 0.5
    session.step_count = 1 + rank
    with pytest.raises(steep.DataError, match="different numbers of steps"):
        session.step(X[mine], CLASSES[mine])
    session.step_count = 1
    expected.step(X, CLASSES)
    session.step(X[mine], CLASSES[mine])
    assert_same(session, expected)
    with pytest.raises(steep.ProviderError, match="different calls"):
        if rank == 0:
            session.step(X[mine], CLASSES[mine], accumulate=True)
            session.apply_gradients()
        else:
            session.step(X[mine], CLASSES[mine], accumulate=True)
            session.drop_gradients()
            session.step(X[mine], CLASSES[mine])


def tell_differences(rank):
    fed = X[:4], Y[:4]
    options = {"loss": "mse", "optimizer": "sgd"}
    different = {
        "model": lambda: together(model("Tanh" if rank == 0 else "Sigmoid"), **options),
        "option clip_norm": lambda: together(**options, clip_norm=float(rank)),
        "option momentum": lambda: together(**options, momentum=0.9 * rank),
    }
    for what, make in different.items():
        with pytest.raises(steep.ModelError, match="same model") as raised:
            make().step(*fed)
        assert raised.value.node == f"rank 1: {what}"


def divide_states(rank):
    """The optimizer's states, by the exchanges of torch.distributed."""
    options = {"loss": "mse", "lr": 0.01, "clip_norm": 0.1, "grad_norm": True}
    mine = rows_of(rank, 13, 3)
    for zero in (1, 2):
        expected, session = alone(**options), together(**options, zero=zero)
        for _ in range(5):
            wanted, found = expected.step(X, Y), session.step(label=Y[mine], x=X[mine])
            assert found.loss == pytest.approx(wanted.loss, abs=1e-6)
            assert found.grad_norm == pytest.approx(wanted.grad_norm, abs=1e-6)
        assert_same(session, expected)
        kept = {name.rpartition("/")[2] for name in session.optimizer_state()}
        assert kept == {("w1", "w2")[rank]} == set(session.held_parameters)
        summed = session.accumulated_gradients().sums
        assert summed.keys() == (kept if zero == 2 else {"w1", "w2"})
    for wrong in ([X[mine], Y[mine][:-1]], [X[mine] * np.nan, Y[mine]]):  # while others send
        fed = wrong if rank == 1 else [X[mine], Y[mine]]
        with pytest.raises(steep.Error) as raised:
            session.step(*fed, accumulate=True)
        assert raised.value.node == "rank 1" or rank == 1
    session.step(X[mine], Y[mine])
    with pytest.raises(steep.ModelError) as raised:
        together(**options, zero=3)
    assert raised.value.node == "zero"
    with pytest.raises(steep.DataError, match="given by name"):
        session.step(x=X[mine], labels=Y[mine])


def exchange_in_half_the_bytes(rank):
    """Gradients in bfloat16: near those of one process, and the same weights on all."""
    mine = rows_of(rank, 13, 3)
    for zero in (0, 1, 2):
        expected = alone(**CASES["sgd"])
        session = together(**CASES["sgd"], zero=zero, wire_precision="bfloat16")
        for _ in range(5):
            expected.step(X, Y)
            session.step(X[mine], Y[mine])
        assert_same(session, expected, tolerance=2e-3)
        with pytest.raises(AssertionError, match="Not equal"):
            assert_same(session, expected, tolerance=1e-7)
    with pytest.raises(steep.ModelError) as raised:
        together(loss="mse", wire_precision="float16")
    assert raised.value.node == "wire_precision"
    with pytest.raises(steep.ModelError, match="same model") as raised:
        session = together(loss="mse", wire_precision=("float32", "bfloat16")[rank])
        session.step(X[mine], Y[mine])
    assert raised.value.node == "rank 1: option wire_precision"


def draw_numbers_of_their_own(rank):
    made = onnx.parser.parse_model(DROPS)
    made.graph.initializer.append(onnx.numpy_helper.from_array(np.eye(4, dtype=np.float32), "w"))
    session = together(made, loss="mse", output="y", step_outputs=["dropped"], seed=7 + rank)
    fed = np.ones((64, 4), np.float32)
    for _ in range(2):
        result = session.step(fed, fed)
        dropped = torch.from_dlpack(result.outputs[0])
        every = [torch.empty(64, 4) for _ in range(2)]
        dist.all_gather(every, dropped.clone())
        assert not torch.equal(*every)
    assert session.seed == 7  # of rank 0


def skip_together(rank):
    session = together(loss="mse", optimizer="sgd", lr=0.1, precision="fp16", loss_scale=2.0**16)
    mine = rows_of(rank, 8, 8)
    session.step(X[mine], Y[mine])
    before = {n: np.array(w) for n, w in session.weights().items()}
    result = session.step(X[mine] * (60000 if rank == 1 else 1), Y[mine])
    assert result.skipped and result.step == 1 and result.loss_scale == 2.0**16
    assert session.loss_scale == 2.0**15 and session.step_count == 1
    for name, weight in session.weights().items():
        np.testing.assert_array_equal(weight, before[name])
    result = session.step(X[mine], Y[mine])
    assert not result.skipped and result.step == 2 and result.loss_scale == 2.0**15


def keep_statistics_of_rank_0(rank):
    made = onnx.parser.parse_model(NORMALISES)
    session, first = together(made, loss="mse"), alone(made, loss="mse")
    for _ in range(2):
        session.step(X[rows_of(rank, 8, 8)], X[rows_of(rank, 8, 8)])
        first.step(X[:8], X[:8])
        np.testing.assert_allclose(
            np.asarray(session.state("mean")), np.asarray(first.state("mean")), atol=1e-6
        )
    kept = np.array(session.state("mean"))
    with pytest.raises(steep.ShapeError):
        session.step(X[:4, : 4 - rank], X[:4])
    np.testing.assert_array_equal(np.asarray(session.state("mean")), kept)


def run_all(rank, names):
    for name in names:
        globals()[name](rank)


def test_two_processes_equal_one():
    in_processes(2, run_all, ["equal_one_process", "have_parts_or_no_rows"])


def test_what_one_process_meets_all_are_told():
    works = [fail_together, tell_differences, divide_states, exchange_in_half_the_bytes]
    works += [draw_numbers_of_their_own, skip_together, keep_statistics_of_rank_0]
    in_processes(2, run_all, [w.__name__ for w in works])


def save(rank, folder):
    session = together(**CASES["adamw"], seed=3)
    for _ in range(3):
        session.step(X[rows_of(rank, 10, 6)], Y[rows_of(rank, 10, 6)])
    session.save_checkpoint(folder / f"by {rank}", '{"of": 2}')
    session.export_onnx(folder / f"by {rank}.onnx")
    session.save_artifact(folder / f"by {rank}.steep", (X[:2], Y[:2]))
    dist.barrier()
    assert sorted(f.name for f in folder.iterdir()) == ["by 0", "by 0.onnx", "by 0.steep"]


def resume(rank, folder):
    session, expected = together(**CASES["adamw"]), alone(**CASES["adamw"])
    for _ in range(5):
        expected.step(X, Y)
    assert json.loads(session.load_checkpoint(folder / "by 0")) == {"of": 2}
    for _ in range(2):
        session.step(X[rows_of(rank, 5, 10, 1)], Y[rows_of(rank, 5, 10, 1)])
    assert_same(session, expected)
    # loaded by rank 0 alone, the others receive it
    if rank == 0:
        session.load_checkpoint(folder / "by 0")
    for _ in range(2):
        result = session.step(X[rows_of(rank, 5, 10, 1)], Y[rows_of(rank, 5, 10, 1)])
    assert result.step == 5
    assert_same(session, expected)


def test_a_checkpoint_of_two_is_resumed_by_one_and_by_three(tmp_path):
    in_processes(2, save, tmp_path)
    expected, session = alone(**CASES["adamw"]), alone(**CASES["adamw"])
    for _ in range(5):
        expected.step(X, Y)
    session.load_checkpoint(tmp_path / "by 0")
    for _ in range(2):
        session.step(X, Y)
    for name, value in expected.weights().items():
        np.testing.assert_allclose(np.asarray(session.weights()[name]), value, rtol=0, atol=1e-6)
    in_processes(3, resume, tmp_path)


def save_shards(rank, folder):
    mine = rows_of(rank, 10, 6)
    for name, full in (("sharded", False), ("full", True)):
        session = together(**CASES["adamw"], zero=2, full_checkpoints=full)
        session.step(X[mine], Y[mine])
        session.save_checkpoint(folder / name, '{"of": 2}')
        with pytest.raises(steep.IoError, match="does not see the folder" if rank else "Rank 1"):
            sharded = together(**CASES["adamw"], zero=1)
            sharded.save_checkpoint(folder / f"of {rank}" / name)
    assert {f.name for f in (folder / "full").iterdir()} == {
        *("manifest.json", "model.safetensors", "optimizer.safetensors")
    }
    assert {f.name for f in (folder / "sharded").iterdir()} == {
        *("manifest.json", "model.safetensors"),
        *(f"optimizer-0000{i}-of-00002.safetensors" for i in (1, 2)),
    }


def load_shards(rank, folder):
    for name in ("sharded", "full"):
        whole, session = alone(**CASES["adamw"]), together(**CASES["adamw"], zero=1)
        for each in (whole, session):
            assert json.loads(each.load_checkpoint(folder / name)) == {"of": 2}
        moments = whole.optimizer_state()
        for key, value in session.optimizer_state().items():
            np.testing.assert_array_equal(np.asarray(value), moments[key])
        whole.step(X, Y)
        session.step(X[rows_of(rank, 5, 10, 1)], Y[rows_of(rank, 5, 10, 1)])
        assert_same(session, whole)


def test_shards_of_two_are_loaded_by_one_and_by_three(tmp_path):
    in_processes(2, save_shards, tmp_path)
    in_processes(3, load_shards, tmp_path)


def lose_a_process(rank):
    session = together(**CASES["sgd"])
    session.step(X, Y)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    before = {n: np.array(w) for n, w in session.weights().items()}
    start = time.monotonic()
    for _ in range(2):  # and once more, since the loop may go on
        with pytest.raises(steep.PeerLostError) as raised:
            session.step(X, Y)
        assert raised.value.remedy
    assert time.monotonic() - start < 10
    for name, weight in session.weights().items():
        np.testing.assert_array_equal(weight, before[name])
    os._exit(0)  # the group cannot be taken down in order


def test_a_killed_process_is_an_error_of_the_others():
    in_processes(2, lose_a_process, seconds=120, dies=(1,))


def test_without_a_launcher(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(steep.ProviderError) as raised:
        together(loss="mse")
    assert "torchrun --nproc-per-node 2" in raised.value.remedy
    assert "RANK" in raised.value.received
    with pytest.raises(steep.ProviderError, match="`parallel` is not supported"):
        steep.TrainingSession(model(), loss="mse", parallel="nccl")
    with pytest.raises(steep.ModelError, match="there is one only"):
        steep.TrainingSession(model(), loss="mse", zero=1)
    with pytest.raises(steep.ModelError, match="there is one only"):
        steep.TrainingSession(model(), loss="mse", wire_precision="bfloat16")
