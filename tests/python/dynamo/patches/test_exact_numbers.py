"""Numbers that ``==`` takes for one, such as 0.0 and -0.0, each have a graph of their own."""

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from steep import ORTModule  # noqa: E402

X = torch.linspace(0.5, 2, 3)
NAN = float("nan")


@pytest.fixture(autouse=True)
def forget():
    """Dynamo remembers which numbers have changed in the code that the tests share."""
    torch._dynamo.reset()


def returning(value):
    return lambda: value


READERS = {
    "copysign": lambda x, a: x * math.copysign(2.0, a),
    "atan2": lambda x, a: x + math.atan2(a, -1.0),
    "division": lambda x, a: x / a,
    "full": lambda x, a: x / torch.full_like(x, a),
    "product": lambda x, a: 1 / (x * a),
    "where": lambda x, a: 1 / torch.where(x > 9, x, a),
    "tensor": lambda x, a: x / torch.tensor(a),
    "text": lambda x, a: x * len(str(a)),
    "format": lambda x, a: x * len(f"{a}"),
    "hexadecimal": lambda x, a: x * len(float(a).hex()),
    "type": lambda x, a: x * {"int": 2.0, "bool": 3.0, "float": 5.0}[type(a).__name__],
    "class": lambda x, a: x * (2.0 if isinstance(a, bool) else 3.0),
    "branch": lambda x, a: x * 2 if a == a else x * 3,
}
VALUES = {
    "zeros": [0.0, -0.0, 0.0, -0.0],
    "negative zero first": [-0.0, 0.0, -0.0],
    "zeros after others": [1.5, 2.5, 0.0, -0.0, 3.5, -0.0],
    "ones": [1, True, 1.0, True, 1],
    "integers that change": [2, 3, 4, True, 1, 1.0],
    "nan": [NAN, 1.0, NAN],
}
PLACES = {
    "argument": (lambda m, *given: given[0], lambda m, a: (a,)),
    "attribute": (lambda m: m.held, lambda m, a: setattr(m, "held", a) or ()),
    "tuple": (lambda m, pair: pair[0], lambda m, a: ((a, 1),)),
    "tuple as attribute": (lambda m: m.held[0], lambda m, a: setattr(m, "held", (a, 1)) or ()),
    "list": (lambda m, pair: pair[0], lambda m, a: ([a, 1],)),
    "value of a dict": (lambda m: m.held["k"], lambda m, a: setattr(m, "held", {"k": a}) or ()),
    "key": (lambda m, d: next(iter(d)), lambda m, a: ({a: 1},)),
    "keys": (lambda m: next(iter(m.held.keys())), lambda m, a: setattr(m, "held", {a: 1}) or ()),
    "set": (lambda m: next(iter(m.held)), lambda m, a: setattr(m, "held", {a}) or ()),
    "frozenset": (lambda m, s: next(iter(s)), lambda m, a: (frozenset({a}),)),
    "slice": (lambda m, s: s.start, lambda m, a: (slice(a, None),)),
    "default": (lambda m: m.held(), lambda m, a: setattr(m, "held", lambda v=a: v) or ()),
    "closure": (
        lambda m: m.held(),
        lambda m, a: setattr(m, "held", returning(a)) or (),
    ),
}


class Reads(torch.nn.Module):
    def __init__(self, read, number):
        super().__init__()
        self.read, self.number = read, number

    def forward(self, x, *given):
        return self.read(x, self.number(self, *given))


def check(read, number, give, values):
    modules = [Reads(read, number) for _ in range(2)]
    expected, found = modules[0], ORTModule(modules[1])
    for value in values:
        results = [
            net(X, *give(module, value))
            for net, module in zip((expected, found), modules, strict=True)
        ]
        torch.testing.assert_close(results[1], results[0], equal_nan=True)


@pytest.mark.parametrize("values", ["negative zero first", "zeros after others", "ones"])
@pytest.mark.parametrize("reader", READERS)
def test_how_a_number_is_read(reader, values):
    check(READERS[reader], *PLACES["argument"], VALUES[values])


@pytest.mark.parametrize("values", ["zeros", "ones", "integers that change", "nan"])
@pytest.mark.parametrize("place", PLACES)
def test_where_a_number_is(place, values):
    check(lambda x, a: x * len(repr(a)), *PLACES[place], VALUES[values])


def test_numbers_of_numpy():
    number, give = PLACES["argument"]
    check(READERS["copysign"], number, give, [np.float64(v) for v in (0.0, -0.0, 2.0, -0.0)])


def test_parts_of_complex_numbers():
    values = [complex(0.0, 0.0), complex(-0.0, 0.0), complex(0.0, -0.0), complex(NAN, 0.0)]
    check(lambda x, a: x * len(repr(a)), *PLACES["argument"], values)
