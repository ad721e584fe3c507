"""Errors while a graph is lowered: each refuses it, and the log has what was raised, and where."""

import pytest

pytest.importorskip("torch")

from steep.graph import compiled_graph
from steep.lowering.lower import CannotLower


@pytest.fixture
def told(monkeypatch):
    found = []
    monkeypatch.setattr(compiled_graph, "write_log", lambda kind, text: found.append((kind, text)))
    monkeypatch.setattr(compiled_graph, "_told_reasons", set())
    return found


def look_up(key):
    return {}[key]


def divide():
    return 1 / 0


def test_the_log_has_the_first_error_of_each_place(told):
    for fail in (lambda: look_up("a"), lambda: look_up("b"), divide):
        with pytest.raises(CannotLower), compiled_graph._errors_refuse():
            fail()
    assert [kind for kind, _ in told] == ["breaks", "breaks"]
    (_, first), (_, second) = told
    assert f"{__file__}:{look_up.__code__.co_firstlineno + 1} raised builtins.KeyError" in first
    assert "raised builtins.ZeroDivisionError: division by zero" in second


def test_a_refusal_is_no_error_of_ours(told):
    with pytest.raises(CannotLower, match="a reason"), compiled_graph._errors_refuse():
        raise CannotLower("a reason", "node")
    assert told == []
