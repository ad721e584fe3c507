"""The loss of connectionist temporal classification is the engine's, gradients included."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from steep import ORTModule

CLASSES = 5


class Recognising(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.layer, self.options = nn.Linear(6, CLASSES), options

    def forward(self, x, targets, heard, said):
        log_probs = self.layer(x).log_softmax(-1)
        with torch.backends.cudnn.flags(enabled=False):
            return F.ctc_loss(log_probs, targets, heard, said, **self.options)


def compare(module, calls):
    net = ORTModule(copy.deepcopy(module), fallback=None)
    for given in calls:
        results = []
        for each in (module, net):
            each.zero_grad()
            y = each(*given)
            y.sum().backward()
            results.append((y.detach(), *(p.grad for p in each.parameters())))
        for found, expected in zip(*results[::-1], strict=True):
            torch.testing.assert_close(found, expected, rtol=2e-5, atol=2e-5)


def batch(times, rows, blank, flat):
    """Targets with a repetition, padding, and none at all; frames beyond the end."""
    x = torch.randn(times, rows, 6)
    targets = torch.randint(0, CLASSES - 1, (rows, 4))
    targets[targets >= blank] += 1
    targets[0, 1] = targets[0, 0]
    said = torch.tensor([3, 2, 0, 4])[:rows]
    if flat:
        targets = torch.cat([t[:n] for t, n in zip(targets, said, strict=True)])
    return x, targets, torch.tensor([times, times - 2, 1, times - 1])[:rows], said


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_batches(reduction, flat):
    torch.manual_seed(0)
    blank = 0 if flat else 3
    module = Recognising(reduction=reduction, blank=blank)
    compare(module, [batch(7, 4, blank, flat), batch(9, 3, blank, flat)])


def test_one_row():
    torch.manual_seed(0)
    lengths = torch.tensor(7), torch.tensor(3)
    compare(Recognising(), [(torch.randn(7, 6), torch.tensor([1, 1, 2]), *lengths)])


@pytest.mark.parametrize("zero", [False, True])
def test_no_alignment(zero):
    torch.manual_seed(0)
    x, targets, heard, said = batch(7, 3, 0, False)
    heard[0] = 3  # the repetition needs a blank between
    module = Recognising(reduction="none", zero_infinity=zero)
    if zero:
        compare(module, [(x, targets, heard, said)])
    net = ORTModule(module, fallback=None)
    torch.testing.assert_close(net(x, targets, heard, said), module(x, targets, heard, said))
