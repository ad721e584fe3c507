"""What each module of ``torch_internals`` promises about PyTorch's private names."""

import importlib
import pkgutil
import warnings

import pytest
import torch

from steep import torch_internals
from steep.torch_internals import autograd, distributed, nn, operators, optim, tensors

MODULES = [m.name for m in pkgutil.iter_modules(torch_internals.__path__)]


@pytest.mark.parametrize("name", MODULES)
def test_all_lists_the_public_names(name: str) -> None:
    module = importlib.import_module(f"steep.torch_internals.{name}")
    assert len(set(module.__all__)) == len(module.__all__)
    for public in module.__all__:
        assert hasattr(module, public)


def test_tensors_of_one_memory_have_one_id() -> None:
    x = torch.zeros(4)
    assert tensors.storage_id(x) == tensors.storage_id(x[1:].view(3, 1))
    assert tensors.storage_id(x) != tensors.storage_id(x.clone())


def test_fake_tensors_of_one_memory_have_one_id() -> None:
    from steep.torch_internals.dispatch import FakeTensorMode

    with FakeTensorMode():
        x = torch.zeros(4)
        assert tensors.storage_id(x) == tensors.storage_id(x[1:])
        assert tensors.storage_id(x) != tensors.storage_id(torch.zeros(4))


def test_writes_move_the_version_and_views_share_it() -> None:
    x = torch.zeros(4)
    before = tensors.version_of(x)
    x[1:].add_(1)
    assert tensors.version_of(x) == before + 1
    x.data.add_(1)
    assert tensors.version_of(x) == before + 1


def test_views() -> None:
    x = torch.zeros(4, requires_grad=True)
    assert tensors.is_view(x[1:])
    assert not tensors.is_view(x)
    assert not tensors.is_view(x * 1)


@pytest.mark.parametrize(
    "register",
    [
        lambda x: x.register_hook(lambda g: g),
        lambda x: x.register_post_accumulate_grad_hook(lambda t: None),
    ],
)
def test_hooks_are_seen(register) -> None:
    x = torch.zeros(4, requires_grad=True)
    assert not tensors.has_hooks(x)
    handle = register(x)
    assert tensors.has_hooks(x)
    handle.remove()
    assert not tensors.has_hooks(x)


def test_hooks_that_are_set_run_in_backward() -> None:
    x = torch.ones(4, requires_grad=True)
    y = x * 3
    tensors.set_hooks(y, {0: lambda g: g * 2})
    y.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, torch.full((4,), 6.0))


def test_names_of_operators() -> None:
    add = operators.aten.add_.Tensor
    assert operators.name_of(add) == "add_"
    assert operators.overload_of(add) == "Tensor"
    assert operators.schema_of(add).is_mutable
    assert not operators.schema_of(operators.aten.add.Tensor).is_mutable


def test_composite_operators_decompose() -> None:
    assert operators.can_decompose(operators.aten.linear.default)
    assert not operators.can_decompose(operators.aten.mm.default)


def test_a_noted_step_silences_the_schedules_warning() -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    optim.note_step(optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        schedule.step()


@pytest.mark.parametrize("kind", ["register_step_pre_hook", "register_step_post_hook"])
def test_step_hooks_are_seen(kind: str) -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    assert not optim.has_step_hooks(optimizer)
    handle = getattr(optimizer, kind)(lambda *arguments: None)
    assert optim.has_step_hooks(optimizer)
    handle.remove()
    assert not optim.has_step_hooks(optimizer)


def test_batch_norm_checks_its_number_of_dimensions() -> None:
    nn.check_input_dim(torch.nn.BatchNorm2d(3), torch.zeros(2, 3, 4, 4))
    with pytest.raises(ValueError, match="4D"):
        nn.check_input_dim(torch.nn.BatchNorm2d(3), torch.zeros(2, 3))


def test_the_level_of_forward_mode() -> None:
    assert autograd.forward_level() == -1
    with torch.autograd.forward_ad.dual_level():
        assert autograd.forward_level() == 0
    assert autograd.forward_level() == -1


def test_no_data_parallel_forward_runs() -> None:
    assert distributed.active_ddp_module() is None
    assert distributed.first_bucket_bytes() > 0
