"""An optimizer's step on PyTorch tensors and their gradients, as one compiled program."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import onnx
import torch
from onnx import TensorProto, helper
from torch.autograd.graph import increment_version

from steep import _steep
from steep.errors import DataError
from steep.session.custom_ops import register_op
from steep.session.training import TrainingSession

_DTYPES = {torch.float32: TensorProto.FLOAT, torch.float64: TensorProto.DOUBLE}
_DOMAIN = "compat"
# A loss that is constant 0, but whose gradient with respect to w is declared to be the input g: the
# program then consists of the engine's updates only.
_GIVEN = f'<domain: "{_DOMAIN}", opset_import: ["": 18]>'
_LOSS = f"{_GIVEN} Given (w, g) => (y) {{ y = Constant <value_float = 0.0> () }}"
_GRADIENT = f'{_GIVEN} GivenGrad (w, g, y, dy) => (dw, "") {{ dw = Identity (g) }}'
_registering = threading.Lock()


class _Update(TrainingSession):
    _in_one_process = False  # gradients are inputs, and may be a mean over processes


class TensorUpdate:
    """Updates parameters in place, all of them in one call.

    A parameter that is not contiguous keeps its memory: the program updates a copy, which is then
    written back.

    Args:
        groups: pairs of parameters by name and their ``OptimizerOptions``, which may differ between
            groups. Parameters are float32 or float64, in CPU memory.

    Raises:
        DataError: a parameter is of another kind, or in the groups twice.
        ModelError: an option is out of range.
    """

    def __init__(
        self, groups: Sequence[tuple[Mapping[str, torch.Tensor], _steep.OptimizerOptions]]
    ) -> None:
        self.parameters = {name: p for group, _ in groups for name, p in group.items()}
        for name, parameter in self.parameters.items():
            _check(name, parameter)
        if len({id(p) for p in self.parameters.values()}) != sum(len(g) for g, _ in groups):
            raise DataError(
                "A parameter is in the groups twice.",
                expected="each parameter in one group, once",
                received=", ".join(self.parameters),
                remedy="keep it in the group whose settings it needs",
            )
        self._memory = {name: p.detach().contiguous() for name, p in self.parameters.items()}
        with _registering, register_op(_LOSS, _GRADIENT):
            self.session = _Update(
                self._model(),
                output="loss",
                optimizer=groups[0][1].kind,
                trainable=list(self.parameters),
                groups=[(list(group), options) for group, options in groups],
                weights=self._memory,
                bound_to_graph=False,
            )

    def _model(self) -> onnx.ModelProto:
        """Return a model whose inputs are the gradients, in the order of the parameters."""
        nodes, inputs, initializers = [], [], []
        for i, (name, parameter) in enumerate(self.parameters.items()):
            dtype, shape = _DTYPES[parameter.dtype], list(parameter.shape)
            nodes.append(helper.make_node("Given", [name, f"g/{i}"], [f"y/{i}"], domain=_DOMAIN))
            inputs.append(helper.make_tensor_value_info(f"g/{i}", dtype, shape))
            initializers.append(TensorProto(name=name, data_type=dtype, dims=shape))
        nodes.append(helper.make_node("Sum", [f"y/{i}" for i in range(len(inputs))], ["loss"]))
        loss = helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])
        graph = helper.make_graph(nodes, "update", inputs, [loss], initializers)
        opsets = [helper.make_opsetid("", 18), helper.make_opsetid(_DOMAIN, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    def step(self, gradients: Sequence[torch.Tensor]) -> None:
        """Update every parameter by its gradient.

        Gradients come in the order of the parameters, with their dtypes and shapes. Raises
        ShapeError before any change.
        """
        apart = [
            (p.detach(), self._memory[name])
            for name, p in self.parameters.items()
            if not p.is_contiguous()
        ]
        for parameter, copy in apart:
            copy.copy_(parameter)
        self.session.step(*(g.detach() for g in gradients))
        for parameter, copy in apart:
            parameter.copy_(copy)
        # PyTorch does not see these writes: a backward that needs the former values is an error
        increment_version([p for p in self.parameters.values() if not p.is_inference()])


def _check(name: str, parameter: torch.Tensor) -> None:
    if parameter.dtype in _DTYPES and parameter.device.type == "cpu":
        return
    raise DataError(
        "A parameter cannot be updated in place.",
        node=name,
        expected="float32 or float64, in CPU memory",
        received=f"{parameter.dtype} on {parameter.device}",
        remedy='keep weights in float32; precision="bf16" has products in 16 bits',
    )
