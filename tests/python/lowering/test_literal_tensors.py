"""Tensors that forward makes of numbers, by the old constructors too, are PyTorch's."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from steep import ORTModule


class Net(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
        self.function = function
        self.step = 0

    def forward(self, x):
        self.step += 1
        return self.function(self, x * self.weight)


MADE = {
    "float": lambda m, y: y * torch.FloatTensor([2]),
    "nested": lambda m, y: y * torch.FloatTensor([[2], [3]]),
    "integers": lambda m, y: y + torch.LongTensor([1, 2, 3]),
    "short": lambda m, y: y * torch.ShortTensor((2, 3, 4)),
    "bytes": lambda m, y: y * torch.ByteTensor([2, 0, 255]),
    "truths": lambda m, y: torch.where(torch.BoolTensor([1, 0, 1]), y, 0.0),
    "half": lambda m, y: y * torch.HalfTensor([0.1, 0.2, 0.3]),
    "default": lambda m, y: y * torch.Tensor([2, 3.5, 1]),
    "index": lambda m, y: y[torch.LongTensor([2, 0])],
    "of an extent": lambda m, y: y + torch.FloatTensor(3).zero_(),
    "of a state": lambda m, y: y * torch.FloatTensor([m.step]),
    "tensor of a state": lambda m, y: y * torch.tensor(m.step / 8),
}


@pytest.mark.parametrize("name", MADE)
def test_a_tensor_made_in_forward(name):
    module = Net(MADE[name])
    wrapped = ORTModule(copy.deepcopy(module))
    for _ in range(3):
        results = []
        for net in (module, wrapped):
            y = net(torch.ones(3))
            y.sum().backward()
            results.append((y, net.weight.grad))
        torch.testing.assert_close(results[1], results[0])
    assert not any(graph.reason or graph.in_torch for graph in wrapped.report().graphs)


class Loss(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 7))

    def forward(self, x, labels):
        logits = x @ self.weight[:, : 3 + x.shape[0] // 2]
        return nn.CrossEntropyLoss(ignore_index=logits.size(1))(logits, labels)


def test_an_ignored_index_that_is_an_extent_which_changes():
    torch.manual_seed(0)
    module = Loss()
    wrapped = ORTModule(copy.deepcopy(module))
    for rows in (2, 4, 6, 4, 8):
        x = torch.randn(rows, 4)
        labels = torch.randint(0, 4 + rows // 2, (rows,))
        labels[0] = 0
        results = []
        for net in (module, wrapped):
            loss = net(x, labels)
            loss.backward()
            results.append((loss, net.weight.grad))
        torch.testing.assert_close(results[1], results[0])
