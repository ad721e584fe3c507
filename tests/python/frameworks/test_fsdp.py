"""FSDP2: parameters are gathered before a module runs, freed after it, and gathered elsewhere."""

import pickle

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.distributed.checkpoint.state_dict import (  # noqa: E402
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.fsdp import (  # noqa: E402
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
)
from torch.nn import functional as F  # noqa: E402
from two_processes import in_two_processes  # noqa: E402

from steep import ORTModule  # noqa: E402

WORDS = 20


class Model(nn.Module):
    """Blocks between a table and a head that has the table's weight."""

    def __init__(self, frozen=False):
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(WORDS, 16)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
            for _ in range(2)
        )
        self.head = nn.Linear(16, WORDS, bias=False)
        self.head.weight = self.table.weight
        if frozen:
            self.table.requires_grad_(False)
            self.blocks[0].requires_grad_(False)
            self.blocks[1][1].weight.requires_grad_(False)  # one of four in a block

    def forward(self, words):
        x = self.table(words)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


def sharded(how, wrap, model, options):
    if how == "around":
        return fully_shard(wrap(model), **options)
    for i, block in enumerate(model.blocks):
        model.blocks[i] = fully_shard(wrap(block), **options)
    return fully_shard(model, **options)


def train(run, rows, accumulate=False):
    """Three steps on ``rows(step)``, or six that are two and two together."""
    trained = [p for p in run.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, 0.5, momentum=0.9)
    for step in range(6 if accumulate else 3):
        leaves = not accumulate or step % 2 == 1
        if accumulate and isinstance(run, FSDPModule):
            run.set_requires_gradient_sync(leaves)  # of the blocks, too
        words = rows(step)
        F.cross_entropy(run(words).flatten(0, 1).float(), words.flatten()).backward()
        if accumulate and isinstance(run, FSDPModule):
            assert all((p.grad is not None) == leaves for p in trained)
        if leaves:
            optimizer.step()
            optimizer.zero_grad()


def rows_of(rank):
    def rows(step):
        words = torch.randint(0, WORDS, (4, 5), generator=torch.Generator().manual_seed(step))
        return words if rank is None else words.chunk(2)[rank]

    return rows


NARROW = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)

# options of fully_shard, of the model, habits of the loop
MODES = {
    "plain": ({}, {}, {}),
    "freed after forward": ({"reshard_after_forward": True}, {}, {}),
    "kept until backward": ({"reshard_after_forward": False}, {}, {}),
    "freed to groups": ({"reshard_after_forward": 1}, {}, {}),
    "offloaded": ({"offload_policy": CPUOffloadPolicy(pin_memory=False)}, {}, {}),
    "frozen": ({}, {"frozen": True}, {}),
    "accumulated": ({}, {}, {"accumulate": True}),
    "accumulated and kept": ({"reshard_after_forward": False}, {}, {"accumulate": True}),
    "bfloat16": ({"mp_policy": NARROW}, {}, {}),
}


def compare(rank):
    for name, (options, kind, habits) in MODES.items():
        whole = Model(**kind)
        train(whole, rows_of(None), **habits)
        for how in ("around", "blocks"):
            model = Model(**kind)
            run = sharded(how, ORTModule, model, options)
            train(run, rows_of(rank), **habits)
            tolerance = {"rtol": 1e-5, "atol": 1e-5}
            if "mp_policy" in options:  # as far from PyTorch's as PyTorch is from float32
                tolerance = {"rtol": 0, "atol": 5e-3}
            for (n, p), q in zip(model.named_parameters(), whole.parameters(), strict=True):
                where = f"{name}, {how}: {n}"
                torch.testing.assert_close(
                    p.full_tensor(), q, **tolerance, msg=lambda m, w=where: f"{w}: {m}"
                )
                assert not q.requires_grad or not torch.equal(q, Model().get_parameter(n)), where
            for each in [run] if how == "around" else model.blocks:
                report = each.report()
                assert report.whole and report.graphs, f"{name}, {how}: {report}"


def keep_and_load(rank):
    """Weights that are made after the sharding, saved whole, and loaded into another."""
    with torch.device("meta"):
        model = Model()
    for i, block in enumerate(model.blocks):
        model.blocks[i] = fully_shard(ORTModule(block))
    run = fully_shard(ORTModule(model))
    run.to_empty(device="cpu")
    assert run.head.weight is run.table.weight
    whole = StateDictOptions(full_state_dict=True)
    set_model_state_dict(run, Model().state_dict(), options=whole)
    with torch.no_grad():
        torch.testing.assert_close(run(rows_of(None)(0)), Model()(rows_of(None)(0)))
    found = get_model_state_dict(run, options=whole)
    expected = Model().state_dict()
    assert list(found) == list(expected)
    torch.testing.assert_close(found, dict(expected), rtol=0, atol=0)
    with pytest.raises(TypeError, match="state_dict"):
        pickle.dumps(run)


def on_two_processes(rank):
    compare(rank)
    keep_and_load(rank)


@pytest.mark.matrix
def test_two_processes_train_as_one(tmp_path, monkeypatch):
    monkeypatch.setenv("STEEP_CACHE", str(tmp_path))  # the same graphs in many modes
    in_two_processes(on_two_processes)
