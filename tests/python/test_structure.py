"""Arguments and results of any nesting survive being taken apart."""

import collections
import dataclasses

import pytest

torch = pytest.importorskip("torch")

import steep  # noqa: E402
from steep.structure import flatten, tensor_paths, unflatten  # noqa: E402

Point = collections.namedtuple("Point", "x y")


@dataclasses.dataclass
class Box:
    low: torch.Tensor
    high: torch.Tensor | None = None
    tag: str = "box"


def t(value):
    return torch.tensor(float(value))


def same(a, b):
    if isinstance(a, torch.Tensor):
        return a is b
    if type(a) is not type(b):
        return False
    if dataclasses.is_dataclass(a):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


VALUES = [
    t(1),
    (t(1), None, 3, 2.5, "text", True),
    [t(1), [t(2), (t(3),)]],
    {"a": t(1), "b": {"c": t(2), 5: None}},
    Point(t(1), Point(t(2), 0)),
    Box(t(1)),
    collections.OrderedDict(z=t(1), a=t(2)),
    (),
    {"shape": torch.Size([2, 3]), "dtype": torch.float32},
]


@pytest.mark.parametrize("value", VALUES, ids=lambda v: type(v).__name__)
def test_round_trip(value):
    tensors, structure = flatten(value)
    assert same(unflatten(structure, tensors), value)
    assert len(tensor_paths(structure)) == len(tensors)
    hash(structure)


def test_structure_tells_what_matters():
    def of(value):
        return flatten(value)[1]

    assert of([t(1), 2]) == of([t(5), 2])
    distinct = [
        (t(1), 1),
        (t(1), 1.0),
        (t(1), True),
        [t(1), 1],
        (t(1), None),
        (t(1), t(1)),
        (1, t(1)),
    ]
    assert len({of(v) for v in distinct}) == len(distinct)


def test_paths():
    structure = flatten({"x": t(1), "xs": [t(2), t(3)], "box": Box(t(4))})[1]
    assert tensor_paths(structure) == ["x", "xs.0", "xs.1", "box.low"]


def test_unknown_argument_is_refused_and_named():
    with pytest.raises(steep.DataError) as e:
        flatten(((t(1),), {"thing": [object()]}))
    assert e.value.node == "1.thing.0"
    assert "object" in e.value.received


def test_unknown_result_raises_only_when_used():
    tensors, structure = flatten({"loss": t(1), "cache": object()}, results=True)
    result = unflatten(structure, tensors)
    assert result["loss"] is tensors[0]
    assert "cache" in repr(result["cache"])
    for use in (lambda c: c[0], lambda c: c.keys(), bool):
        with pytest.raises(steep.ModelError, match="cache"):
            use(result["cache"])


def test_outputs_of_transformers():
    outputs = pytest.importorskip("transformers.modeling_outputs")
    value = outputs.MaskedLMOutput(loss=t(1), logits=t(2))
    tensors, structure = flatten(value)
    back = unflatten(structure, tensors)
    assert type(back) is type(value)
    assert back.loss is value.loss and back[1] is value.logits and back.attentions is None
