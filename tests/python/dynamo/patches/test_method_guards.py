"""Methods of types as values: a graph holds for the method that it was captured with."""

import pytest
import torch

from steep import ORTModule

X = torch.linspace(0.1, 1, 6)

PAIRS = {
    "methods of tensors": (torch.Tensor.sin, torch.Tensor.cos),
    "slots of tensors": (torch.Tensor.__neg__, torch.Tensor.__abs__),
    "attributes of tensors": (
        lambda x: torch.Tensor.real.__get__(x) * 2,
        lambda x: torch.Tensor.data.__get__(x) * 3,
    ),
    "functions": (torch.sin, torch.nn.functional.silu),
}
OF_NUMBERS = {
    "methods of str": (str.upper, str.lower, "aB"),
    "methods of list": (list.copy, list.__len__, [3, 4]),
    "slots of int": (int.__neg__, int.__invert__, 3),
    "bound slots": ((3).__add__, (3).__mul__, 4),
    "bound slots of others": ((3).__add__, (5).__add__, 4),
}


class Applies(torch.nn.Module):
    """Calls a function that it is given, or has as an attribute; ``between`` two graphs or not."""

    def __init__(self, apply, *, between):
        super().__init__()
        self.apply_to, self.between = apply, between

    def forward(self, x, function=None):
        if self.between:
            torch._dynamo.graph_break()
        return self.apply_to(x * 2, function or self.function)


@pytest.mark.parametrize("between", [False, True])
@pytest.mark.parametrize("name", PAIRS)
def test_functions_that_change(name, between):
    check(lambda x, f: f(x), PAIRS[name], between)


@pytest.mark.parametrize("name", OF_NUMBERS)
def test_functions_of_other_types_that_change(name):
    *functions, value = OF_NUMBERS[name]
    check(lambda x, f: x * len(str(f(value))) + (f(value) == "AB"), functions, between=False)


def check(apply, functions, between):
    module = Applies(apply, between=between)
    net = ORTModule(module)
    for k in (0, 1, 0, 1):
        module.function = functions[k]
        for arguments in ((X,), (X, functions[k])):
            torch.testing.assert_close(net(*arguments), module(*arguments))


@pytest.mark.parametrize("name", ["__add__", "__mul__", "__rsub__", "__eq__", "__lt__"])
def test_slots_of_numbers_called_with_a_number_that_changes(name):
    """Such a number is a symbol, for which Dynamo's constants have no slots."""
    module = Applies(lambda x, n: x * len(str(module.function(n))), between=False)
    net = ORTModule(module)
    for own, number in ((3, 3), (3, 40), (50, 40), (3, 4), (50, 50)):
        module.function = getattr(own, name)
        torch.testing.assert_close(net(X, number), module(X, number))


@pytest.mark.parametrize("name", ["__add__", "__sub__", "__mul__"])
def test_slots_of_a_type_called_with_numbers(name):
    """Dynamo would add the type itself to the first number."""
    slot = getattr(int, name)
    module = Applies(lambda x, n: x * (2 if slot(3, n) is NotImplemented else 5), between=False)
    net = ORTModule(module)
    for number in (3, 40, 50):
        torch.testing.assert_close(net(X, number), module(X, number))


class Broken(torch.Tensor):
    """A tensor whose functions PyTorch runs between graphs."""

    calls = 0

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        Broken.calls += 1
        return super().__torch_function__(function, types, args, kwargs or {})


class Wave(torch.nn.Module):
    def forward(self, x):
        return x.sin().cos().exp()


def test_functions_of_a_tensor_with_functions_of_its_own():
    module = Wave()
    net = ORTModule(module)
    for scale in (1, 2):
        x = (X * scale).as_subclass(Broken)
        torch.testing.assert_close(
            net(x).as_subclass(torch.Tensor), module(x).as_subclass(torch.Tensor)
        )
