"""``Optimizer`` and ``LinearLRScheduler`` of on-device training."""

from __future__ import annotations

import os

import numpy as np
import onnx
from onnx import helper

from steep.compat.on_device.training_module import Module, _read, describe_types
from steep.compat.on_device.training_state import Array
from steep.compat.onnxblock.artifacts import serialise
from steep.compat.onnxblock.optimizers import RATE, STEP, UPDATED, gradient_name
from steep.compat.state_file import OptimizerState, blank
from steep.errors import CheckpointError, DataError, ModelError
from steep.session.inference import InferenceSession


class Optimizer:
    """Updates the parameters of a module by the gradients that its calls have accumulated.

    The learning rate is 0.001 until it is set. Moments, step and rate belong to the state: training
    from a checkpoint that was saved with them continues without a difference.

    Args:
        optimizer_uri: path of an optimizer model, of ``generate_artifacts`` or another whose
            inputs and outputs have the names of ``compat/onnxblock/optimizers.py``.
        module: the module whose parameters it updates.

    Raises:
        ModelError: the file is no such model, or trains other parameters.
        CheckpointError: the state has the moments of another optimizer.
        IoError: the file cannot be read.
    """

    def __init__(self, optimizer_uri: str | os.PathLike[str], module: Module) -> None:
        if not isinstance(module, Module):
            raise DataError(
                "An Optimizer needs a Module.",
                expected="Optimizer(optimizer_uri, module)",
                received=type(module).__name__,
            )
        self._module = module
        self._state = module._state
        model = _read(optimizer_uri, "optimizer", self._state)
        where = os.fspath(optimizer_uri)
        self._targets = {o.name: o.name.removeprefix(UPDATED) for o in model.graph.output}
        inputs = {i.name: i for i in model.graph.input}
        gradients = {gradient_name(name) for name in module._trained_names}
        trained = [n for n in module._trained_names if UPDATED + n in self._targets]
        moments = [n for n in self._targets.values() if n not in self._state.parameters]
        available = {RATE, STEP, *trained, *gradients, *moments}
        if set(inputs) - available or set(self._targets.values()) - set(inputs):
            raise ModelError(
                "The file is not a model of an optimizer's step.",
                node=where,
                expected=f"inputs {RATE}, {STEP}, P, P_grad and moments; outputs {UPDATED}…",
                received=", ".join(inputs),
                remedy="generate_artifacts(…, optimizer=OptimType.AdamW) writes one",
            )
        if len(trained) != len(module._trained_names):
            lacking = [n for n in module._trained_names if n not in trained]
            raise ModelError(
                "The optimizer does not train all of the module's parameters.",
                node=where,
                expected=", ".join(module._trained_names),
                received="no " + ", ".join(lacking),
                remedy="generate the files of one module together",
            )
        self._inputs = set(inputs)
        fresh = {name: _zeros(inputs[name]) for name in moments}
        self._optimizer_state = self._join_state(fresh)
        self._session = InferenceSession(serialise(model), module._options)

    def step(self) -> None:
        """Update the parameters. The gradients stay until the next call after ``lazy_reset_grad``.

        Raises:
            DataError: no training call of the module has computed gradients.
        """
        with self._state._lock:
            self._update(self._module._require_gradients())

    def _update(self, gradients: dict[str, Array]) -> None:
        state = self._optimizer_state
        feed: dict[str, Array] = {
            RATE: np.float32(state.lr).reshape(()),
            STEP: np.int64(state.step + 1).reshape(()),
            **{gradient_name(name): gradient for name, gradient in gradients.items()},
            **self._state._content.values,
            **state.moments,
        }
        arrays = {name: array for name, array in feed.items() if name in self._inputs}
        results = self._session.run(list(self._targets), arrays)
        for target, result in zip(self._targets.values(), results, strict=True):
            values = state.moments if target in state.moments else self._state._content.values
            np.copyto(values[target], result)
        state.step += 1

    def set_learning_rate(self, learning_rate: float) -> None:
        """Set the rate of the next steps.

        Raises DataError if it is negative, or not finite in float32.
        """
        self._optimizer_state.lr = _rate(learning_rate)

    def get_learning_rate(self) -> float:
        """Return the rate of the next step."""
        return self._optimizer_state.lr

    def _join_state(self, fresh: dict[str, Array]) -> OptimizerState:
        """Return the optimizer state in the checkpoint state; add it there if it is missing.

        Raises CheckpointError: the checkpoint state has the moments of another optimizer.
        """
        state = self._state._content.optimizer
        if state is None:
            state = self._state._content.optimizer = OptimizerState(moments=fresh)
        if not fresh and not any(array.any() for array in state.moments.values()):
            state.moments = {}  # ONNX Runtime's SGD has one moment, which stays 0
        types = {name: (a.dtype, a.shape) for name, a in state.moments.items()}
        if types != {name: (a.dtype, a.shape) for name, a in fresh.items()}:
            raise CheckpointError(
                "The state has the moments of another optimizer.",
                expected=describe_types(fresh) or "none",
                received=describe_types(state.moments) or "none",
                remedy="save the checkpoint without include_optimizer_state to begin anew",
            )
        return state


class LinearLRScheduler:
    """A learning rate that rises linearly from 0, then falls to 0, by steps of the optimizer.

    At step t it is ``initial_lr`` · t / ``warmup_step_count`` until that many steps, and then
    ``initial_lr`` · (``total_step_count`` - t) / (``total_step_count`` - ``warmup_step_count``).
    The constructor and each ``step`` set the rate of the next step.

    >>> scheduler = LinearLRScheduler(optimizer, 100, 1000, 1e-3)
    >>> optimizer.step()
    >>> scheduler.step()

    Args:
        optimizer: the optimizer whose rate it sets.
        warmup_step_count, total_step_count: numbers of steps.
        initial_lr: the highest rate.

    Raises:
        DataError: the counts are negative or in the wrong order, or the rate is negative or not
            finite.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        warmup_step_count: int,
        total_step_count: int,
        initial_lr: float,
    ) -> None:
        if not 0 <= warmup_step_count <= total_step_count:
            raise DataError(
                "The counts of steps do not fit.",
                expected="0 <= warmup_step_count <= total_step_count",
                received=f"{warmup_step_count} and {total_step_count}",
            )
        self._optimizer = optimizer
        self._warmup, self._total = warmup_step_count, total_step_count
        optimizer._optimizer_state.initial_lr = _rate(initial_lr)
        self.step()

    def step(self) -> None:
        """Set the optimizer's rate according to its number of steps."""
        state = self._optimizer._optimizer_state
        if state.step < self._warmup:
            factor = state.step / self._warmup
        else:
            factor = max(0.0, self._total - state.step) / max(1, self._total - self._warmup)
        self._optimizer.set_learning_rate(state.initial_lr * factor)


def _rate(value: float) -> float:
    rate = float(value)
    if not 0 <= rate <= float(np.finfo(np.float32).max):
        raise DataError(
            "A learning rate is out of range.",
            expected="a number of at least 0 that is finite in float32",
            received=repr(value),
        )
    return rate


def _zeros(value: onnx.ValueInfoProto) -> Array:
    tensor = value.type.tensor_type
    if not all(d.HasField("dim_value") for d in tensor.shape.dim):
        raise ModelError(
            "A moment of an optimizer has extents that are not known.",
            node=value.name,
            expected="numbers",
            received=str([d.dim_param or d.dim_value for d in tensor.shape.dim]),
        )
    dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    try:
        return blank([d.dim_value for d in tensor.shape.dim], dtype)
    except ValueError as error:
        raise ModelError(
            "A moment of an optimizer is too large.", node=value.name, received=str(error)
        ) from error
