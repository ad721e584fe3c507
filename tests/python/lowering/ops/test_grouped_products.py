"""Products of groups of rows: F.grouped_mm, and what transformers puts in its place."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from steep import ORTModule

ENDS = ([3, 8, 8, 16], [0, 0, 9, 16], [16, 16, 16, 16], [4, 5, 6, 16])


class Grouped(nn.Module):
    """One layer for each group of rows; the groups end at ``ends``."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 24, 8, dtype=dtype) / 3)

    def forward(self, x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        return F.grouped_mm(x, self.weight.transpose(-2, -1), offs=ends).sin()


def gradients(module: nn.Module, run: nn.Module, ends: list[int]) -> list[torch.Tensor]:
    """Return the result, and the gradients of argument and weight."""
    torch.manual_seed(1)
    dtype = module.weight.dtype
    x = torch.randn(16, 8, dtype=dtype, requires_grad=True)
    y = run(x, torch.tensor(ends, dtype=torch.int32))
    module.weight.grad = None
    (y * torch.linspace(-1, 1, y.numel()).view(y.shape).to(dtype)).sum().backward()
    assert x.grad is not None
    return [y.detach(), x.grad, module.weight.grad]


def test_groups_may_change_without_a_new_plan() -> None:
    torch.manual_seed(0)
    module = Grouped(torch.bfloat16)  # PyTorch traces no other dtype
    theirs = copy.deepcopy(module)
    net = ORTModule(module)
    for ends in ENDS:
        ours = gradients(module, net, ends)
        wanted = gradients(theirs, theirs, ends)
        for a, b in zip(ours, wanted, strict=True):  # the sums are float32, rounded once
            torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2)
    (graph,) = net.report().graphs
    assert not graph.in_torch
    assert "steep.GroupedMatMul" in net.dump()


def test_a_mixture_of_experts_is_one_graph() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.MixtralConfig(
        vocab_size=50,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_local_experts=4,
    )
    torch.manual_seed(0)
    module = transformers.MixtralForCausalLM(config)
    theirs = copy.deepcopy(module)
    net = ORTModule(module)
    for seed in range(3):
        torch.manual_seed(seed)
        ids = torch.randint(0, 50, (2, 9))
        ours, wanted = (run(input_ids=ids, labels=ids).loss for run in (net, theirs))
        torch.testing.assert_close(ours, wanted, rtol=1e-5, atol=1e-5)
        for run in (module, theirs):
            run.zero_grad()
        ours.backward()
        wanted.backward()
        for p, q in zip(module.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-5)
    (graph,) = net.report().graphs
    assert not graph.in_torch
