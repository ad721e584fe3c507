"""Patterns of PyTorch code, and their run by PyTorch and by each front door."""

import copy
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from capture_patterns import Pair
from torch.utils._pytree import tree_leaves, tree_map_only

LR = 1e-3


class Pattern(NamedTuple):
    """A module, and what it is called with.

    ``before`` changes the module before the k-th call; ``given`` makes of copies of the leaves what
    the k-th call gets.
    """

    make: Callable[[], torch.nn.Module]
    calls: Sequence[tuple[Any, ...]]
    before: Callable[[torch.nn.Module, int], Any] = lambda m, k: None
    given: Callable[..., tuple[Any, ...]] = lambda k, *args: args


class Found(NamedTuple):
    """What is there after a call and its backward pass."""

    results: list[Any]
    others: list[Any]  # results that are no tensors, and who shares memory with whom
    needs: list[bool]
    gradients: list[Any]
    state: list[Any]
    arguments: list[Any]


def tensors_in(values):
    return [t for t in tree_leaves(values) if isinstance(t, torch.Tensor)]


def leaves_of(result):
    return tree_leaves(vars(result) if isinstance(result, Pair) else result)


def loss_of(result, _=None):
    tensors = [t for t in leaves_of(result) if isinstance(t, torch.Tensor) and t.requires_grad]
    return sum(t.square().sum().float() for t in tensors)


def groups(keys):
    return [keys.index(key) for key in keys]


def run(pattern, k, module, net):
    """Return what is there after the k-th call of ``net``, which is, or runs, ``module``."""
    net.zero_grad()
    torch.manual_seed(1)
    leaves = copy.deepcopy(pattern.calls[k])
    for t in tensors_in(leaves):
        if t.is_floating_point():
            t.requires_grad_()
    # what forward may write to is no leaf
    arguments = pattern.given(k, *tree_map_only(torch.Tensor, lambda t: t.clone(), leaves))
    result = net(*arguments)
    tensors = [t for t in leaves_of(result) if isinstance(t, torch.Tensor)]
    others = [t for t in leaves_of(result) if not isinstance(t, torch.Tensor)]
    total = sum(
        (t * torch.linspace(-1, 2, t.numel()).view(t.shape).to(t.dtype)).sum()
        for t in tensors
        if t.requires_grad
    )
    if isinstance(total, torch.Tensor):
        total.backward()
    after = tensors_in(arguments)
    state = [*module.parameters(), *module.buffers()]
    gradients = [t.grad for t in tensors_in(leaves) if t.is_floating_point()]
    gradients += [p.grad for p in module.parameters()]
    # who is written with whom
    others += groups([t.data_ptr() for t in (*tensors, *gradients) if t is not None and t.numel()])
    memory = [t.untyped_storage().data_ptr() for t in (*tensors, *after, *state) if t.numel()]
    others += groups(memory)
    # what was not there before: the next number that PyTorch draws
    others.append(float(torch.rand(())))
    return Found(
        tensors,
        others,
        [t.requires_grad for t in (*tensors, *after)],
        gradients,
        [t.detach().clone() for t in state],
        [t.detach() for t in after],
    )


def assert_same(actual, expected):
    assert [a is None for a in actual] == [b is None for b in expected]
    largest = [
        float(b.detach().double().abs().nan_to_num(0, 0, 0).max())
        for b in expected
        if b is not None and b.numel() and not b.is_complex()
    ]
    atol = 1e-5 * max(largest, default=0)
    for a, b in zip(actual, expected, strict=True):
        if a is not None:
            torch.testing.assert_close(a, b, rtol=1e-5, atol=atol, equal_nan=True)


def assert_equal(actual, expected):
    assert actual.others == expected.others
    assert actual.needs == expected.needs
    for name in ("results", "gradients", "state", "arguments"):
        assert_same(getattr(actual, name), getattr(expected, name))


def compare_calls(pattern, wrap):
    """Compare each call of ``wrap(module)`` with that of the module in PyTorch."""
    torch.manual_seed(0)
    module = pattern.make()
    torch.manual_seed(0)
    inner = pattern.make()
    net = wrap(inner)
    for k in range(len(pattern.calls)):
        pattern.before(module, k)
        pattern.before(inner, k)
        assert_equal(run(pattern, k, inner, net), run(pattern, k, module, module))


def compare_steps(pattern, make_trainer, steps=3):
    """Compare loss, results and state after each of three steps with PyTorch's."""
    torch.manual_seed(0)
    module = pattern.make()
    torch.manual_seed(0)
    inner = pattern.make()
    optimizer, own = (torch.optim.SGD(m.parameters(), LR) for m in (module, inner))
    trainer = make_trainer(inner, loss_of, own)
    for step in range(steps):
        k = step % len(pattern.calls)
        steps_of_both = []
        for m in (module, inner):
            pattern.before(m, k)
            torch.manual_seed(step)
            arguments = pattern.given(k, *copy.deepcopy(pattern.calls[k]))
            if m is module:
                optimizer.zero_grad()
                result = module(*arguments)
                loss = loss_of(result)
                loss.backward()
                optimizer.step()
            else:
                loss, result = trainer.step(*arguments, torch.zeros(()))
            state = {**dict(m.named_parameters()), **dict(m.named_buffers())}
            results = [t for t in leaves_of(result) if isinstance(t, torch.Tensor)]
            steps_of_both.append([loss, *results, *state.values(), *tensors_in(arguments)])
        assert_same(*([t.detach() for t in f] for f in reversed(steps_of_both)))
