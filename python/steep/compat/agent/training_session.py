"""``TrainingSession`` of ONNX Runtime up to 1.16, with its options in ``TrainingParameters``."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from steep import _steep
from steep.compat.agent.settings import Settings
from steep.compat.inference.ort_value import OrtValue, PythonOrtValue
from steep.compat.inference.session import SessionIOBinding, check_run, with_options
from steep.compat.notices import log
from steep.errors import DataError, ModelError
from steep.session import training
from steep.session.inference import NodeArg, SessionOptions, node_arg

Array = np.ndarray[Any, Any]

_KINDS = {"SGDOptimizer": "sgd", "AdamOptimizer": "adamw", "LambOptimizer": "lamb"}
_RATIOS = {"ratio_min": -math.inf, "ratio_max": math.inf}
_SHARE_COUNT = ("LambOptimizer",)
_MOMENTS = {"exp_avg": "Moment_1", "exp_avg_sq": "Moment_2", "momentum_buffer": "Momentum"}
_ONE_PROCESS = (
    "data_parallel_size",
    "horizontal_parallel_size",
    "pipeline_parallel_size",
    "num_pipeline_micro_batches",
    "world_size",
)


class TrainingParameters(Settings):
    """Options of a ``TrainingSession``.

    Attributes:
        loss_output_name: the output that is the loss.
        weights_to_train: initializers; by default every one that acts as a weight.
        weights_not_to_train, immutable_weights: initializers to exclude from the former.
        training_optimizer_name: "SGDOptimizer", "AdamOptimizer" or "LambOptimizer".
        optimizer_attributes_map: by weight: "alpha", "beta", "lambda", "epsilon", "max_norm_clip".
        optimizer_int_attributes_map: by weight: "do_bias_correction", "weight_decay_mode" (0).
        lr_params_feed_name: name of the learning rate among the inputs of ``run``.
        enable_grad_norm_clip: bounds the gradients' norm by "max_norm_clip" (1), except for SGD.
        gradient_accumulation_steps: number of runs for one update by the mean of their gradients.
        use_mixed_precision, loss_scale: float16 products, and the initial loss scale (0: 65536).

    Options that divide a model among processes must be 1; another value is an error. Options that
    are not listed here have no effect.
    """

    _defaults: ClassVar[Mapping[str, Any]] = {
        "loss_output_name": "",
        "weights_to_train": set(),
        "weights_not_to_train": set(),
        "immutable_weights": {},
        "training_optimizer_name": "",
        "optimizer_attributes_map": {},
        "optimizer_int_attributes_map": {},
        "optimizer_initial_state": {},
        "lr_params_feed_name": "Learning_Rate",
        "enable_grad_norm_clip": True,
        "gradient_accumulation_steps": 1,
        "use_mixed_precision": False,
        "loss_scale": 0.0,
        **dict.fromkeys(_ONE_PROCESS, 1),
        "world_rank": 0,
        "deepspeed_zero_stage": 0,
        "set_gradients_as_graph_outputs": False,
        "allreduce_post_accumulation": False,
        "attn_dropout_recompute": False,
        "enable_adasum": False,
        "gelu_recompute": False,
        "model_after_graph_transforms_path": "",
        "model_with_gradient_graph_path": "",
        "model_with_training_graph_path": "",
        "number_recompute_layers": 0,
        "pipeline_cut_info_string": "",
        "propagate_cast_ops_allow": [],
        "propagate_cast_ops_level": 1,
        "sliced_axes": {},
        "sliced_schema": {},
        "sliced_tensor_names": [],
        "transformer_layer_recompute": False,
        "use_fp16_moments": False,
        "use_memory_efficient_gradient": False,
    }
    _idle = frozenset(
        name
        for name in list(_defaults)[list(_defaults).index("allreduce_post_accumulation") :]
        if name != "use_fp16_moments"
    )

    loss_output_name: str
    weights_to_train: set[str]
    weights_not_to_train: set[str]
    immutable_weights: Mapping[str, Any]
    training_optimizer_name: str
    optimizer_attributes_map: Mapping[str, Mapping[str, float]]
    optimizer_int_attributes_map: Mapping[str, Mapping[str, int]]
    lr_params_feed_name: str
    enable_grad_norm_clip: bool
    gradient_accumulation_steps: int
    use_mixed_precision: bool
    loss_scale: float

    def set_optimizer_initial_state(self, state: Mapping[str, Any]) -> None:
        """Raise DataError: ``load_state`` of the session takes moments."""
        raise DataError(
            "TrainingParameters cannot hold the state of an optimizer.",
            node="set_optimizer_initial_state",
            remedy="session.load_state(…) once the session is made",
        )


class TrainingSession(training.TrainingSession):
    """A model's training step, configured by ``TrainingParameters``.

    If the loss of a run is not finite, the run returns it and changes no weight, with a log
    message; the other outputs are then those without dropout. ``step`` raises an error.

    ``run`` takes the model's inputs and the learning rate. Without ``parameters`` this is
    ``steep.TrainingSession``, with its arguments.

    >>> parameters = TrainingParameters()
    >>> parameters.loss_output_name = "loss"
    >>> parameters.training_optimizer_name = "SGDOptimizer"
    >>> session = TrainingSession(model.SerializeToString(), parameters)
    >>> (loss,) = session.run(["loss"], {"X": x, "label": y, "Learning_Rate": rate})

    Raises:
        DataError: the parameters request an unknown optimizer, several processes, or gradients
            among the outputs.
        ModelError: as ``steep.TrainingSession``.
    """

    def __init__(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes,
        parameters: TrainingParameters | None = None,
        sess_options: SessionOptions | None = None,
        providers: Sequence[str | tuple[str, Mapping[str, Any]]] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        **arguments: Any,
    ) -> None:
        choice = with_options(providers, provider_options)
        self._parameters = parameters
        self._groups: list[tuple[list[str], _steep.OptimizerOptions]] = []
        if parameters is None:
            super().__init__(path_or_bytes, providers=choice, **arguments)
            return
        _require_possible(parameters)
        source = os.fspath(path_or_bytes) if not isinstance(path_or_bytes, bytes) else path_or_bytes
        arguments = {
            "output": parameters.loss_output_name,
            "trainable": sorted(parameters.weights_to_train),
            "frozen": sorted({*parameters.weights_not_to_train, *parameters.immutable_weights}),
            "providers": choice,
        }
        if sess_options is not None:
            arguments |= {"seed": sess_options.seed, "limits": sess_options.limits}
        # A first session tells the names of outputs and weights, which the final one needs.
        plain = training.TrainingSession(source, **arguments)
        names = [info.name for info in plain.output_info()]
        loss = parameters.loss_output_name or (names[0] if len(names) == 1 else "loss")
        self._names = [name for name in names if name != loss]
        self._loss = loss
        (info,) = (info for info in plain.output_info() if info.name == loss)
        self._loss_type = np.dtype(info.dtype), (1,) * len(info.shape)
        arguments |= _optimizer(parameters, plain.parameter_names)
        self._groups = arguments.get("groups", [])
        super().__init__(source, step_outputs=self._names, **arguments)

    @property
    def _sess(self) -> TrainingSession:  # ONNX Runtime's class wraps a session of this name
        return self

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: object = None,
    ) -> list[Array]:
        """Run a step, and update the weights.

        Args:
            output_names: outputs of the model; None for all.
            input_feed: the model's inputs, and the learning rate under its name.
            run_options: with ``only_execute_path_to_fetches``, no weight is updated, and dropout is
                off.

        Returns:
            The outputs, as they were before the update.

        Raises:
            DataError: an output is unknown, or the learning rate is missing; the options terminate
                the run; and DataError and ShapeError as ``steep.TrainingSession.step``.
        """
        parameters = self._require_parameters()
        check_run(run_options)
        feed = {name: np.asarray(value) for name, value in input_feed.items()}
        rate = feed.pop(parameters.lr_params_feed_name, None)
        for name in output_names or ():
            if name not in (self._loss, *self._names):
                raise DataError(
                    "The model has no such output.",
                    node=name,
                    expected=", ".join((self._loss, *self._names)),
                    received=name,
                )
        if getattr(run_options, "only_execute_path_to_fetches", False):
            values = self._evaluate(feed)
        else:
            self._set_rate(rate)
            values = self._step(parameters.gradient_accumulation_steps, feed)
        return [np.asarray(values[name]) for name in output_names or (self._loss, *self._names)]

    def _set_rate(self, value: Array | None) -> None:
        name = self._require_parameters().lr_params_feed_name
        if value is None and not name:
            return
        if value is None or value.size != 1 or value.dtype.kind not in "fiu":
            raise DataError(
                "A run needs the learning rate.",
                node=name,
                expected="a number, as an array of one element, among the inputs",
                received="nothing" if value is None else f"{value.dtype}{list(value.shape)}",
                remedy="run_options.only_execute_path_to_fetches = True runs without an update",
            )
        self.lr = rate = float(value.reshape(()))
        for i, (_, options) in enumerate(self._groups):
            options.lr = rate
            self.set_group(i, options)

    def _step(self, runs: int, feed: Mapping[str, Array]) -> dict[str, Any]:
        try:
            result = self.step(accumulate=runs > 1, **feed)
        except DataError as error:
            without_update = self._evaluate(feed)
            if np.isfinite(without_update[self._loss]).all():
                raise
            log.warning("%s", error)
            return without_update
        if runs > 1 and self.accumulated == runs:
            self.apply_gradients()
        dtype, shape = self._loss_type
        loss = np.full(shape, result.loss, dtype)
        return {self._loss: loss, **dict(zip(self._names, result.outputs, strict=True))}

    def _evaluate(self, feed: Mapping[str, Array]) -> dict[str, Any]:
        names = [info.name for info in self.output_info()]
        return dict(zip(names, map(np.asarray, self.eval(**feed).outputs), strict=True))

    def run_with_iobinding(self, iobinding: SessionIOBinding, run_options: object = None) -> None:
        """Run a step on bound inputs; the binding then has the outputs. Raises as ``run``."""
        iobinding.fill(self.run(iobinding.output_names(), iobinding.inputs, run_options))

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: object = None,
    ) -> list[OrtValue]:
        """Run a step; results are OrtValues. Raises as ``run``."""
        results = self.run(output_names, input_dict_ort_values, run_options)
        return [PythonOrtValue(result) for result in results]

    def io_binding(self) -> SessionIOBinding:
        """Return an empty binding."""
        return SessionIOBinding(self)

    def get_inputs(self) -> list[NodeArg]:
        """List the inputs of ``run``: the model's inputs and the learning rate."""
        rate = self._require_parameters().lr_params_feed_name
        return [*map(node_arg, self.input_info()), NodeArg(rate, "tensor(float)", [1])]

    def get_outputs(self) -> list[NodeArg]:
        """List the outputs of the model."""
        return [node_arg(info) for info in self.output_info()]

    def get_state(self) -> dict[str, Array]:
        """Return copies of the weights, of moments as Moment_1_NAME and Moment_2_NAME, and counts.

        A count is the number of the next update: Update_Count_NAME, with LAMB one for all, "Step".
        """
        state = {name: np.array(value) for name, value in self.weights().items()}
        for name, value in self.optimizer_state().items():
            if not name.startswith("step/"):
                state[_moment(name)] = np.array(value)
        return state | {name: np.array([n + 1], np.int64) for name, n in self._counts().items()}

    def load_state(self, state_dict: Mapping[str, Any], strict: bool = False) -> None:
        """Copy in a result of ``get_state``. If it has moments without counts, a message says so.

        Raises:
            ModelError: with ``strict``, a name is missing; a name is unknown.
            DataError: a count is not valid, or counts of the weights differ.
            ShapeError: a value has another dtype or shape. Nothing has changed after an error.
        """
        moments = {
            _moment(name): name for name in self.optimizer_state_names if name[:5] != "step/"
        }
        counts = self._counts()
        weights = {n: v for n, v in state_dict.items() if n not in moments and n not in counts}
        missing = sorted({*self.parameter_names, *moments, *counts} - set(state_dict))
        if strict and missing:
            raise ModelError("The state is incomplete.", expected=", ".join(missing))
        steps = self._steps_of({n: v for n, v in state_dict.items() if n in counts})
        former = {name: np.array(value) for name, value in self.weights().items()}
        self.set_weights(weights)
        try:
            self.set_optimizer_state(
                {moments[n]: v for n, v in state_dict.items() if n in moments}
                | {n: v for n, v in steps.items() if n != "step"}
            )
        except Exception:
            self.set_weights(former)
            raise
        if "step" in steps:
            self.step_count = int(steps["step"])
        elif moments.keys() & state_dict.keys() and counts:
            log.warning("the state has moments, and no %s: updates count as before", min(counts))

    def _counts(self) -> dict[str, int]:
        """Return the number of updates so far, by the name of the count in a state."""
        kinds = [name.partition("/") for name in self.optimizer_state_names]
        names = [weight for kind, _, weight in kinds if kind == "exp_avg_sq"]
        if names and self._parameters and self._parameters.training_optimizer_name in _SHARE_COUNT:
            return {"Step": self.step_count}
        apart = {k: int(np.array(v)) for k, v in self.optimizer_state().items() if k[:5] == "step/"}
        return {f"Update_Count_{n}": apart.get(f"step/{n}", self.step_count) for n in names}

    def _steps_of(self, counts: Mapping[str, Any]) -> dict[str, Any]:
        """Return the session's numbers of updates: "step", and of weights with one of their own."""
        numbers: dict[str, int] = {}
        for name, value in counts.items():
            array = np.asarray(value)
            if array.size != 1 or array.dtype.kind not in "iuf" or not array.reshape(()) >= 1:
                raise DataError(
                    "A count of updates is not valid.",
                    node=name,
                    expected="one number of at least 1",
                    received=str(value),
                )
            numbers[name] = int(array.reshape(())) - 1
        apart = [name for name in self.optimizer_state_names if name[:5] == "step/"]
        if not apart and len(set(numbers.values())) > 1:
            raise DataError(
                "The weights of a state have made different numbers of updates.",
                node="Update_Count",
                expected="one number",
                received=", ".join(f"{name} {n + 1}" for name, n in numbers.items()),
            )
        steps: dict[str, Any] = {"step": max(numbers.values())} if numbers else {}
        for name in apart:
            count = numbers.get(f"Update_Count_{name[5:]}", numbers.get("Step"))
            if count is not None:
                steps[name] = np.array(count, np.float32)
        return steps

    def get_model_state(self, include_mixed_precision_weights: bool = False) -> dict[str, Any]:
        """Return copies of the weights, under "full_precision"."""
        return {"full_precision": {n: np.array(v) for n, v in self.weights().items()}}

    def get_optimizer_state(self) -> dict[str, dict[str, Array]]:
        """Return copies of moments and counts, by weight and then by name.

        LAMB's count is under "shared_optimizer_state".
        """
        state: dict[str, dict[str, Array]] = {name: {} for name in self.parameter_names}
        for name, value in self.optimizer_state().items():
            kind, _, weight = name.partition("/")
            if kind != "step":
                state[weight][_MOMENTS.get(kind, kind)] = np.array(value)
        for name, count in self._counts().items():
            own = state.setdefault("shared_optimizer_state", {}) if name == "Step" else None
            key = name if own is not None else "Update_Count"
            target = state[name.removeprefix("Update_Count_")] if own is None else own
            target[key] = np.array([count + 1], np.int64)
        return state

    def get_partition_info_map(self) -> dict[str, Any]:
        """Return {}: the weights are not partitioned."""
        return {}

    def is_output_fp32_node(self, name: str) -> bool:
        """Return whether an output is float32."""
        return any(o.name == name and o.dtype == "float32" for o in self.output_info())

    def finalize(self) -> None:
        """Do nothing."""

    def _require_parameters(self) -> TrainingParameters:
        if self._parameters is None:
            raise DataError(
                "The session was made without TrainingParameters.",
                remedy="session.step(…), or TrainingSession(model, parameters)",
            )
        return self._parameters


def _moment(name: str) -> str:
    kind, _, weight = name.partition("/")
    return f"{_MOMENTS.get(kind, kind)}_{weight}"


def _require_possible(parameters: TrainingParameters) -> None:
    for name in _ONE_PROCESS:
        if getattr(parameters, name) != 1:
            raise DataError(
                "A session trains a whole model in one process.",
                node=f"TrainingParameters.{name}",
                expected="1",
                received=str(getattr(parameters, name)),
                remedy="DistributedDataParallel around steep.ORTModule",
            )
    for name in ("deepspeed_zero_stage", "set_gradients_as_graph_outputs", "use_fp16_moments"):
        if getattr(parameters, name):
            raise DataError(
                "The setting is not supported.",
                node=f"TrainingParameters.{name}",
                received=str(getattr(parameters, name)),
                remedy="session.gradients(…) returns gradients; moments are whole, and float32",
            )
    if parameters.training_optimizer_name not in _KINDS:
        raise DataError(
            "There is no such optimizer.",
            node="TrainingParameters.training_optimizer_name",
            expected=", ".join(_KINDS),
            received=repr(parameters.training_optimizer_name),
        )
    if parameters.gradient_accumulation_steps < 1:
        raise DataError(
            "The number of accumulation steps is out of range.",
            node="TrainingParameters.gradient_accumulation_steps",
            expected="1 or more",
            received=str(parameters.gradient_accumulation_steps),
        )


def _optimizer(parameters: TrainingParameters, weights: Sequence[str]) -> dict[str, Any]:
    kind = _KINDS[parameters.training_optimizer_name]
    floats, integers = parameters.optimizer_attributes_map, parameters.optimizer_int_attributes_map
    attributes_of = {w: {**floats.get(w, {}), **integers.get(w, {})} for w in weights}
    groups: dict[tuple[float, ...], tuple[list[str], _steep.OptimizerOptions]] = {}
    for weight, attributes in attributes_of.items():
        one = _options(kind, attributes)
        key = (one.beta1, one.beta2, one.weight_decay, one.epsilon or 0.0, one.bias_correction)
        groups.setdefault(key, ([], one))[0].append(weight)
    arguments: dict[str, Any] = {"optimizer": kind}
    if len(groups) == 1:
        arguments |= {"weight_decay": one.weight_decay, "eps": one.epsilon}
        arguments |= {"betas": (one.beta1, one.beta2), "bias_correction": one.bias_correction}
    else:
        arguments["groups"] = list(groups.values())
    if parameters.enable_grad_norm_clip and kind != "sgd":
        bounds = {attributes.get("max_norm_clip", 1.0) for attributes in attributes_of.values()}
        if len(bounds) != 1:
            raise DataError(
                "Different bounds of the gradient norm are not supported.",
                node="TrainingParameters.optimizer_attributes_map",
                expected="one max_norm_clip",
                received=", ".join(map(str, sorted(bounds))),
            )
        arguments["clip_norm"] = bounds.pop()
    if parameters.use_mixed_precision:
        arguments |= {"precision": "fp16", "loss_scale": parameters.loss_scale or 2.0**16}
    return arguments


def _require_known(attributes: Mapping[str, float]) -> None:
    """Raise DataError for an attribute that no optimizer has, or that would have no effect."""
    known = {"alpha", "beta", "lambda", "epsilon", "max_norm_clip", "do_bias_correction"}
    known |= {"weight_decay_mode", *_RATIOS}
    for name, value in attributes.items():
        if name not in known:
            raise DataError(
                "An attribute of the optimizer is unknown.",
                node="TrainingParameters.optimizer_attributes_map",
                expected=", ".join(sorted(known)),
                received=name,
            )
        if name in _RATIOS and value != _RATIOS[name]:
            raise DataError(
                "Bounds of LAMB's trust ratio are not supported.",
                node="TrainingParameters.optimizer_attributes_map",
                expected=f"{name} {_RATIOS[name]}",
                received=str(value),
            )


def _options(kind: str, attributes: dict[str, float]) -> _steep.OptimizerOptions:
    _require_known(attributes)
    options = _steep.OptimizerOptions()
    options.kind = kind
    if kind == "sgd":
        return options
    if attributes.get("weight_decay_mode", 0) and attributes.get("lambda", 0):
        raise DataError(
            "Weight decay after the update is not supported.",
            node="TrainingParameters.optimizer_int_attributes_map",
            expected="weight_decay_mode 0",
            received=str(attributes["weight_decay_mode"]),
            remedy='optimizer="transformers_adamw" of steep.TrainingSession',
        )
    options.beta1, options.beta2 = attributes.get("alpha", 0.9), attributes.get("beta", 0.999)
    options.weight_decay = attributes.get("lambda", 0.0)
    options.epsilon = attributes.get("epsilon", 1e-6 if kind == "lamb" else 1e-8)
    options.bias_correction = bool(attributes.get("do_bias_correction", kind != "lamb"))
    return options
