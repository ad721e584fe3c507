"""Results under autocast: the engine makes them in 16 bits, and no float32 array beside them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import steep

ROWS, WIDTH = 6, 640


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_product_before_a_loss_outside_is_written_in_16_bits(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    layer, x = nn.Linear(8, WIDTH), torch.randn(ROWS, 8)
    labels = torch.randint(0, WIDTH, (ROWS,))
    module = steep.ORTModule(layer)
    gradients = []
    for run in (layer, module):
        layer.zero_grad()
        with torch.autocast("cpu", dtype):
            scores = run(x)
            loss = nn.functional.cross_entropy(scores, labels)
        assert scores.dtype == dtype
        loss.backward()
        assert layer.weight.grad is not None
        gradients.append(layer.weight.grad.clone())
    torch.testing.assert_close(gradients[1], gradients[0], atol=2e-3, rtol=2e-2)
    (plan,) = module.plan()
    weights = 4 * (8 * WIDTH + WIDTH)  # gradients stay float32
    assert plan.output_bytes == weights + 2 * ROWS * WIDTH
