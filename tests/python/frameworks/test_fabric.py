"""What a user of Lightning's Fabric does around an ORTModule, compared with it around PyTorch."""

import os

import pytest

torch = pytest.importorskip("torch")
lightning = pytest.importorskip("lightning")

from torch.nn import functional as F  # noqa: E402
from trained_by_frameworks import assert_close_state, loader, net, optimizer_of  # noqa: E402
from two_processes import in_two_processes  # noqa: E402

from steep import ORTModule  # noqa: E402

PRECISIONS = {"32": "32-true", "bf16": "bf16-mixed"}


def trained(fabric, model, precision, clip):
    """Two batches a step, but for the last; return the wrapped module and its optimizer."""
    wrapped, optimizer = fabric.setup(model, optimizer_of(model, precision))
    train(fabric, wrapped, optimizer, clip)
    return wrapped, optimizer


def train(fabric, wrapped, optimizer, clip):
    batches = list(fabric.setup_dataloaders(loader()))[:5]
    for i, (x, y) in enumerate(batches):
        accumulating = i % 2 == 0 and i + 1 < len(batches)
        with fabric.no_backward_sync(wrapped, enabled=accumulating):
            fabric.backward(F.mse_loss(wrapped(x), y))
        if accumulating:
            continue
        fabric.clip_gradients(wrapped, optimizer, **clip)
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("clip", [{"max_norm": 0.5}, {"clip_val": 0.01}], ids=min)
def test_accumulates_clips_saves_and_loads(tmp_path, precision, clip):
    fabric = lightning.Fabric(accelerator="cpu", devices=1, precision=PRECISIONS[precision])

    def twice(model, again, file):
        """Trained, saved, loaded into another module by a new optimizer, and trained on."""
        wrapped, optimizer = trained(fabric, model, precision, clip)
        fabric.save(file, {"model": wrapped, "optimizer": optimizer, "epoch": 1})
        other, of_other = fabric.setup(again, optimizer_of(again, precision))
        rest = fabric.load(file, {"model": other, "optimizer": of_other})
        assert rest == {"epoch": 1}
        torch.testing.assert_close(other.state_dict(), wrapped.state_dict(), rtol=0, atol=0)
        train(fabric, other, of_other, clip)
        return other

    ours = [ORTModule(net()) for _ in range(2)]
    found = twice(*ours, tmp_path / "ours.ckpt")
    expected = twice(net(), net(), tmp_path / "theirs.ckpt")
    assert_close_state(found.state_dict(), expected.state_dict(), precision)
    for model in ours:
        assert model.report().whole and model.report().graphs
    raw = net()
    kept = torch.load(tmp_path / "ours.ckpt", weights_only=True)
    raw.load_state_dict(kept["model"])  # under the module's own names


def test_results_have_the_dtypes_that_fabric_gives():
    fabric = lightning.Fabric(accelerator="cpu", devices=1, precision="bf16-mixed")
    x = torch.randn(4, 6)
    for model in (ORTModule(net()), net()):
        wrapped = fabric.setup_module(model)
        with fabric.autocast():
            inner = model(x)
        assert wrapped(x).dtype == torch.float32 and inner.dtype == torch.bfloat16


def on_two_processes(rank):
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "GROUP_RANK": "0"}
    os.environ |= {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none"}
    for precision, kind in PRECISIONS.items():
        results = []
        for model in (ORTModule(net()), net()):
            fabric = lightning.Fabric(accelerator="cpu", devices=2, strategy="ddp", precision=kind)
            fabric.launch()
            assert fabric.world_size == 2 and fabric.global_rank == rank
            wrapped, _ = trained(fabric, model, precision, {"max_norm": 0.5})
            results.append(wrapped.state_dict())
            mean = fabric.all_reduce(model[0].weight.detach())
            torch.testing.assert_close(mean, model[0].weight.detach(), rtol=0, atol=1e-7)
            if isinstance(model, ORTModule):
                assert model.report().whole and model.report().graphs
        assert_close_state(*results, precision)


@pytest.mark.matrix
def test_two_processes():
    in_two_processes(on_two_processes)
