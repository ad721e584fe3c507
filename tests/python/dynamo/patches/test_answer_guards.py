"""Answers about classes, modules and arrays that change between two calls."""

import abc
import collections.abc
import importlib.util
import numbers
import sys
import types

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from steep import ORTModule  # noqa: E402

X = torch.ones(2)


class Of(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x, *given):
        return self.function(x, *given)


def plain():
    return type("Held", (), {})


def abstract():
    return abc.ABCMeta("Asked", (), {}), plain()


def deciding():
    def says(kind, other):
        return kind.flag

    meta = type("Meta", (type,), {"__instancecheck__": says, "__subclasscheck__": says})
    return meta("Asked", (), {"flag": False}), plain()


def decided(kind, _):
    kind.flag = True


def other_method(kind, _):
    type(kind).__instancecheck__ = type(kind).__subclasscheck__ = lambda kind, other: True


def matched(given, kind):
    match given:
        case kind():
            return True
    return False


# classes that are asked and held, and what changes the answer
CHANGES = {
    "register": (abstract, lambda kind, held: kind.register(held)),
    "decided": (deciding, decided),
    "other method": (deciding, other_method),
    "standard class": (
        lambda: (collections.abc.Sequence, plain()),
        lambda kind, held: kind.register(held),
    ),
    "number": (lambda: (numbers.Number, plain()), lambda kind, held: kind.register(held)),
    "method": (
        lambda: (collections.abc.Sized, plain()),
        lambda kind, held: setattr(held, "__len__", lambda self: 1),
    ),
    "bases": (
        lambda: (plain(), type("Held", (plain(),), {})),
        lambda kind, held: setattr(held, "__bases__", (kind,)),
    ),
}
ASKED = {
    "isinstance": isinstance,
    "issubclass": lambda given, kind: issubclass(type(given), kind),
    "tuple": lambda given, kind: isinstance(given, (int, kind)),
    "match": matched,
}


def answers(wrap, change, ask):
    (kind, held), changed = change[0](), change[1]
    given = held()
    nets = [
        wrap(Of(lambda x, given: x * (2.0 if ask(given, kind) else 3.0))),
        wrap(Of(lambda x, _: x * (2.0 if ask(held(), kind) else 3.0))),
    ]
    found = [net(X, given).tolist() for net in nets]
    changed(kind, held)
    return found + [net(X, given).tolist() for net in (*nets, *nets)]


@pytest.mark.parametrize("ask", ASKED)
@pytest.mark.parametrize("change", CHANGES)
def test_answers_of_classes(change, ask):
    expected = answers(lambda module: module, CHANGES[change], ASKED[ask])
    assert answers(ORTModule, CHANGES[change], ASKED[ask]) == expected


@pytest.mark.parametrize("given", [X, [1.0], "a", torch.nn.Identity()], ids=type)
def test_values_of_known_types(given):
    kind = abc.ABCMeta("Asked", (), {})
    net = ORTModule(Of(lambda x, given: x * (2.0 if isinstance(given, kind) else 3.0)))
    assert net(X, given)[0] == 3
    kind.register(type(given))
    assert net(X, given)[0] == 2


def imports(x):
    import steep_test_module

    return x * steep_test_module.value


def imports_a_name(x):
    from steep_test_module import function

    return function(x)


@pytest.mark.parametrize("function", [imports, imports_a_name])
def test_modules_that_are_replaced(function, monkeypatch):
    def put(value):
        module = types.ModuleType("steep_test_module")
        module.value, module.function = value, lambda x: x * value
        monkeypatch.setitem(sys.modules, "steep_test_module", module)

    # a module of this name may have been imported before: PyTorch then runs the part
    net = ORTModule(Of(function), fallback="torch")
    for value in (2.0, 5.0, 2.0):
        put(value)
        assert net(X)[0] == value


def test_modules_that_are_found_later(tmp_path, monkeypatch):
    net = ORTModule(
        Of(lambda x: x * (2.0 if importlib.util.find_spec("steep_test_found") else 3.0))
    )
    assert net(X)[0] == 3
    (tmp_path / "steep_test_found.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    assert net(X)[0] == 2


A, B = np.ones(2, np.float32), np.ones(2, np.float32)


@pytest.mark.parametrize("calls", ["ab aa ba", "aa ab bb", "ab bb"])
def test_arrays_that_are_one(calls):
    net = ORTModule(Of(lambda x, a, b: x * (2.0 if a is b else 3.0) + torch.from_numpy(a)))
    for first, second in calls.split():
        arrays = [{"a": A, "b": B}[name] for name in (first, second)]
        assert net(X, *arrays)[0] == (3 if first == second else 4)
