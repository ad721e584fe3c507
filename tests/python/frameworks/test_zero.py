"""DeepSpeed's ZeRO and FairScale's sharded optimizers around an ORTModule, at two processes."""

import importlib.util
import os

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from two_processes import in_two_processes  # noqa: E402

from steep import ORTModule  # noqa: E402


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.first, self.norm = nn.Linear(8, 16), nn.LayerNorm(16)
        self.middle, self.last = nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x):
        x = F.gelu(self.norm(self.first(self.frozen(x))))
        return self.last(torch.tanh(self.middle(x)))


def rows(step, rank=None):
    """Of one process, or of both."""
    generator = torch.Generator().manual_seed(step)
    x, y = (torch.randn(8, n, generator=generator) for n in (8, 4))
    return (x, y) if rank is None else (x.chunk(2)[rank], y.chunk(2)[rank])


STEPS = 4


def expected(model, accumulate=1, clip=0.5):
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 0.01)
    for step in range(STEPS * accumulate):
        x, y = rows(step)
        (F.mse_loss(model(x), y) / accumulate).backward()
        if (step + 1) % accumulate == 0:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()
    return model


def assert_same_weights(found, whole, what):
    for name, p in whole.named_parameters():
        torch.testing.assert_close(
            found[name], p.detach(), rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{what}: {n}: {m}"
        )


# --- DeepSpeed ------------------------------------------------------------------------------------


def of_deepspeed(rank):
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    import deepspeed

    deepspeed.init_distributed(dist_backend="gloo")
    for stage, accumulate in ((1, 2), (2, 1), (3, 2)):
        model = ORTModule(Model())
        config = {
            "train_micro_batch_size_per_gpu": 4,
            "gradient_accumulation_steps": accumulate,
            "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
            "zero_force_ds_cpu_optimizer": False,
            "zero_allow_untested_optimizer": True,
            "gradient_clipping": 0.5,
        }
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 0.01)
        engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
        for step in range(STEPS * accumulate):
            x, y = rows(step, rank)
            engine.backward(F.mse_loss(engine(x), y))
            engine.step()
        with deepspeed.zero.GatheredParameters(list(model.parameters()), enabled=stage == 3):
            found = {n: p.detach().clone() for n, p in model.named_parameters()}
        what = f"stage {stage}, {accumulate} at a time"
        assert_same_weights(found, expected(Model(), accumulate), what)
        graphs = model.report().graphs
        # in stage 3 hooks of each layer, which gather and free its parameters, lie between graphs
        assert model.report().whole if stage < 3 else len(graphs) > 1, what
        engine.destroy()


@pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="needs deepspeed")
def test_deepspeed(tmp_path, monkeypatch):
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    monkeypatch.setenv("STEEP_CACHE", str(tmp_path))
    in_two_processes(of_deepspeed)


# --- FairScale ------------------------------------------------------------------------------------


def of_fairscale(rank):
    from fairscale.nn.data_parallel import ShardedDataParallel
    from fairscale.optim.oss import OSS

    for options in ({}, {"reduce_buffer_size": 0}):
        for accumulate in (1, 2):
            model = ORTModule(Model())
            trained = [p for p in model.parameters() if p.requires_grad]
            optimizer = OSS(trained, optim=torch.optim.AdamW, lr=0.01)
            run = ShardedDataParallel(model, optimizer, **options)
            for step in range(STEPS * accumulate):
                x, y = rows(step, rank)
                if (step + 1) % accumulate:
                    with run.no_sync():
                        (F.mse_loss(run(x), y) / accumulate).backward()
                    continue
                (F.mse_loss(run(x), y) / accumulate).backward()
                optimizer.clip_grad_norm(0.5)
                optimizer.step()
                run.zero_grad()
            found = dict(model.named_parameters())
            assert_same_weights(found, expected(Model(), accumulate), f"{options}, {accumulate}")
            assert model.report().whole and model.report().graphs


@pytest.mark.skipif(importlib.util.find_spec("fairscale") is None, reason="needs fairscale")
def test_fairscale(tmp_path, monkeypatch):
    monkeypatch.setenv("STEEP_CACHE", str(tmp_path))
    in_two_processes(of_fairscale)
