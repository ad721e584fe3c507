"""Weights, states and scales that are changed beside ``FusedAdam`` and ``FP16_Optimizer``."""

import copy

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from steep.compat.optim.fp16_optimizer import FP16_Optimizer  # noqa: E402
from steep.compat.optim.fused_adam import AdamWMode, FusedAdam  # noqa: E402
from steep.compat.optim.loss_scalers import LossScaler  # noqa: E402


def fused(params):
    return FusedAdam(params, lr=0.1, eps=1e-8, adam_w_mode=AdamWMode.ADAMW_TORCH, weight_decay=0.1)


def torchs(params):
    return torch.optim.AdamW(params, lr=0.1, weight_decay=0.1)


def transposed_between_steps(make):
    p = nn.Parameter(torch.arange(16.0).view(4, 4))
    optimizer = make([p])
    for _ in range(2):
        p.grad = torch.arange(16.0).view(4, 4) - 3
        optimizer.step()
        p.data = p.data.t()
    return p.detach()


def memory_of_others(make):
    base = torch.arange(12.0).view(4, 3)
    p = nn.Parameter(base.t())
    p.grad = torch.ones(3, 4)
    optimizer = make([p])
    optimizer.step()
    base.mul_(2)
    optimizer.step()
    return base


def channels_last(make):
    p = nn.Parameter(torch.arange(16.0).view(1, 4, 2, 2).to(memory_format=torch.channels_last))
    p.grad = torch.ones(1, 4, 2, 2)
    make([p]).step()
    assert p.is_contiguous(memory_format=torch.channels_last)
    return p.detach()


@pytest.mark.parametrize("steps", [transposed_between_steps, memory_of_others, channels_last])
def test_weights_keep_their_memory(steps):
    torch.testing.assert_close(steps(fused), steps(torchs))


def test_a_backward_that_needs_former_weights_is_an_error():
    net = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    loss = net(torch.ones(2, 3)).sum()
    loss.backward(retain_graph=True)
    fused(net.parameters()).step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_state_of_torch_is_loaded():
    parameters = [nn.Parameter(torch.ones(3)) for _ in range(2)]
    optimizers = [torchs(parameters[:1]), fused(parameters[1:])]
    gradient = torch.arange(3.0)
    parameters[0].grad = gradient
    optimizers[0].step()
    with torch.no_grad():
        parameters[1].copy_(parameters[0])
    optimizers[1].load_state_dict(copy.deepcopy(optimizers[0].state_dict()))
    for p, optimizer in zip(parameters, optimizers, strict=True):
        p.grad = gradient.clone()
        optimizer.step()
    torch.testing.assert_close(*parameters)


def scaled(scaler):
    p = nn.Parameter(torch.ones(3))
    return p, FP16_Optimizer(torch.optim.SGD([p], 0.1), loss_scaler=scaler)


@pytest.mark.parametrize("parts", [1, 2])
def test_a_scale_that_changes_before_the_step_is_not_that_of_the_gradients(parts):
    scaler = LossScaler(128.0)
    p, optimizer = scaled(scaler)
    for _ in range(parts):
        optimizer.backward(p.sum())
        scaler.loss_scale /= 2
    optimizer.step()
    torch.testing.assert_close(p.detach(), torch.full((3,), 1 - 0.1 * parts))


def test_a_load_into_the_wrapped_optimizer_is_seen():
    _, optimizer = scaled(LossScaler(128.0))
    optimizer.optimizer.load_state_dict(copy.deepcopy(optimizer.optimizer.state_dict()))
    optimizer.param_groups[0]["lr"] = 0.5
    assert optimizer.optimizer.param_groups[0]["lr"] == 0.5
    assert optimizer.state is optimizer.optimizer.state
