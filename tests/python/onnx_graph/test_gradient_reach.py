"""Which inputs a gradient can reach, read from an ONNX graph by names."""

import onnx
import pytest
from onnx import parser

from steep._steep import STOP_GRADIENT_KEY
from steep.onnx_graph.gradient_reach import (
    find_gradient_reach,
    last_results_first,
    results_of_results,
)
from steep.onnx_graph.traverse import bodies_of, read_by

BRANCH = """
    (float[n] x, float[n] w, bool c) => (float[n] y) {
        y = If (c) <
            then_branch = one () => (float[n] a) { a = Mul (x, w) },
            else_branch = two () => (float[n] b) { b = Neg (x) }
        >
    }
"""


def graph_of(body: str) -> onnx.GraphProto:
    """Return the graph of ONNX's text form."""
    return parser.parse_graph("agraph " + body)


def test_inputs_of_the_results_are_reached() -> None:
    graph = graph_of("(float[n] x, float[n] w, float[n] u) => (float[n] y) { y = Mul (x, w) }")
    assert {"x", "w", "y"} <= find_gradient_reach(graph)
    assert "u" not in find_gradient_reach(graph)


@pytest.mark.parametrize("op", ["Shape", "NonZero", "ArgMax", "IsNaN"])
def test_operators_without_a_gradient_stop_the_search(op: str) -> None:
    graph = graph_of(f"(float[n] x, int64[1] i) => (int64[1] y) {{ s = {op} (x) y = Add (s, i) }}")
    assert "x" not in find_gradient_reach(graph)
    assert "i" in find_gradient_reach(graph)


def test_an_operator_of_another_domain_with_such_a_name_does_not_stop_it() -> None:
    graph = graph_of("(float[n] x) => (float[n] y) { y = mine.Shape (x) }")
    assert "x" in find_gradient_reach(graph)


def test_a_marked_node_stops_the_search() -> None:
    graph = graph_of("(float[n] x, float[n] w) => (float[n] y) { d = Identity (x) y = Mul (d, w) }")
    assert "x" in find_gradient_reach(graph)
    graph.node[0].metadata_props.add(key=STOP_GRADIENT_KEY, value="1")
    assert find_gradient_reach(graph) & {"x", "w"} == {"w"}


def test_bodies_read_what_is_outside_of_them() -> None:
    graph = graph_of(BRANCH)
    assert {"x", "w", "c"} <= set(read_by(graph.node[0]))
    assert {body.name for body in bodies_of(graph.node[0])} == {"one", "two"}
    assert {"x", "w"} <= find_gradient_reach(graph)


def test_results_that_are_computed_from_results() -> None:
    graph = graph_of(
        "(float[n] x) => (float[n] a, float[n] b, float[n] c, int64[1] s)"
        " { a = Exp (x) b = Neg (a) c = Neg (x) s = Shape (a) }"
    )
    assert results_of_results(graph) == {0: [1]}


def test_the_last_result_comes_first_and_a_copy_counts_as_its_source() -> None:
    graph = graph_of(
        "(float[n] x) => (float[n] a, float[n] b, float[n] c)"
        " { a = Exp (x) b = Neg (a) c = Identity (a) }"
    )
    assert last_results_first(graph) == [1, 2, 0]
