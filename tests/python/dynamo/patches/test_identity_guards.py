"""Which objects are one may change from call to call: a graph holds for those that were."""

import collections
import copy
import operator

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


def same_as_before(module, a):
    new = a is not module.kept
    module.kept = a
    return X * 3 if new else X + 1


def equal_to_before(module, a):
    before, module.kept = module.kept, a
    return X * 3 if a == before else X + 1


def among_those_before(module, a):
    if a in module.kept:
        return X - module.kept.index(a)
    module.kept.append(a)
    return X * len(module.kept)


def same_of_two(_, a, b):
    return X * 2 if operator.is_(a, b) else X + 1


KINDS = {
    "list": lambda: [1.0],
    "dict": lambda: {"a": 1.0},
    "object": lambda: Held(1.0),
    "tuple": lambda: (Held(1.0), 2.0),
    "deque": lambda: collections.deque([1.0]),
    "ordered dict": lambda: collections.OrderedDict(a=1.0),
    "tensor": lambda: torch.ones(3),
    "parameter": lambda: torch.nn.Parameter(torch.ones(3)),
    "module": lambda: torch.nn.Linear(2, 2),
    "function": lambda: lambda x: x,
    "class": lambda: type("Made", (), {}),
}


def given_in_turn(make, order):
    """Calls with two objects: ``order`` "aab" gives the first, the first and the second."""
    made = {name: make() for name in sorted({*order})}
    return [lambda _, name=name: (made[name],) for name in order]


def given_in_pairs(make, pairs):
    made = {name: make() for name in "ab"}
    return [lambda _, pair=pair: (made[pair[0]], made[pair[1]]) for pair in pairs]


@pytest.mark.parametrize("order", ["aabaa", "abbbaab"])
@pytest.mark.parametrize("kind", KINDS)
def test_objects_that_forward_compares(kind, order):
    calls = given_in_turn(KINDS[kind], order)
    pairs = given_in_pairs(KINDS[kind], ["ab", "aa", "ba", "bb"])
    functions = [(same_as_before, calls), (same_of_two, pairs), (same_of_two, pairs[1:])]
    if kind == "object":
        functions += [(equal_to_before, calls)]
    for function, each in functions:
        assert gradients(function, each, ORTModule) == gradients(function, each, lambda m: m)


def test_objects_that_forward_finds_in_a_list():
    calls = given_in_turn(KINDS["object"], "abacabb")
    expected = gradients(among_those_before, calls, lambda m: m)
    assert gradients(among_those_before, calls, ORTModule) == expected


class OfMethods(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))
        self.chosen = self.doubled

    def doubled(self, x):
        return x * 2

    def tripled(self, x):
        return x * 3

    def forward(self, x):
        x = self.chosen(x * self.weight)
        if self.chosen == self.doubled:
            x = x + 1
        if self.chosen in (self.tripled,):
            x = x + 10
        return x + (100 if self.doubled is self.doubled or self.doubled != self.doubled else 0)


def test_methods_that_forward_compares(caplog):
    """A method of an object is made anew each time, and equal to the one before."""
    module = OfMethods()
    net, x = ORTModule(module), torch.ones(2, 3)
    for name in ("doubled", "tripled", "doubled"):
        module.chosen = getattr(module, name)
        assert torch.equal(net(x), module(x))
    assert len(net.report().graphs) == 2
    assert "This is a bug" not in caplog.text


def gradients(function, calls, wrap):
    module = Of(function)
    module.kept = []
    called = wrap(module)
    found = []
    for arguments in calls:
        module.weight.grad = None
        called(*arguments(module)).sum().backward()
        found.append(module.weight.grad.tolist())
    return found


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
