"""Each node test of the installed ``onnx`` passes, or stands in expected.txt with a reason."""

import pytest

from . import suite

TESTS = suite.node_tests()
EXPECTED = suite.read_list()
UPDATE = "python -m tests.conformance --update"


@pytest.mark.parametrize("name", TESTS)
def test_node(name: str, record_property: pytest.Function) -> None:
    expected = EXPECTED.get(name, suite.Outcome("passes"))
    now = suite.outcome(TESTS[name])
    record_property("conformance", now.kind)
    if now.kind == expected.kind:
        return
    if now.kind == "passes":
        pytest.fail(f"It passes: remove it from expected.txt ({UPDATE}).")
    pytest.fail(f"{now.kind}: {now.reason}\n(expected: {expected.kind} {expected.reason})")


def test_the_list_names_tests_that_exist() -> None:
    assert set(EXPECTED) <= set(TESTS)
