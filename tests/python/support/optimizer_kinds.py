"""Optimizers beyond SGD, Adam and AdamW, and steps as a loop of PyTorch makes them."""

import torch

STEPS = 6
OTHERS = {
    "NAdam": {"momentum_decay": 0.2},
    "NAdam decoupled": {"weight_decay": 0.1, "decoupled_weight_decay": True},
    "RAdam": {"betas": (0.9, 0.8)},
    "RAdam decoupled": {"weight_decay": 0.1, "decoupled_weight_decay": True, "maximize": True},
    "Adagrad": {"lr_decay": 0.1, "initial_accumulator_value": 0.5},
    "Adadelta": {"weight_decay": 0.1},
    "RMSprop": {"weight_decay": 0.1},
    "RMSprop centered": {"momentum": 0.5, "centered": True},
    "Adamax": {"weight_decay": 0.1},
    "Adafactor": {"weight_decay": 0.1},
    "Adafactor up": {"beta2_decay": -0.5, "maximize": True},
    "Adam amsgrad": {"amsgrad": True},
    "AdamW amsgrad": {"amsgrad": True, "maximize": True},
    "SGD up": {"momentum": 0.5, "maximize": True},
}


def batches(steps=STEPS):
    torch.manual_seed(1)
    return [(torch.randn(6, 4), torch.randn(6, 3)) for _ in range(steps)]


def steps_of(net, optimizer, loss=torch.nn.functional.mse_loss):
    """A step as a loop of PyTorch makes it."""

    def step(x, y):
        optimizer.zero_grad()
        loss(net(x), y).backward()
        optimizer.step()

    return step
