"""What forward found absent at one call may be there at the next."""

import os

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from steep import ORTModule  # noqa: E402

VARIABLE = "STEEP_TEST_OF_GUARDS"


class Bag:
    """An object among the attributes of a module."""


class Parent:
    k = 1.5


class Child(Parent):
    """One that inherits what a test then sets."""


class Net(torch.nn.Module):
    def __init__(self, read):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))
        self.read, self.items, self.bag, self.child = read, {}, Bag(), Child()

    def forward(self, x):
        return x * self.weight * self.read(self)


def caught(error, read):
    def find(m):
        try:
            return read(m)
        except error:
            return 1.0

    return find


def counted(names):
    def count(m):
        of_bag = names(m.bag)
        of_bag["calls"] = of_bag.get("calls", 0) + 1
        return m.bag.calls

    return count


def set_variable(m, value):
    os.environ[VARIABLE] = str(value)


# what is read, and what writes it between calls
READ = {
    "key": (caught(KeyError, lambda m: m.items["k"]), lambda m, v: m.items.update(k=v)),
    "attribute": (caught(AttributeError, lambda m: m.bag.k), lambda m, v: setattr(m.bag, "k", v)),
    "attribute of the module": (
        caught(AttributeError, lambda m: m.k),
        lambda m, v: setattr(m, "k", v),
    ),
    "of a class": (lambda m: m.child.k, lambda m, v: setattr(Child, "k", v)),
    "environment": (
        lambda m: float(os.environ.get(VARIABLE, "1")),
        set_variable,
    ),
    "environment, by getenv": (lambda m: float(os.getenv(VARIABLE, "1")), set_variable),
    "what a module of the library keeps": (
        lambda m: len(os.get_exec_path({"PATH": os.getenv(VARIABLE, "")})[0]) + 1,
        set_variable,
    ),
    "in the environment": (lambda m: 3 if VARIABLE in os.environ else 1, set_variable),
    "__dict__": (lambda m: m.bag.__dict__.get("k", 1.0), lambda m, v: setattr(m.bag, "k", v)),
    "vars": (lambda m: 3 if "k" in vars(m.bag) else 1, lambda m, v: setattr(m.bag, "k", v)),
    "__dict__, written": (counted(lambda bag: bag.__dict__), lambda m, v: None),
    "vars, written": (counted(vars), lambda m, v: None),
}


@pytest.mark.parametrize(("read", "write"), READ.values(), ids=READ)
def test_what_was_absent(read, write, monkeypatch):
    results = []
    for wrap in (lambda m: m, ORTModule):
        monkeypatch.delenv(VARIABLE, raising=False)
        if "k" in vars(Child):
            del Child.k
        module = Net(read)
        net, found = wrap(module), []
        for value in (2.0, 3.0, 4.0):
            found.append(net(torch.ones(3)).tolist())
            write(module, value)
        results.append(found)
    monkeypatch.delenv(VARIABLE, raising=False)
    assert results[1] == results[0]


def test_a_leaf_and_a_result():
    net = ORTModule(Net(lambda m: 1.0))
    net.module.forward = lambda x: x * (2 if x.is_leaf else 3)
    leaf = torch.ones(3, requires_grad=True)
    for x in (leaf, leaf * 1, leaf.detach(), leaf):
        assert net(x).tolist() == [2.0 if x.is_leaf else 3.0] * 3


def test_numbers_of_numpy_are_from_its_generator():
    results = []
    for wrap in (lambda m: m, ORTModule):
        net = wrap(Net(lambda m: torch.from_numpy(np.random.rand(3).astype(np.float32))))
        np.random.seed(3)
        results.append([net(torch.ones(3)).tolist() for _ in range(2)] + [np.random.rand()])
    assert results[1] == results[0]
