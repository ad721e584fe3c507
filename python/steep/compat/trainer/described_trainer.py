"""``ORTTrainer`` of ONNX Runtime 1.6 to 1.16, with a model description, a config and options."""

from __future__ import annotations

import dataclasses
import io
import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn.utils import get_total_norm
from torch.utils.dlpack import from_dlpack

from steep import _steep
from steep.compat.optim.configs import _OptimizerConfig
from steep.compat.optim.loss_scalers import DynamicLossScaler
from steep.compat.optim.tensor_update import TensorUpdate
from steep.compat.trainer.options import ORTTrainerOptions
from steep.errors import CheckpointError, DataError, ModelError, counted
from steep.export.module_to_onnx import export
from steep.module.ort_module import ORTModule
from steep.session.processes import require_alone
from steep.torch_internals.operators import foreach_mul_
from steep.trainers.loss_module import in_mode
from steep.trainers.optimizer_state import require_count, require_counts, without_moments

log = logging.getLogger("steep")


@dataclasses.dataclass
class TrainStepInfo:
    """Information for schedulers and loss scalers.

    Attributes:
        optimizer_config: the optimizer's configuration; its ``lr`` is the base rate.
        all_finite: whether the gradients of the last update were finite.
        fetches: accepted for compatibility.
        optimization_step: number of updates so far.
        step: number of calls of ``train_step`` so far.
    """

    optimizer_config: _OptimizerConfig
    all_finite: bool = True
    fetches: list[str] = dataclasses.field(default_factory=list)
    optimization_step: int = 0
    step: int = 0


class _Described(torch.nn.Module):
    """A module (inputs…) → described outputs; with a ``loss_fn``, the last input is the label."""

    def __init__(self, model: torch.nn.Module, loss_fn: Callable[..., Any] | None) -> None:
        super().__init__()
        self.model, self.loss_fn = model, loss_fn

    def forward(self, *inputs: torch.Tensor) -> Any:
        if self.loss_fn is None:
            return self.model(*inputs)
        *arguments, label = inputs
        result = self.model(*arguments)
        rest = result if isinstance(result, tuple) else (result,)
        return (self.loss_fn(result, label), *rest)


class ORTTrainer:
    """Trains a model whose inputs and outputs are described.

    Forward and backward are one compiled program, the update of all parameters is another; between
    them gradients are accumulated, checked and clipped. ``steep.trainer`` compiles the whole step.

    >>> trainer = ORTTrainer(model, {"inputs": [("x", ["n", 4]), ("y", ["n", 2])],
    ...                              "outputs": [("loss", [], True), ("out", ["n", 2])]},
    ...                      AdamConfig(lr=1e-3), loss_fn)
    >>> loss, out = trainer.train_step(x, y)

    Args:
        model: its parameters are updated in place.
        model_desc: a dict of "inputs", each (name, shape), the label last if there is a
            ``loss_fn``, and "outputs", each (name, shape) or (name, shape, is_loss), in the order
            in which the model returns them; the loss first if there is a ``loss_fn``.
        optim_config: an ``SGDConfig``, ``AdamConfig`` or ``LambConfig``.
        loss_fn: called with the model's result and the label.
        options: an ``ORTTrainerOptions``. Mixed precision has float16 products, with a
            ``DynamicLossScaler`` unless another is given.

    Raises:
        DataError: the description, a name or an option is wrong.
        ProviderError: a launcher started several processes, and each would train alone.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        model_desc: Mapping[str, Any],
        optim_config: _OptimizerConfig,
        loss_fn: Callable[..., Any] | None = None,
        options: ORTTrainerOptions | None = None,
    ) -> None:
        require_alone("ORTTrainer")
        self._inputs, self._outputs, self._loss_at = _description(model_desc)
        settings: Any = options or ORTTrainerOptions()  # its sections are dynamic attributes
        self.options: Any = settings
        self.optim_config, self.loss_fn, self.model = optim_config, loss_fn, model
        self._train_step_info = TrainStepInfo(optim_config)
        mixed_precision = settings.mixed_precision
        self._scaler = (
            (mixed_precision.loss_scaler or DynamicLossScaler())
            if mixed_precision.enabled
            else None
        )
        self._net = _Described(model, loss_fn)
        precision = "fp16" if mixed_precision.enabled else None
        self._module = ORTModule(self._net, fallback=None, precision=precision)
        self._parameters = self._find_parameters()
        self._groups = self._group_parameters()
        self._gradients: dict[str, torch.Tensor] = {}  # of the parts of a step
        self._update: TensorUpdate | None = None
        self._holds_for: list[object] = []  # what the update is compiled for
        self._pending: Mapping[str, Any] | None = None
        self._others: dict[str, Any] = {}  # moments of parameters that the update does not have

    def train_step(self, *args: torch.Tensor, **kwargs: torch.Tensor) -> Any:
        """Run one step on the described inputs; return the described outputs.

        A single output is returned as it is, several as a tuple. With gradient accumulation, every
        n-th step updates by the mean of the gradients. Parameters without a gradient stay as they
        are, and so does every ``grad``.

        Raises:
            DataError: an input is missing, or there are too many.
            ModelError: the model does not become one graph, or returns other outputs.
        """
        info = self._train_step_info
        with torch.enable_grad(), in_mode(self._net, True):
            outputs = self._call_module(args, kwargs)
            every = self.options.batch.gradient_accumulation_steps
            self._add_gradients(outputs[self._loss_at] * (self._scale() / every))
        info.step += 1
        if info.step % every == 0:
            self._learn()
        return _alone(outputs)

    def eval_step(self, *args: torch.Tensor, **kwargs: torch.Tensor) -> Any:
        """Return the described outputs in evaluation mode, without an update."""
        with torch.no_grad(), in_mode(self._net, False):
            return _alone(self._call_module(args, kwargs))

    def save_as_onnx(self, path: str | os.PathLike[str], *inputs: torch.Tensor) -> None:
        """Write the model, without ``loss_fn``, as ONNX for inputs like these."""
        opset = max(18, self.options._internal_use.onnx_opset_version)
        with in_mode(self.model, False):
            proto = export(self.model, inputs, opset=opset)
        _steep.write_file(os.fspath(path), proto.SerializeToString())

    def state_dict(self, pytorch_format: bool = False) -> dict[str, Any]:
        """Return copies of the model's state, under "model", and moments and counters.

        ``pytorch_format``: return only the model's state, as its ``state_dict``.
        """
        weights = {name: t.detach().clone() for name, t in self.model.state_dict().items()}
        if pytorch_format:
            return weights
        info = self._train_step_info
        return {
            "model": weights,
            "optimizer": self._moments(),
            "train_step_info": {"step": info.step, "optimization_step": info.optimization_step},
            "loss_scale": self._scale(),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> None:
        """Load a result of ``state_dict``.

        Raises KeyError for a missing entry; DataError for a step count that is negative, fractional
        or not finite; and errors of ``torch.nn.Module.load_state_dict``. After a KeyError or
        DataError nothing has changed. The next step raises DataError if some moments of a parameter
        are missing, and the logger ``steep`` warns of parameters that have none, if others have.
        """
        state = state_dict
        counts, moments, scale = state["train_step_info"], state["optimizer"], state["loss_scale"]
        step, optimization_step = counts["step"], counts["optimization_step"]
        require_count(step, "step")
        require_count(optimization_step, "optimization_step")
        require_counts(moments)
        self.model.load_state_dict(state["model"], strict=strict)
        info = self._train_step_info
        info.step, info.optimization_step = step, optimization_step
        if self._scaler is not None:
            self._scaler.loss_scale = scale
        self._update, self._pending, self._others = None, moments or None, {}

    def save_checkpoint(
        self,
        path: str | os.PathLike[str],
        user_dict: Mapping[str, Any] | None = None,
        include_optimizer_states: bool = True,
    ) -> None:
        """Write ``state_dict`` and ``user_dict`` to one new file, in ``torch.save``'s format.

        Raises:
            CheckpointError: the file exists already.
            IoError: it cannot be written; then there is no file.
        """
        if os.path.exists(path):
            raise CheckpointError("The file exists already.", node=os.fspath(path))
        _steep.write_file(os.fspath(path), self._checkpoint(user_dict, include_optimizer_states))

    def load_checkpoint(
        self, *paths: str | os.PathLike[str], strict: bool = True
    ) -> dict[str, Any]:
        """Load a file of ``save_checkpoint``; return its ``user_dict``.

        Raises:
            DataError: there is not exactly one path; several files would be those of several
                processes.
            CheckpointError: it is not such a file, or damaged.
            FileNotFoundError: there is no file.
            KeyError, RuntimeError: its state belongs to another trainer or model.
        """
        if len(paths) != 1:
            raise DataError(
                "A checkpoint is one file: a trainer is one process.",
                expected="1 path",
                received=f"{len(paths)} paths",
            )
        (path,) = paths
        state, user = read_checkpoint(path)
        self.load_state_dict(state, strict)
        return user

    # --- inside -----------------------------------------------------------------------------------

    def _checkpoint(self, user_dict: Mapping[str, Any] | None, with_optimizer: bool) -> bytes:
        state = self.state_dict()
        if not with_optimizer:
            state["optimizer"] = {}
        content = io.BytesIO()
        torch.save({"state": state, "user": dict(user_dict or {})}, content)
        return content.getvalue()

    def _call_module(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        arguments = dict(zip(self._inputs, args, strict=False)) | kwargs
        if len(args) + len(kwargs) != len(self._inputs) or set(arguments) != set(self._inputs):
            raise DataError(
                "The inputs differ from those in model_desc.",
                expected=", ".join(self._inputs),
                received=f"{len(args)} by position; {', '.join(kwargs) or 'none'} by name",
            )
        result = self._module(*(arguments[name] for name in self._inputs))
        if isinstance(result, Mapping):
            result = tuple(result[name] for name in self._outputs)
        outputs = tuple(result) if isinstance(result, (tuple, list)) else (result,)
        if len(outputs) < len(self._outputs):
            raise ModelError(
                "The model returns fewer outputs than model_desc describes.",
                expected=", ".join(self._outputs),
                received=counted(len(outputs), "output"),
            )
        return outputs[: len(self._outputs)]

    def _scale(self) -> float:
        return 1.0 if self._scaler is None else float(self._scaler.loss_scale)

    def _add_gradients(self, loss: torch.Tensor) -> None:
        """Add a loss's gradients to those of the step; ``grad`` of parameters is the user's."""
        parameters = {name: p for name, p in self._parameters.items() if p.requires_grad}
        users = {name: p.grad for name, p in parameters.items()}
        try:
            for name, p in parameters.items():
                p.grad = self._gradients.get(name)
            loss.backward()
            found = {name: p.grad for name, p in parameters.items()}
            self._gradients |= {name: g for name, g in found.items() if g is not None}
        finally:
            for name, p in parameters.items():
                p.grad = users[name]

    def _learn(self) -> None:
        """Update by the accumulated gradients, unless one is not finite; then drop them."""
        info = self._train_step_info
        gradients = list(self._gradients.values())
        info.all_finite = True
        if self._scaler is not None:
            info.all_finite = math.isfinite(float(get_total_norm(gradients, math.inf)))
            foreach_mul_(gradients, 1 / self._scale())
            self._scaler.update(info)
        if info.all_finite:
            bound = self.optim_config.max_norm_clip
            if self.options.utils.grad_norm_clip and math.isfinite(bound):
                factor = bound / (get_total_norm(gradients) + 1e-6)  # as clip_grad_norm_
                foreach_mul_(gradients, float(factor.clamp(max=1.0)))
            self._step(self._gradients)
            info.optimization_step += 1
        self._gradients = {}

    def _step(self, gradients: Mapping[str, torch.Tensor]) -> None:
        schedule = self.options.lr_scheduler
        lr = self.optim_config.lr
        if schedule is not None:
            (lr, *_) = schedule._step(self._train_step_info)
        groups = [
            (own, self.optim_config.options(lr, group))
            for names, group in self._groups
            if (own := [name for name in names if name in gradients])
        ]
        if not groups:
            return
        parameters = [self._parameters[name] for names, _ in groups for name in names]
        holds_for = [(id(p), p.data_ptr(), p.shape, p.stride()) for p in parameters]
        if self._update is None or holds_for != self._holds_for:
            self._make_update(groups)
            self._holds_for = [*holds_for]
        assert self._update is not None
        for i, (_, options) in enumerate(groups):
            self._update.session.set_group(i, options)
        self._update.step([gradients[name].contiguous() for name in self._update.parameters])

    def _make_update(self, groups: Sequence[tuple[list[str], _steep.OptimizerOptions]]) -> None:
        """Compile the update, and load the moments that there are."""
        moments = self._moments() if self._pending is None else dict(self._pending)
        update = TensorUpdate(
            [({n: self._parameters[n] for n in names}, options) for names, options in groups]
        )
        keys = update.session.optimizer_state_names
        if self._pending is not None:
            new = without_moments(((k, k.partition("/")[2]) for k in keys), moments, "")
            if new:
                log.warning("the state has no moments of %s: they start anew", ", ".join(new))
        apart = self._parameters.keys() - update.parameters.keys()
        others = {k: v for k, v in moments.items() if k.partition("/")[2] in apart}
        update.session.set_optimizer_state({k: v for k, v in moments.items() if k not in others})
        self._update, self._others, self._pending = update, others, None

    def _moments(self) -> dict[str, Any]:
        """Return copies of all moments."""
        own = {} if self._update is None else self._update.session.optimizer_state()
        return self._others | {key: from_dlpack(tensor) for key, tensor in own.items()}

    def _find_parameters(self) -> dict[str, torch.nn.Parameter]:
        parameters = dict(self.model.named_parameters())
        frozen_names = self.options.utils.frozen_weights
        for name in [*frozen_names, *self.optim_config.names()]:
            if name not in parameters:
                raise DataError(
                    "There is no such parameter.", expected=", ".join(parameters), received=name
                )
        for name in frozen_names:
            parameters[name].requires_grad_(False)
        return {name: p for name, p in parameters.items() if name not in frozen_names}

    def _group_parameters(self) -> list[tuple[list[str], Mapping[str, Any] | None]]:
        apart = self.optim_config.names()
        rest = [name for name in self._parameters if name not in apart]
        groups: list[tuple[list[str], Mapping[str, Any] | None]] = [(rest, None)]
        for group in self.optim_config.params:
            names = [name for name in group["params"] if name in self._parameters]
            groups.append((names, {k: v for k, v in group.items() if k != "params"}))
        return [(names, group) for names, group in groups if names]


def read_checkpoint(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the state and the user's dict of a trainer's checkpoint.

    Raises:
        CheckpointError: it is not such a file, or damaged.
        FileNotFoundError: there is no file.
    """
    file = Path(path)
    if file.exists() and not file.is_file():
        raise _not_a_checkpoint(path, "not a regular file")
    content = io.BytesIO(file.read_bytes())
    try:
        checkpoint = torch.load(content, weights_only=True)
        return checkpoint["state"], checkpoint["user"]
    except Exception as e:  # torch.load raises any error
        received = f"{type(e).__name__}: {str(e).partition(chr(10))[0]}"
        raise _not_a_checkpoint(path, received) from e


def _not_a_checkpoint(path: str | os.PathLike[str], received: str) -> CheckpointError:
    return CheckpointError(
        "The file is not a checkpoint of an ORTTrainer, or it is damaged.",
        node=os.fspath(path),
        received=received,
        remedy="load one that save_checkpoint wrote",
    )


def _alone(outputs: tuple[Any, ...]) -> Any:
    values = tuple(o.detach() if isinstance(o, torch.Tensor) else o for o in outputs)
    return values[0] if len(values) == 1 else values


def _description(model_desc: Mapping[str, Any]) -> tuple[list[str], list[str], int]:
    """Return the names of inputs, the names of outputs, and the position of the loss."""

    def wrong(why: str) -> DataError:
        return DataError(f"Invalid model_desc: {why}.", expected='{"inputs": […], "outputs": […]}')

    if not isinstance(model_desc, Mapping) or set(model_desc) != {"inputs", "outputs"}:
        raise wrong("it does not have the keys inputs and outputs")
    for key, most in (("inputs", 2), ("outputs", 3)):
        entries = model_desc[key]
        if not isinstance(entries, (list, tuple)) or not entries:
            raise wrong(f"{key} is not a list, or is empty")
        for entry in entries:
            fits = isinstance(entry, (list, tuple)) and 2 <= len(entry) <= most
            if not fits or not isinstance(entry[0], str) or not isinstance(entry[1], (list, tuple)):
                raise wrong(f"{entry!r} of {key} is not (name, shape)")
            if not all(isinstance(extent, (int, str)) for extent in entry[1]):
                raise wrong(f"a shape of {key} has other than numbers and names")
    losses = [i for i, output in enumerate(model_desc["outputs"]) if len(output) == 3 and output[2]]
    if len(losses) != 1:
        raise wrong(f"{counted(len(losses), 'output')} are the loss")
    names = [[entry[0] for entry in model_desc[key]] for key in ("inputs", "outputs")]
    return names[0], names[1], losses[0]
