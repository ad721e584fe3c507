"""Accelerate, Lightning and PEFT around an ORTModule, compared with them around PyTorch alone."""

import re

import pytest

torch = pytest.importorskip("torch")

from compiled_graphs import compiled_graph  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from trained_by_frameworks import (  # noqa: E402
    assert_close_state,
    assert_same_state,
    loader,
    net,
    optimizer_of,
)

from steep import ORTModule  # noqa: E402


@pytest.mark.parametrize("precision", ["32", "bf16"])
def test_accelerate(tmp_path, precision):
    accelerate = pytest.importorskip("accelerate")

    def trained(model, folder):
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
        accelerator = accelerate.Accelerator(
            cpu=True,
            mixed_precision="no" if precision == "32" else precision,
            gradient_accumulation_steps=2,
        )
        schedule = torch.optim.lr_scheduler.StepLR(optimizer := optimizer_of(model, precision), 2)
        wrapped, optimizer, data, schedule = accelerator.prepare(
            model, optimizer, loader(), schedule
        )
        for x, y in data:
            with accelerator.accumulate(wrapped):
                accelerator.backward(F.mse_loss(wrapped(x), y))
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(wrapped.parameters(), 0.5)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
        accelerator.save_state(folder)
        weights = {n: t.clone() for n, t in model.state_dict().items()}
        with torch.no_grad():
            [p.zero_() for p in model.parameters()]
        accelerator.load_state(folder)
        torch.testing.assert_close(dict(model.state_dict()), weights, rtol=0, atol=0)
        accelerator.save_model(wrapped, folder / "model")
        assert accelerator.unwrap_model(wrapped) is model
        return weights

    model = ORTModule(net())
    found, expected = trained(model, tmp_path / "ours"), trained(net(), tmp_path / "theirs")
    assert_close_state(found, expected, precision)
    assert model.report().whole and model.report().graphs


@pytest.mark.parametrize("precision", ["32", "bf16"])
def test_lightning_module(tmp_path, precision):
    lightning = pytest.importorskip("lightning")

    class Task(lightning.LightningModule):
        def __init__(self, network):
            super().__init__()
            self.network = network

        def training_step(self, batch, _):
            x, y = batch
            loss = F.mse_loss(self.network(x), y)
            self.log("loss", loss)
            return loss

        def validation_step(self, batch, _):
            x, y = batch
            self.log("checked", F.mse_loss(self.network(x), y))

        def configure_optimizers(self):
            return optimizer_of(self, precision)

    def trained(network, folder):
        task = Task(network)
        trainer = lightning.Trainer(
            accelerator="cpu", max_epochs=1, precision="32-true" if precision == "32" else
            "bf16-mixed", gradient_clip_val=0.5, default_root_dir=folder, logger=False,
            enable_progress_bar=False,
        )  # fmt: skip
        trainer.fit(task, loader(), loader())
        trainer.save_checkpoint(folder / "last.ckpt")
        return task, float(trainer.callback_metrics["checked"])

    model = ORTModule(net())
    found, checked = trained(model, tmp_path / "ours")
    expected, theirs = trained(net(), tmp_path / "theirs")
    assert_close_state(found.state_dict(), expected.state_dict(), precision)
    assert checked == pytest.approx(theirs, rel=1e-4 if precision == "32" else 1e-2)
    assert model.report().whole and model.report().graphs
    again = Task.load_from_checkpoint(tmp_path / "ours" / "last.ckpt", network=net())
    assert_same_state(again, found)


@pytest.mark.parametrize("precision", ["32", "bf16"])
def test_lightning_fabric(precision):
    lightning = pytest.importorskip("lightning")

    def trained(model):
        kind = "32-true" if precision == "32" else "bf16-mixed"
        fabric = lightning.Fabric(accelerator="cpu", devices=1, precision=kind)
        wrapped, optimizer = fabric.setup(model, optimizer_of(model, precision))
        for x, y in fabric.setup_dataloaders(loader()):
            fabric.backward(F.mse_loss(wrapped(x), y))
            fabric.clip_gradients(wrapped, optimizer, max_norm=0.5)
            optimizer.step()
            optimizer.zero_grad()
        return wrapped

    model = ORTModule(net())
    found, expected = trained(model), trained(net())
    assert_close_state(found.state_dict(), expected.state_dict(), precision)
    assert model.report().whole and model.report().graphs


# --- PEFT -----------------------------------------------------------------------------------------


def lora(peft, target_modules):
    torch.manual_seed(2)
    return peft.LoraConfig(
        r=2, lora_alpha=4, target_modules=target_modules, init_lora_weights=False
    )  # fmt: skip


def fit(model):
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 0.01)
    for x, y in loader():
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def test_lora_in_both_orders_and_merged():
    peft = pytest.importorskip("peft")

    def adapted(module):
        config = lora(peft, ["0", "3"])
        torch.manual_seed(3)
        return peft.get_peft_model(module, config)

    inner = ORTModule(net())
    x = next(iter(loader()))[0]
    expected = fit(adapted(net()))
    for name, model in {
        "adapters around": adapted(inner),
        "adapters within": ORTModule(adapted(net())),
    }.items():
        assert_same_state(fit(model), expected)
        frozen = [p for n, p in model.named_parameters() if "lora" not in n]
        assert frozen and all(p.grad is None for p in frozen), name
        wrapped = inner if name == "adapters around" else model
        assert wrapped.report().whole and wrapped.report().graphs
        wanted = len(compiled_graph(wrapped).engine_graph.wanted_inputs)
        assert wanted == 4, name  # two factors of two layers: no gradients of frozen weights
        with model.disable_adapter():
            torch.testing.assert_close(model(x), net()(x))
        torch.testing.assert_close(model(x), expected(x), rtol=1e-4, atol=1e-5)
    merged = {
        "around": adapted(inner),
        "within": adapted(net()),
    }
    for model in merged.values():
        fit(model)
    plain = fit(adapted(net())).merge_and_unload()
    around = merged["around"].merge_and_unload()
    within = ORTModule(merged["within"].merge_and_unload())
    for model in (around, within):
        assert isinstance(model, ORTModule)
        assert_same_state(model, plain)
        torch.testing.assert_close(model(x), plain(x), rtol=1e-4, atol=1e-5)


def test_backward_stops_at_the_lowest_trained_node():
    peft = pytest.importorskip("peft")

    def products_of_backward(depth, trained):
        layers = [m for _ in range(depth) for m in (nn.Linear(6, 6, bias=False), nn.Tanh())]
        config = lora(peft, [str(2 * i) for i in trained])
        model = ORTModule(peft.get_peft_model(nn.Sequential(*layers), config))
        model(torch.randn(4, 6)).sum().backward()
        graph = compiled_graph(model)
        counts = [
            len(re.findall(r"\b(?:MatMul|Gemm|FusedMatMul)\b", graph.dump(gradients)))
            for gradients in (True, False)
        ]
        return counts[0] - counts[1]

    deep = products_of_backward(6, [5])
    assert deep == products_of_backward(2, [1])  # what lies below costs nothing
    assert deep < products_of_backward(6, [0])
