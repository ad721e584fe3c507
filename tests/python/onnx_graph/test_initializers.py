"""A module's tensors as initializers of an ONNX graph."""

import numpy as np
import onnx
import onnx.numpy_helper
import torch
from onnx import parser

from steep.onnx_graph.initializers import embed_weights, rename, with_states

MODEL = """
    <ir_version: 10, opset_import: ["" : 21]>
    agraph (float[2] x, float[2] first, float[2] second, bool c) => (float[2] z) {
        y = Mul (x, first)
        z = If (c) <
            then_branch = one () => (float[2] a) { a = Add (y, second) },
            else_branch = two () => (float[2] b) { b = Add (y, first) }
        >
    }
"""


class Tied(torch.nn.Module):
    """Two names of one parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.a = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
        self.b = self.a


def inner_inputs(model: onnx.ModelProto) -> list[list[str]]:
    """Return what the nodes of both branches read."""
    return [list(a.g.node[0].input) for a in model.graph.node[1].attribute]


def test_tied_weights_become_one_initializer() -> None:
    model = embed_weights(parser.parse_model(MODEL), {"first": "a", "second": "b"}, Tied())
    assert [i.name for i in model.graph.initializer] == ["first"]
    np.testing.assert_array_equal(
        onnx.numpy_helper.to_array(model.graph.initializer[0]), [1.0, 2.0]
    )
    assert [v.name for v in model.graph.input] == ["x", "c"]
    assert inner_inputs(model) == [["y", "first"], ["y", "first"]]
    onnx.checker.check_model(model)


def test_weights_whose_memory_is_transposed_keep_their_order() -> None:
    module = torch.nn.Module()
    module.w = torch.nn.Parameter(torch.arange(6.0).view(2, 3).t())
    text = '<ir_version: 10, opset_import: ["" : 21]> g (float[3,2] w) => (float[3,2] y) '
    model = embed_weights(parser.parse_model(text + "{ y = Neg (w) }"), {"w": "w"}, module)
    array = onnx.numpy_helper.to_array(model.graph.initializer[0])
    np.testing.assert_array_equal(array, module.w.detach().numpy())


def test_states_have_a_type_and_no_data_in_a_copy() -> None:
    before = parser.parse_model(MODEL)
    model = with_states(before, {"first": "layer.weight"})
    (state,) = model.graph.initializer
    assert (state.name, state.data_type, list(state.dims)) == ("layer.weight", 1, [2])
    assert not state.raw_data and not state.float_data
    assert model.graph.node[0].input[1] == "layer.weight"
    assert inner_inputs(model)[1] == ["y", "layer.weight"]
    assert before == parser.parse_model(MODEL)


def test_rename_reaches_the_bodies_of_nodes() -> None:
    model = parser.parse_model(MODEL)
    rename(model.graph, {"y": "hidden"})
    assert inner_inputs(model) == [["hidden", "second"], ["hidden", "first"]]
