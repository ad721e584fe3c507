"""Attributes that an object refuses to delete or to write, in code that asks for forgiveness."""

import pytest

torch = pytest.importorskip("torch")

from steep import ORTModule  # noqa: E402


class Bag:
    """An object among the attributes of a module."""


class Slots:
    """One whose attribute may be absent although its class names it."""

    __slots__ = ("k",)


class Own:
    """One that passes a deletion on."""

    def __delattr__(self, name):
        super().__delattr__(name)


class Net(torch.nn.Module):
    def __init__(self, held, change):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))
        self.held, self.change = held, change

    def forward(self, x):
        try:
            self.change(self.held)
        except (AttributeError, TypeError):
            return x * self.weight
        return x * self.weight * 5


def delete(held):
    del held.k


def delete_twice(held):
    del held.k
    del held.k


def write_then_delete(held):
    held.k = 3.0
    del held.k


def results_of(held, change, values):
    """Results with PyTorch and with Steep of calls before which the attribute is written or not."""
    # PyTorch runs forward if it deletes twice what is there: 2.13's tracer ends the graph
    options = {"fallback": "torch"} if change is delete_twice else {}
    results = []
    for wrap in (lambda m: m, lambda m: ORTModule(m, **options)):
        object_of = held()
        net, found = wrap(Net(object_of, change)), []
        for value in values:
            if value is not None:
                object_of.k = value
            found.append((net(torch.ones(3)).tolist(), hasattr(object_of, "k")))
        results.append(found)
    return results


HELD = {"object": Bag, "slot": Slots, "own __delattr__": Own, "module": torch.nn.Identity}


@pytest.mark.parametrize("change", [delete, delete_twice, write_then_delete])
@pytest.mark.parametrize("held", HELD.values(), ids=HELD)
@pytest.mark.parametrize("values", [(None, 1.0, 2.0, None), (1.0, None, 2.0)], ids=["no", "yes"])
def test_an_attribute_that_may_be_absent_is_deleted(held, change, values):
    eager, ours = results_of(held, change, values)
    assert ours == eager


def test_a_deletion_that_nobody_catches_is_an_error():
    held = torch.nn.Identity()
    net = ORTModule(torch.nn.Sequential(torch.nn.Linear(3, 3)))
    net.module.forward = lambda x: delattr(held, "k") or x
    with pytest.raises(AttributeError, match="'Identity' object has no attribute 'k'"):
        net(torch.ones(3))


WRITES = {
    "__weakref__": lambda held: setattr(held, "__weakref__", None),
    "__weakref__, deleted": lambda held: delattr(held, "__weakref__"),
    "__dict__": lambda held: setattr(held, "__dict__", 3),
}


@pytest.mark.parametrize("change", WRITES.values(), ids=WRITES)
def test_what_a_type_in_c_refuses(change):
    held = Bag()
    held.k = 1.0
    net = ORTModule(Net(held, change), fallback="torch")
    assert net(torch.ones(3)).tolist() == [1.0] * 3 and held.k == 1.0


def test_a_dict_in_place_of_another():
    eager, ours = results_of(Bag, lambda held: setattr(held, "__dict__", {"k": 2.0}), (None, 1.0))
    assert ours == eager
