"""``steep.trainer(memory_limit=)``: steps that fit, with the bits of those without a limit."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
from limited_models import falls, figures

import steep

torch = pytest.importorskip("torch")
nn = torch.nn


def transformer() -> Any:
    return nn.TransformerEncoderLayer(32, 2, 64, batch_first=True)


def made(limit: str | int, model_of: Callable[[], Any] = transformer) -> tuple[Any, Any, Any]:
    """A trainer, of a transformer with dropout unless told, and a batch."""
    torch.manual_seed(0)
    model = model_of()
    batch = torch.randn(4, 24, 32), torch.randn(4, 24, 32)
    trainer = steep.trainer(
        model, nn.MSELoss(), torch.optim.AdamW(model.parameters()), seed=1, memory_limit=limit
    )
    return trainer, model, batch


def trained(limit: str | int) -> tuple[list[Any], Any]:
    trainer, model, batch = made(limit)
    losses = [trainer.step(*batch)[0] for _ in range(3)]
    state = copy.deepcopy([*model.state_dict().values(), *trainer.state_dict().values()])
    return [*losses, *state], trainer


def test_trainers_keep_the_limit_and_the_bits() -> None:
    trainer, _, batch = made(1)
    with pytest.raises(steep.OutOfMemoryError, match="No plan fits the memory limit") as caught:
        trainer.step(*batch)
    _, least, plain = figures(caught.value)
    assert least < 0.95 * plain
    wanted, _ = trained("")
    planned = []
    for limit in ((plain + least) // 2, "least"):
        found, trainer = trained(limit)
        assert all(torch.equal(a, b) for a, b in zip(wanted, found, strict=True))
        report = trainer.memory_report()
        assert trainer.plan().run_bytes == report.planned.bytes
        planned.append(report.planned.bytes)
    assert falls(planned)
    assert planned[0] <= plain and planned[1] == least


def test_evaluation_is_within_the_limit_too() -> None:
    def layers() -> Any:
        return nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 32))

    trainer, _, batch = made("1MiB", layers)
    assert trainer.step(*batch)[0] > 0
    with pytest.raises(steep.OutOfMemoryError, match="No plan fits the memory limit"):
        trainer.evaluate(*(t.repeat(64, 1, 1) for t in batch))


@pytest.mark.parametrize("text", ["2 GB", "0", -1])
def test_what_is_no_size_is_refused_at_once(text: str | int) -> None:
    with pytest.raises(steep.ModelError, match="memory limit cannot be read"):
        made(text)
