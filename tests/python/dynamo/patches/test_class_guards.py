"""Methods that a class gets, or loses, between two calls: forward runs those of the call."""

import pytest

torch = pytest.importorskip("torch")

from steep import ORTModule  # noqa: E402

X = torch.ones(2)


class Base:
    """A class with a method of each kind."""

    def __new__(cls, *given):
        made = object.__new__(cls)
        made.mark = 1.0
        return made

    def __init__(self, value=3.0):
        self.value = value

    @classmethod
    def of_class(cls):
        return 4.0

    @staticmethod
    def static():
        return 5.0

    @property
    def read(self):
        return 6.0

    def method(self):
        return 7.0

    def generated(self):
        yield 8.0

    def __call__(self):
        return 9.0

    def __len__(self):
        return 2

    def __getitem__(self, key):
        return 10.0

    def __add__(self, other):
        return 11.0

    def __radd__(self, other):
        return 12.0

    def __neg__(self):
        return 13.0

    def __bool__(self):
        return True

    def __enter__(self):
        return 14.0

    def __exit__(self, *raised):
        return None

    def __eq__(self, other):
        return True

    def __lt__(self, other):
        return True

    def __hash__(self):
        return 5

    def __contains__(self, item):
        return True

    def __getattr__(self, name):
        return 15.0

    def __index__(self):
        return 1

    def __str__(self):
        return "abc"


def called(function):
    return function()


def entered(made):
    with made as value:
        return value


# how forward uses an object, the name of the entry of its class, and the entry that replaces it
USES = {
    "method": (lambda a: a.method(), "method", lambda self: 17.0),
    "static method": (lambda a: a.static(), "static", staticmethod(lambda: 18.0)),
    "class method": (lambda a: a.of_class(), "of_class", classmethod(lambda cls: 19.0)),
    "property": (lambda a: a.read, "read", property(lambda self: 20.0)),
    "generator": (lambda a: next(a.generated()), "generated", lambda self: iter((21.0,))),
    "bound": (lambda a: called(a.method), "method", lambda self: 17.0),
    "by name": (lambda a: getattr(a, "meth" + "od")(), "method", lambda self: 17.0),
    "of the type": (lambda a: type(a).method(a), "method", lambda self: 17.0),
    "static of the type": (lambda a: type(a).static(), "static", staticmethod(lambda: 18.0)),
    "super": (lambda a: super(type(a), a).method(), "method", lambda self: 17.0),
    "init": (lambda a: a.value, "__init__", lambda self, *a: setattr(self, "value", 22.0)),
    "call": (lambda a: a(), "__call__", lambda self: 23.0),
    "len": (len, "__len__", lambda self: 4),
    "getitem": (lambda a: a[0], "__getitem__", lambda self, key: 24.0),
    "add": (lambda a: a + 1, "__add__", lambda self, other: 25.0),
    "radd": (lambda a: 1 + a, "__radd__", lambda self, other: 26.0),
    "neg": (lambda a: -a, "__neg__", lambda self: 27.0),
    "bool": (lambda a: 2.0 if a else 3.0, "__bool__", lambda self: False),
    "enter": (entered, "__enter__", lambda self: 28.0),
    "eq": (lambda a: 2.0 if a == 1 else 3.0, "__eq__", lambda self, other: False),
    "lt": (lambda a: 2.0 if a < 1 else 3.0, "__lt__", lambda self, other: False),
    "hash": (lambda a: float(hash(a)), "__hash__", lambda self: 6),
    "contains": (lambda a: 2.0 if 1 in a else 3.0, "__contains__", lambda self, item: False),
    "getattr": (lambda a: a.nowhere, "__getattr__", lambda self, name: 29.0),
    "index": (lambda a: (1.0, 2.0, 3.0)[a], "__index__", lambda self: 2),
    "str": (lambda a: len(str(a)), "__str__", lambda self: "abcde"),
}
# how forward gets the object, given its class
WAYS = {
    "made": (lambda m, kind: kind(), lambda m, kind: (kind,)),
    "made of a held class": (lambda m: m.kind(), lambda m, kind: setattr(m, "kind", kind) or ()),
    "given": (lambda m, given: given, lambda m, kind: (kind(),)),
    "held": (lambda m: m.made, lambda m, kind: setattr(m, "made", kind()) or ()),
}


class Uses(torch.nn.Module):
    def __init__(self, get, use):
        super().__init__()
        self.get, self.use = get, use

    def forward(self, x, *given):
        return x * self.use(self.get(self, *given))


def on_base(kind, name, entry):
    setattr(kind.__mro__[1], name, entry)


def on_class(kind, name, entry):
    setattr(kind, name, entry)


def taken_away(kind, name, entry):
    delattr(kind, name)


def function_of(entry):
    return getattr(entry, "__func__", getattr(entry, "fget", entry))


def other_code(kind, name, entry):
    function_of(vars(kind.__mro__[1])[name]).__code__ = function_of(entry).__code__


def results(wrap, way, name, change):
    use, entry_name, entry = USES[name]
    get, give = WAYS[way]
    base = type("Base", (), {k: again(v) for k, v in vars(Base).items() if k not in REST})
    kind = type("Kind", (base,), {})
    if change is taken_away:
        setattr(kind, entry_name, entry)
    module = Uses(get, use)
    net = wrap(module)
    found = [net(X, *give(module, kind)).tolist() for _ in range(2)]
    change(kind, entry_name, entry)
    return found + [net(X, *give(module, kind)).tolist() for _ in range(2)]


REST = ("__dict__", "__weakref__", "__module__", "__doc__")


def again(entry):
    """Return a method of its own, since a test may change its code."""
    function = function_of(entry)
    copy = type(function)(
        function.__code__, function.__globals__, function.__name__, function.__defaults__
    )
    return copy if function is entry else type(entry)(copy)


CASES = [(name, way, on_base) for name in USES for way in ("made", "given")]
CASES += [
    (name, way, change)
    for name in ("method", "static method", "class method", "len")
    for way in WAYS
    for change in (on_class, taken_away)
]


@pytest.mark.parametrize(("name", "way", "change"), CASES)
def test_methods_that_change(name, way, change):
    expected = results(lambda module: module, way, name, change)
    assert results(ORTModule, way, name, change) == expected


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["method", "static method", "class method", "property", "call"])
def test_code_that_changes(name, way):
    expected = results(lambda module: module, way, name, other_code)
    assert results(ORTModule, way, name, other_code) == expected


def test_special_methods_that_come_later():
    """Dynamo keeps the special methods of a class, which may get others."""
    kinds = [type("Kind", (), {"__iter__": lambda self: iter((2.0,))}) for _ in range(2)]
    nets = [Uses(lambda m, a: a, lambda a: 2.0 if 1 in a else 3.0) for _ in range(2)]
    for net, kind in zip((nets[0], ORTModule(nets[1])), kinds, strict=True):
        assert net(X, kind())[0] == 3
        kind.__contains__ = lambda self, item: True
        assert net(X, kind())[0] == 2


def test_values_of_a_class_do_not_count():
    """A class may count its calls."""

    class Counts:
        def method(self):
            return 2.0

    net = ORTModule(Uses(lambda m, a: a(), lambda a: a.method()))
    for step in range(4):
        assert net(X, Counts)[0] == 2
        Counts.step = step
    assert len(net.report().graphs) == 1
