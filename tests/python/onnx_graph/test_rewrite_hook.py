"""Users' rewrites of lowered graphs: copies, checks and threads."""

import threading

import onnx
import pytest
from onnx import parser

from steep.errors import ModelError
from steep.onnx_graph.rewrite_hook import Rewrite, current_rewrite, rewriting

MODEL = """
    <ir_version: 10, opset_import: ["" : 21]>
    agraph (float[n] x) => (float[n] y) { y = Neg (x) }
"""


def to_abs(model: onnx.ModelProto) -> None:
    """Replace the operator of the first node."""
    model.graph.node[0].op_type = "Abs"


def test_a_rewrite_changes_a_copy() -> None:
    model = parser.parse_model(MODEL)
    changed = Rewrite([to_abs])(model)
    assert changed.graph.node[0].op_type == "Abs"
    assert model.graph.node[0].op_type == "Neg"


def test_no_changes_give_the_model_itself() -> None:
    model = parser.parse_model(MODEL)
    assert Rewrite([])(model) is model


def rename_output(model: onnx.ModelProto) -> None:
    """Do what a rewrite may not."""
    model.graph.output[0].name = model.graph.node[0].output[0] = "z"


def break_graph(model: onnx.ModelProto) -> None:
    """Leave a graph that reads a value that nobody computes."""
    model.graph.node[0].input[0] = "nothing"


def fail(model: onnx.ModelProto) -> None:
    """Raise an error of the user's own."""
    raise LookupError("mine")


@pytest.mark.parametrize(
    ("change", "kind", "text"),
    [
        (rename_output, ModelError, "changed the outputs of a graph"),
        (break_graph, ModelError, "not valid ONNX"),
        (fail, LookupError, "mine"),
    ],
)
def test_the_first_error_is_kept(change, kind: type[Exception], text: str) -> None:
    rewrite = Rewrite([change])
    with pytest.raises(kind, match=text):
        rewrite(parser.parse_model(MODEL))
    first = rewrite.error
    assert first is not None and text in str(first)
    with pytest.raises(kind):
        rewrite(parser.parse_model(MODEL))
    assert rewrite.error is first


def test_the_innermost_rewrite_of_this_thread_counts() -> None:
    outer, inner = Rewrite([to_abs]), Rewrite([])
    seen: list[Rewrite | None] = []
    assert current_rewrite() is None
    with rewriting(outer):
        with pytest.raises(LookupError), rewriting(inner):
            assert current_rewrite() is inner
            raise LookupError
        assert current_rewrite() is outer
        thread = threading.Thread(target=lambda: seen.append(current_rewrite()))
        thread.start()
        thread.join()
    assert seen == [None]
    assert current_rewrite() is None
