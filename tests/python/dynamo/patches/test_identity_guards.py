"""Which objects are one may change from call to call: a graph holds for those that were."""

import copy

import pytest

torch = pytest.importorskip("torch")

from steep import ORTModule  # noqa: E402

LIST = [1.0, 2.0, 3.0]
DICT = {"a": 1.0}
TENSOR = torch.ones(3)
X = torch.ones(3)


class Held:
    """An object with a value."""

    def __init__(self, value):
        self.value = value


OBJECT = Held(1.0)


class Of(torch.nn.Module):
    """A module of a function; ``kept`` is a list that a call may replace."""

    def __init__(self, function):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))
        self.kept = [5.0]
        self.function = function

    def forward(self, *arguments):
        return self.function(self, *arguments) * self.weight


def keep(module, kept):
    module.kept = kept
    return ()


def keep_and_give(module, kept, given):
    module.kept = kept
    return (given,)


def appended(_, a, b):
    a.append(10.0)
    return X + b[-1]


def appended_to_what_is_kept(module, a):
    a.append(10.0)
    return X + module.kept[-1]


def appended_to_global(_, a):
    a.append(10.0)
    return X + LIST[-1]


def put(_, a, b):
    a["a"] = 10.0
    return X + b["a"]


def assigned(_, a, b):
    a.value = 10.0
    return X + b.value


def twice(make):
    """Arguments of a call: one object as both."""
    made = make()
    return made, made


CASES = {
    "a global's list, then others": (
        lambda _, a: X + LIST[-1] + a[-1],
        [lambda _: (LIST,), lambda _: (LIST[::-1],), lambda _: ([1.0],), lambda _: (LIST,)],
    ),
    "a global's dict, then another": (
        lambda _, a: X + DICT["a"] + a["a"],
        [lambda _: (DICT,), lambda _: ({"a": 4.0},)],
    ),
    "a global's object, then another": (
        lambda _, a: X + OBJECT.value + a.value,
        [lambda _: (OBJECT,), lambda _: (Held(4.0),)],
    ),
    "a global's tensor, then another": (
        lambda _, a: X + TENSOR + a * 2,
        [lambda _: (TENSOR,), lambda _: (X * 4,), lambda _: (TENSOR,)],
    ),
    "a global's tensor, read later": (
        lambda _, a: a * 2 + TENSOR,
        [lambda _: (TENSOR,), lambda _: (X * 4,)],
    ),
    "a global's list within a tuple": (
        lambda _, a: X + LIST[-1] + a[0][-1],
        [lambda _: ((LIST,),), lambda _: (([7.0],),)],
    ),
    "an attribute that is a global's list": (
        lambda module: X + module.kept[-1] + LIST[-1],
        [lambda m: keep(m, LIST), lambda m: keep(m, [9.0])],
    ),
    "two lists, then one": (
        appended,
        [lambda _: ([1.0], [1.0]), lambda _: twice(lambda: [1.0])],
    ),
    "two dicts, then one": (
        put,
        [lambda _: ({"a": 1.0}, {"a": 1.0}), lambda _: twice(lambda: {"a": 1.0})],
    ),
    "two objects, then one": (
        assigned,
        [lambda _: (Held(1.0), Held(1.0)), lambda _: twice(lambda: Held(1.0))],
    ),
    "a list of its own, then a global's": (
        appended_to_global,
        [lambda _: ([*LIST],), lambda _: (LIST,)],
    ),
    "a list of its own, then an attribute": (
        appended_to_what_is_kept,
        [
            lambda m: keep_and_give(m, [5.0], [5.0]),
            lambda m: keep_and_give(m, *twice(lambda: [5.0])),
        ],
    ),
}


def results(function, calls, wrap):
    module = Of(function)
    called = wrap(module)
    found = []
    for arguments in calls:
        LIST[:] = [1.0, 2.0, 3.0]
        module.weight.grad = None
        called(*arguments(module)).sum().backward()
        found.append((module.weight.grad.tolist(), copy.copy(LIST), copy.copy(module.kept)))
    return found


@pytest.mark.parametrize("name", CASES)
def test_objects_that_are_one(name):
    function, calls = CASES[name]
    expected = results(function, calls, lambda module: module)
    assert results(function, calls, ORTModule) == expected
