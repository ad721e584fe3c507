"""States in a file (``offload_folder``): the results are the same bits, and memory is less."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from limited_models import MODELS
from session_models import linear

import steep

OPTIONS = {
    "adamw": {"optimizer": "adamw", "lr": 1e-2},
    "averages": {"optimizer": "adam", "ema_decay": 0.9},
    "adagrad": {"optimizer": "adagrad", "initial_accumulator_value": 0.5},
    "none": {"optimizer": "sgd"},  # no moments: nothing to move
}
X = np.random.default_rng(0).normal(size=(16, 256)).astype(np.float32)
Y = np.random.default_rng(1).normal(size=(16, 64)).astype(np.float32)


def net() -> bytes:
    return bytes(linear(features=256, outputs=64).SerializeToString())


def states(session: steep.TrainingSession) -> dict[str, bytes]:
    names = [*session.parameter_names, *session.optimizer_state_names, *session.statistic_names]
    return {name: np.array(session.state(name)).tobytes() for name in names}


def is_mapped(folder: Path) -> bool:
    """Whether this process has mapped a deleted file of the folder."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return any(str(folder) in line and "deleted" in line for line in lines)


@pytest.mark.parametrize("offload", ["moments", "all"])
@pytest.mark.parametrize("options", OPTIONS)
def test_results_are_the_same_bits(options: str, offload: str, tmp_path: Path) -> None:
    def trained(**where: Any) -> dict[str, bytes]:
        session = steep.TrainingSession(net(), loss="mse", **OPTIONS[options], **where)
        for _ in range(3):
            session.step(X, Y)
        return states(session)

    assert trained() == trained(offload_folder=tmp_path, offload=offload)


@pytest.mark.parametrize("name", MODELS)
def test_models_with_dropout_and_statistics(name: str, tmp_path: Path) -> None:
    def trained(**where: Any) -> dict[str, bytes]:
        model, arrays = MODELS[name]()
        session = steep.TrainingSession(
            model.SerializeToString(), loss="mse", optimizer="adam", seed=3, **where
        )
        for _ in range(2):
            session.step(*arrays)
        return states(session)

    assert trained() == trained(offload_folder=tmp_path, offload="all")


def test_the_file_has_no_name_and_ends_with_the_session(tmp_path: Path) -> None:
    session = steep.TrainingSession(net(), loss="mse", optimizer="adam", offload_folder=tmp_path)
    session.step(X, Y)
    assert not list(tmp_path.iterdir())
    assert is_mapped(tmp_path)
    del session
    assert not is_mapped(tmp_path)


def test_the_limit_and_the_peak_are_of_memory(tmp_path: Path) -> None:
    plain = steep.TrainingSession(net(), loss="mse", optimizer="adam")
    moments = plain.plan(X, Y).optimizer_bytes
    least = plain.plan(X, Y).run_bytes - moments
    with pytest.raises(steep.OutOfMemoryError):
        steep.TrainingSession(net(), loss="mse", optimizer="adam", memory_limit=least).step(X, Y)
    session = steep.TrainingSession(
        net(), loss="mse", optimizer="adam", memory_limit=least, offload_folder=tmp_path
    )
    session.step(X, Y)
    plan, report = session.plan(X, Y), session.memory_report(X, Y)
    assert plan.run_bytes == report.planned.bytes == least
    assert plan.offloaded_bytes == plan.optimizer_bytes == moments
    assert plan.peak_bytes == plain.plan(X, Y).peak_bytes - moments
    assert session.peak_bytes <= least
    assert "on disk" in str(plan)


def test_checkpoints_go_from_one_to_the_other(tmp_path: Path) -> None:
    def session(**where: Any) -> steep.TrainingSession:
        return steep.TrainingSession(net(), loss="mse", optimizer="adam", **where)

    first, second = session(offload_folder=tmp_path, offload="all"), session()
    first.step(X, Y)
    first.save_checkpoint(tmp_path / "checkpoint")
    second.load_checkpoint(tmp_path / "checkpoint")
    third = session(offload_folder=tmp_path)
    third.load_checkpoint(tmp_path / "checkpoint")
    for each in (first, second, third):
        each.step(X, Y)
    assert states(first) == states(second) == states(third)


def test_arrays_of_the_caller_stay_where_they_are(tmp_path: Path) -> None:
    names = steep.TrainingSession(net(), loss="mse").parameter_names
    weight = np.ones((256, 64), np.float32)
    name = next(n for n in names if n.lower().startswith("w"))
    session = steep.TrainingSession(
        net(), loss="mse", weights={name: weight}, offload_folder=tmp_path, offload="all"
    )
    session.step(X, Y)
    assert (weight != 1).any()
    assert np.array(session.state(name)).tobytes() == weight.tobytes()


def test_a_forked_process_cannot_use_it(tmp_path: Path) -> None:
    session = steep.TrainingSession(net(), loss="mse", optimizer="adam", offload_folder=tmp_path)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            session.step(X, Y)
        except steep.ProviderError as error:
            code = 0 if "forked" in str(error) else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    session.step(X, Y)


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    def session(**where: Any) -> None:
        steep.TrainingSession(net(), loss="mse", optimizer="adam", **where)

    with pytest.raises(steep.IoError, match="missing"):
        session(offload_folder=tmp_path / "missing")
    with pytest.raises(steep.ModelError, match="moments or all"):
        session(offload_folder=tmp_path, offload="weights")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, before[1]))
    try:
        with pytest.raises(steep.IoError, match="reserve space in"):
            session(offload_folder=tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_trainer_keeps_moments_in_the_file(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    def trained(**where: Any) -> tuple[list[Any], Any]:
        torch.manual_seed(0)
        model = torch.nn.Linear(256, 64)
        optimizer = torch.optim.AdamW(model.parameters())
        trainer = steep.trainer(model, torch.nn.MSELoss(), optimizer, **where)
        losses = [float(trainer.step(torch.from_numpy(X), torch.from_numpy(Y))[0])]
        assert is_mapped(tmp_path) == bool(where)
        losses.append(float(trainer.step(torch.from_numpy(X), torch.from_numpy(Y))[0]))
        return losses, [p.detach().clone() for p in model.parameters()]

    (plain, weights), (offloaded, others) = trained(), trained(offload_folder=tmp_path)
    assert plain == offloaded
    assert all(torch.equal(a, b) for a, b in zip(weights, others, strict=True))


@pytest.mark.parametrize("planned", [{}, {"memory_limit": "least"}])
def test_what_is_on_disk_is_within_the_bytes_of_a_step(
    planned: dict[str, str], tmp_path: Path
) -> None:
    limits = steep.Limits(max_bytes=150 << 10)  # weights take 64 KiB, moments 128 KiB

    def step(**where: Any) -> None:
        options = {"optimizer": "adam", "limits": limits, **planned}
        steep.TrainingSession(net(), loss="mse", **options, **where).step(X[:1], Y[:1])

    with pytest.raises(steep.OutOfMemoryError, match="parameters and moments"):
        step()
    step(offload_folder=tmp_path, offload="moments")
