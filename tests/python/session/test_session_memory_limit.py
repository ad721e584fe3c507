"""``memory_limit`` of sessions: steps that fit, with the bits of those without a limit."""

import logging
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from limited_models import MODELS, budgets, falls, figures

import steep

STEPS = 3
BAD_TEXTS = ["2 GB", "0", 0, -1, "-1", "8Q", "GiB", "1.5G", "2gib", "most", "least "]


def session_of(name: str, limit: str | int = "") -> tuple[Any, Any]:
    model, arrays = MODELS[name]()
    session = steep.TrainingSession(
        model.SerializeToString(), loss="mse", optimizer="adam", seed=3, memory_limit=limit
    )
    return session, arrays


def trained(name: str, limit: str | int = "") -> tuple[list[Any], Any]:
    """Losses, weights, moments (of gradients) and statistics of a few steps, and the session."""
    session, arrays = session_of(name, limit)
    values: list[Any] = [session.step(*arrays).loss for _ in range(STEPS)]
    names = [*session.parameter_names, *session.optimizer_state_names, *session.statistic_names]
    values += [np.array(session.state(k)) for k in names]
    return values, session


def bounds(name: str) -> tuple[int, int]:
    session, arrays = session_of(name, 1)
    with pytest.raises(steep.OutOfMemoryError, match="No plan fits the memory limit") as caught:
        session.step(*arrays)
    limit, least, plain = figures(caught.value)
    assert limit == 1
    return least, plain


def same_bits(a: list[Any], b: list[Any]) -> bool:
    pairs = zip(a, b, strict=True)
    return all(np.asarray(x).tobytes() == np.asarray(y).tobytes() for x, y in pairs)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in ("attention", "layers") else pytest.mark.matrix)
        for name in MODELS
    ],
)
def test_every_limit_is_kept_and_changes_no_bit(name: str) -> None:
    least, plain = bounds(name)
    assert least < 0.95 * plain
    wanted, _ = trained(name)
    _, arrays = MODELS[name]()
    planned, times = [], []
    for limit in budgets(least, plain, 20):
        found, session = trained(name, limit)
        assert same_bits(wanted, found)
        plan, report = session.plan(*arrays), session.memory_report(*arrays)
        assert plan.memory_limit == report.limit == limit
        assert plan.run_bytes == report.planned.bytes <= limit
        assert session.peak_bytes <= 1.02 * limit
        planned.append(plan.run_bytes)
        times.append(-report.planned.ms)
    assert falls(planned) and falls(times)
    assert planned[-1] == least < planned[0]


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_within_the_limit_too(name: str) -> None:
    """They are results, of which a step holds only some at a time."""
    session, arrays = session_of(name, 1)
    with pytest.raises(steep.OutOfMemoryError, match="No plan fits the memory limit") as caught:
        session.gradients(*arrays)
    _, least, plain = figures(caught.value)
    wanted_loss, wanted = session_of(name)[0].gradients(*arrays)
    for limit in budgets(least, plain, 3):
        loss, found = session_of(name, limit)[0].gradients(*arrays)
        assert loss == wanted_loss
        assert same_bits([*wanted.values()], [*found.values()])
    with pytest.raises(steep.OutOfMemoryError):
        session_of(name, least - 1)[0].gradients(*arrays)


def test_below_the_least_is_an_error_that_says_what_would_do() -> None:
    least, plain = bounds("layers")
    session, arrays = session_of("layers", least - 1)
    with pytest.raises(steep.OutOfMemoryError) as caught:
        session.step(*arrays)
    assert figures(caught.value) == (least - 1, least, plain)
    assert caught.value.remedy is not None
    assert "a memory limit of at least that, a smaller batch" in caught.value.remedy
    assert session.step_count == 0
    half = [a[:128] for a in arrays]
    assert session.step(*half).step == 1


def test_the_least_is_a_limit_of_its_own() -> None:
    least, _ = bounds("layers")
    wanted, _ = trained("layers")
    found, session = trained("layers", "least")
    _, arrays = MODELS["layers"]()
    assert same_bits(wanted, found)
    assert session.plan(*arrays).run_bytes == least
    report = session.memory_report(*arrays)
    assert report.limit == 0 and report.planned.bytes == least


def test_accumulated_gradients_count() -> None:
    """A step that was planned before there were sums of gradients makes room for them."""
    least, _ = bounds("layers")
    session, arrays = session_of("layers", least)
    session.step(*arrays)
    sums = sum(np.array(w).nbytes for w in session.weights().values())
    half = [a[:64] for a in arrays]
    session.step(*half, accumulate=True)
    session.apply_gradients()
    with pytest.raises(steep.OutOfMemoryError) as caught:
        session.step(*arrays)
    assert figures(caught.value)[1] == least + sums
    assert session.step(*half).step == 3


def test_accumulation_within_a_limit_changes_no_bit() -> None:
    def parts(limit: str | int) -> list[Any]:
        session, arrays = session_of("layers", limit)
        for _ in range(2):
            for half in (slice(0, 128), slice(128, 256)):
                session.step(*[a[half] for a in arrays], accumulate=True)
            session.apply_gradients()
        return [np.array(session.state(k)) for k in session.parameter_names]

    assert same_bits(parts(""), parts("least"))


def test_a_limit_above_the_plan_changes_nothing() -> None:
    dumps = []
    for limit in ("", "2GiB", 1 << 40):
        session, arrays = session_of("layers", limit)
        dumps.append(session.dump(*arrays))
    assert dumps[0] == dumps[1] == dumps[2]


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.parametrize("limit", ["", "1GiB"])
def test_an_export_frees_the_arena_within_a_limit(limit: str, tmp_path: Path) -> None:
    model, arrays = MODELS["layers"]()
    arrays = tuple(np.repeat(a, 128, axis=0) for a in arrays)

    def session() -> steep.TrainingSession:
        return steep.TrainingSession(model.SerializeToString(), loss="mse", memory_limit=limit)

    one, other = session(), session()
    one.step(*arrays), other.step(*arrays)
    arena, before = one.plan(*arrays).arena_bytes, resident()
    assert arena > 20 << 20
    one.export_onnx(tmp_path / "trained.onnx")
    freed = before - resident()
    assert (freed > arena // 2) == bool(limit)
    assert one.step(*arrays).loss == other.step(*arrays).loss


@pytest.mark.parametrize("text", BAD_TEXTS)
def test_what_is_no_size_is_refused(text: str | int) -> None:
    with pytest.raises(steep.ModelError, match="memory limit cannot be read"):
        session_of("layers", text)


@pytest.mark.parametrize("what", [2.5, True, None, b"2G"])
def test_a_limit_is_text_or_a_number(what: Any) -> None:
    with pytest.raises(TypeError, match="memory_limit"):
        session_of("layers", what)


def test_what_is_planned_is_logged_before_the_first_step(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "steep")
    session, arrays = session_of("layers", "1GiB")
    session.step(*arrays)
    (said,) = [r.getMessage() for r in caplog.records if "step planned" in r.getMessage()]
    assert said.endswith(", within the memory limit of 1.0 GiB")


# --- the report -----------------------------------------------------------------------------------


def test_the_report_lists_what_can_run_again() -> None:
    session, arrays = session_of("layers")
    report = session.memory_report(*arrays)
    assert report.limit == 0 and report.planned.bytes == report.plain.bytes
    by_name = {c.node: c for c in report.choices}
    assert {f"product{i}" for i in range(6)} <= {*by_name}
    assert not any(c.again for c in report.choices)
    product = by_name["product3"]
    assert product.bytes == 256 * 48 * 4
    assert product.op in ("MatMul", "Gemm")
    assert all(c.ms > 0 for c in report.choices)
    assert falls([p.bytes for p in report.plans]) and falls([-p.ms for p in report.plans])
    assert report.plans[-1].bytes < report.plain.bytes
    # forward order, as the names are numbered
    order = [c.node for c in report.choices if c.node.startswith("product")]
    assert order == sorted(order)


def test_a_plan_of_the_report_can_be_asked_for() -> None:
    session, arrays = session_of("layers")
    for plan in session.memory_report(*arrays).plans[1:4]:
        limited, _ = session_of("layers", plan.bytes)
        report = limited.memory_report(*arrays)
        assert report.planned.bytes == limited.plan(*arrays).run_bytes == plan.bytes
        assert report.planned.ms == plan.ms
        assert any(c.again for c in report.choices)
        assert limited.dump(*arrays).count("/again") > 0


def test_the_report_as_text() -> None:
    session, arrays = session_of("layers", "least")
    report = session.memory_report(*arrays)
    lines = str(report).splitlines()
    assert lines[0].split() == ["node", "op", "bytes", "to", "compute", "in", "backward"]
    again = [line for line in lines[1:] if line.endswith(" ms  computed again")]
    assert len(again) == sum(c.again for c in report.choices) > 0
    (peak,) = [line for line in lines if line.startswith("planned peak")]
    assert f" {report.planned.bytes} bytes, " in peak
    assert f"{len(again)} of {len(report.choices)} nodes" in peak


def test_below_the_least_there_is_no_report() -> None:
    session, arrays = session_of("layers", 1)
    with pytest.raises(steep.OutOfMemoryError, match="No plan fits"):
        session.memory_report(*arrays)


def test_an_artifact_holds_no_limit() -> None:
    session, arrays = session_of("layers", "1GiB")
    with pytest.raises(steep.ModelError, match="cannot hold a memory limit"):
        session.save_artifact("never_written", arrays)


# --- GradientSession ------------------------------------------------------------------------------


def gradients_of(name: str, limit: str | int) -> list[Any]:
    model, (x, dy) = MODELS[name]()
    (result,) = [o.name for o in model.graph.output]
    weight = next(i.name for i in model.graph.initializer if i.name.startswith(("w", "q")))
    session = steep.GradientSession(
        model.SerializeToString(), wrt=["x", weight], outputs=[result], memory_limit=limit, seed=5
    )
    values: list[Any] = []
    for _ in range(STEPS):
        outputs, run = session.forward([x])
        found = session.backward(run, {result: dy})
        values += [np.array(outputs[0]), *(np.array(found[k]) for k in ("x", weight))]
    return values


@pytest.mark.parametrize("name", MODELS)
def test_gradient_sessions(name: str) -> None:
    with pytest.raises(steep.OutOfMemoryError) as caught:
        gradients_of(name, 1)
    _, least, plain = figures(caught.value)
    assert least < plain
    wanted = gradients_of(name, "")
    for limit in budgets(least, plain, 3):
        assert same_bits(wanted, gradients_of(name, limit))
    with pytest.raises(steep.OutOfMemoryError):
        gradients_of(name, least - 1)


def test_a_gradient_session_refuses_what_is_no_size() -> None:
    with pytest.raises(steep.ModelError, match="memory limit cannot be read"):
        gradients_of("layers", "2 GB")
