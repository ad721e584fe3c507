"""A PyTorch model's whole training step in one compiled graph.

``trainer(model, criterion, optimizer)``, in optim_trainer.py, reads a ``torch.optim`` object;
``ORTTrainer``, in ort_trainer.py, speaks another dialect.

The weights live once: the engine updates the model's parameters where they lie.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import onnx
import onnx.numpy_helper
import torch
from torch.utils.dlpack import from_dlpack

from steep import _steep
from steep.attributes import Attributes, name_attribute, read_attributes
from steep.call import Call
from steep.errors import DataError, ModelError, ShapeError
from steep.export import export
from steep.exported import Exported
from steep.session import TrainingSession
from steep.structure import flatten, unflatten

log = logging.getLogger("steep")

OPTIMIZER = "optimizer/"
STEP = "optimizer/step"
LOSS_SCALE = "optimizer/loss_scale"
# names and settings, or an optimizer of their own
Groups = Sequence[tuple[Sequence[str], Mapping[str, float] | _steep.OptimizerOptions]]
_SEED_MASK = 2**63 - 1
# of a trainer that go to its session as they are
SESSION_OPTIONS = ("clip_norm", "check_finite", "precision", "loss_scale", "loss_scale_window")


class _WithLoss(torch.nn.Module):
    """(inputs…, label) → (loss, result); without a criterion, whatever the model returns."""

    def __init__(self, model: torch.nn.Module, criterion: Callable[..., Any] | None) -> None:
        super().__init__()
        self.model = model
        self.training = model.training
        self.criterion = criterion

    def forward(self, *inputs: torch.Tensor) -> Any:
        if self.criterion is None:
            return self.model(*inputs)
        *arguments, label = inputs
        result = self.model(*arguments)
        return self.criterion(result, label), result


class Trainer:
    """Trains a model with a loss and an optimizer as one compiled step.

    The base of both front doors. Nothing is compiled before the first step, whose inputs are the
    example that the export needs; later inputs may have other extents.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        criterion: Callable[..., Any] | None,
        settings: Mapping[str, Any],
        *,
        seed: int | None = None,
        exporter: str | None = None,
        opset: int | None = None,
        predictions: bool = True,
    ) -> None:
        self.model = model
        self._net = _WithLoss(model, criterion)
        self._settings = dict(settings)
        self._seed = torch.initial_seed() & _SEED_MASK if seed is None else seed
        self._export_options: dict[str, Any] = {"exporter": exporter, "opset": opset}
        self._predictions = predictions
        self._session: TrainingSession | None = None
        self._exported: Exported | None = None
        self._names: dict[str, str] = {}  # the model's name of a trained parameter → the graph's
        self._statistics: dict[str, str] = {}  # the same of running statistics
        self._counters: list[torch.Tensor] = []  # of batches that normalisations have seen
        self._lr: float | None = None
        self._pending_state: dict[str, Any] | None = None
        self._seen: Attributes = ()  # of the model, when last looked at
        self._evaluations: list[Call] = []

    # --- steps ------------------------------------------------------------------------------------

    def compile(self, *inputs: torch.Tensor) -> None:
        """Export and compile for inputs like these, as the first step otherwise does."""
        _check_tensors(inputs)
        if self._session is not None:
            return
        self._build(self._export(inputs), inputs)

    def _export(self, inputs: Sequence[torch.Tensor]) -> Exported:
        with in_mode(self._net, True):
            return self._export_as_it_is(inputs)

    def _export_as_it_is(self, inputs: Sequence[torch.Tensor]) -> Exported:
        return export(self._net, _positional(inputs), list(inputs), **self._export_options)

    def _build(self, exported: Exported, inputs: Sequence[torch.Tensor]) -> None:
        trained = self._trained()
        parameters = dict(self._net.named_parameters(remove_duplicate=False))
        own = {id(parameters[n]) for n in trained}
        given = {n for n, p in parameters.items() if id(p) in own}  # tied ones under every name
        proto, names = embed_weights(exported, self._net, without_data=given)
        graph_names = {n: g for n, g in names.items() if n in trained}
        if not graph_names:
            raise ModelError(
                "No trainable parameter is in the graph.",
                remedy="check requires_grad, and that the loss depends on the model",
            )
        if exported.statistics:  # which the session updates itself
            del proto.graph.output[-len(exported.statistics) :]
        outputs = [o.name for o in proto.graph.output]
        for name in graph_names:  # the session writes where they lie
            parameters[name].data = parameters[name].data.contiguous()
        session = TrainingSession(
            proto,
            output=outputs[0],
            trainable=list(graph_names.values()),
            step_outputs=outputs[1:] if self._predictions else [],
            seed=self._seed,
            groups=self._groups(graph_names),
            weights={g: parameters[n].detach() for n, g in graph_names.items()},
            **self._settings,
        )
        buffers = dict(self._net.named_buffers())
        for name in exported.statistics:
            buffers[name].data = from_dlpack(session.state(names[name]))
        self._counters = [buffers[name] for name in exported.counters]
        self._names = {n.removeprefix("model."): g for n, g in graph_names.items()}
        self._statistics = {n.removeprefix("model."): names[n] for n in exported.statistics}
        self._session, self._exported = session, exported
        self._share(session, {g: parameters[n] for n, g in graph_names.items()})
        self._seen = read_attributes(self.model)
        self._first = [torch.empty_like(t, device="meta") for t in inputs]
        if self._pending_state is not None:
            self._load_moments(self._pending_state)
            self._pending_state = None

    def step(self, *inputs: torch.Tensor, lr: float | None = None) -> Any:
        """One training step: ``loss, y_pred = trainer.step(x, y)``.

        The last input is the label; the others go to the model. ``lr`` replaces the rate from this
        step on. Returns the loss (a float32 scalar) and the model's result, or the loss alone when
        the trainer was made with ``predictions=False``. Raises ShapeError and DataError before any
        weight changes.
        """
        self._believe(inputs)
        session = self._ready(inputs)
        self._feed(session, lr)
        self._warn_of_changes()
        result = session.step(*self._fed(inputs))
        if result.skipped:
            log.info("skipped a step: gradients overflowed at loss scale %g", result.loss_scale)
        for counter in () if result.skipped else self._counters:
            counter.add_(1)
        loss = torch.tensor(result.loss)
        return (loss, self._prediction(result.outputs)) if self._predictions else loss

    def evaluate(self, *inputs: torch.Tensor) -> Any:
        """Loss and the model's result in evaluation mode, without an update.

        The model is captured once more, with all of its parts in evaluation mode.
        """
        self._ready(inputs)
        tensors = [t.to(first.dtype) for t, first in zip(inputs, self._first, strict=True)]
        call = next((c for c in self._evaluations if c.exported.accepts(tensors)), None)
        if call is None:
            with in_mode(self._net, False):
                exported = self._export_as_it_is(tensors)
            call = Call(
                self._net,
                exported,
                set(),
                (),
                precision=self._settings.get("precision", "fp32"),
                narrow_results=False,
            )
            self._evaluations.append(call)
        with torch.no_grad():
            results = call.run(tensors, gradients=False)[0]
        loss, *rest = unflatten(call.exported.results, results)
        return loss, rest[0] if len(rest) == 1 else tuple(rest)

    # --- state ------------------------------------------------------------------------------------

    @property
    def session(self) -> TrainingSession:
        """The compiled step. Raises ModelError before the first step."""
        if self._session is None:
            what = "Nothing is compiled yet."
            raise ModelError(what, remedy="call step() or compile() first")
        return self._session

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Copy the model's state under its names, moments as ``optimizer/exp_avg/NAME``."""
        self._agree()
        state = {name: t.detach().clone() for name, t in self.model.state_dict().items()}
        if self._session is not None:
            known = {graph: name for name, graph in self._names.items()}
            for key, tensor in self._session.optimizer_state().items():
                kind, _, graph_name = key.partition("/")
                state[f"{OPTIMIZER}{kind}/{known[graph_name]}"] = from_dlpack(tensor)
            state[STEP] = torch.tensor(self._session.step_count)
            if self._settings.get("precision") == "fp16":
                state[LOSS_SCALE] = torch.tensor(self._session.loss_scale)
        return state

    def load_state_dict(self, state: Mapping[str, torch.Tensor], strict: bool = True) -> None:
        """Load what ``state_dict`` returned; moments are taken where they are present."""
        self._agree()
        weights = {k: v for k, v in state.items() if not k.startswith(OPTIMIZER)}
        self.model.load_state_dict(weights, strict=strict)
        moments = {k: v for k, v in state.items() if k.startswith(OPTIMIZER)}
        if self._session is None:
            self._pending_state = moments
        else:
            shared, own = {**self._names, **self._statistics}, self.model.state_dict()
            # They lie there already; this says so to a session whose update was cut off.
            self._session.set_weights({shared[k]: own[k] for k in weights if k in shared})
            self._load_moments(moments)

    def save_checkpoint(self, path: str | os.PathLike[str], user: Any = None) -> None:
        """Write weights, moments and counters to a folder; ``user`` is any JSON value."""
        self._agree()
        self.session.save_checkpoint(os.fspath(path), json.dumps(user))

    def load_checkpoint(self, path: str | os.PathLike[str]) -> Any:
        """Load a checkpoint after ``compile``; return its ``user``. Raises CheckpointError.

        Warns, by the logger ``steep``, when it was saved with another number of threads.
        """
        self._agree()
        user = self.session.load_checkpoint(os.fspath(path))
        self._agree()
        return json.loads(user)

    def save_as_onnx(self, path: str | os.PathLike[str], *inputs: torch.Tensor) -> None:
        """Write the model, without its loss, as inference ONNX.

        ``inputs`` is an example for the model; by default it is made like the first step's.
        """
        example = list(inputs) if inputs else self._example()
        with in_mode(self.model, False):
            exported = export(self.model, _positional(example), example, **self._export_options)
        proto, _ = embed_weights(exported, self.model)
        _steep.write_file(os.fspath(path), proto.SerializeToString())

    # --- inside -----------------------------------------------------------------------------------

    def _warn_of_changes(self) -> None:
        """Say once of each change of the model that the compiled step cannot see it."""
        now = read_attributes(self.model)
        if now == self._seen:
            return
        changed = set(now) - set(self._seen)
        self._seen = now
        for module, name, value in changed:
            if name != "training":
                log.warning(
                    "%s is now %r, which the compiled step does not see: make a new trainer if "
                    "forward reads it",
                    name_attribute(self.model, module, name),
                    value,
                )

    def _feed(self, session: TrainingSession, lr: float | None) -> None:
        if lr is not None and lr != self._lr:
            session.lr = self._lr = lr

    def _trained(self) -> set[str]:
        return {n for n, p in self._net.named_parameters() if p.requires_grad}

    def _believe(self, inputs: Sequence[torch.Tensor]) -> None:
        """Look for what the compiled step does not hold for any longer."""

    def _groups(self, names: dict[str, str]) -> Groups:
        return []

    def _share(self, session: TrainingSession, parameters: dict[str, torch.Tensor]) -> None:
        """Show a new session's moments, given its parameters under its names."""

    def _agree(self) -> None:
        """Let the session and who else shows its moments agree on them."""

    def _carried(self) -> dict[str, torch.Tensor]:
        """Return what of the state a session takes over from the one before."""
        return {k: v for k, v in self.state_dict().items() if k.startswith(OPTIMIZER)}

    def _ready(self, inputs: Sequence[torch.Tensor]) -> TrainingSession:
        self.compile(*inputs)
        assert self._exported is not None
        tensors = list(inputs)
        if len(tensors) != len(self._exported.extents):
            raise DataError(
                "The number of inputs is wrong.",
                expected=f"{len(self._exported.extents)} tensors",
                received=f"{len(tensors)} tensors",
            )
        if not self._exported.accepts(tensors):
            self._check_again(tensors)
        return self.session

    def _check_again(self, tensors: list[torch.Tensor]) -> None:
        """Ask another export whether the graph holds for these extents."""
        assert self._exported is not None
        refusal = ShapeError(
            "The compiled step does not hold for inputs of these extents.",
            expected=str(self._exported.extents),
            received=str([list(t.shape) for t in tensors]),
            remedy="keep the extents of the first step, or make a new trainer",
        )
        try:
            again = self._export(tensors)
        except ModelError as e:  # the module itself takes no such inputs
            raise refusal from e
        if again.model == self._exported.model:
            self._exported.learn(again, tensors)
        elif self._exported.cached:  # another process's words for the same; now there are our own
            self._rebuild(again, tensors)
        else:
            raise refusal

    def _rebuild(self, exported: Exported, tensors: list[torch.Tensor]) -> None:
        before, carried = self.session, self._carried()
        self._build(exported, tensors)
        there = {f"{OPTIMIZER}{k.partition('/')[0]}/{n}" for k, n in self._moments()}
        there |= {STEP, LOSS_SCALE}
        self._load_moments({k: v for k, v in carried.items() if k in there})
        self.session.run_count = before.run_count
        if self._lr is not None:
            self.session.lr = self._lr

    def _moments(self) -> list[tuple[str, str]]:
        """Return the session's moments, each with the model's name of its parameter."""
        known = {graph: name for name, graph in self._names.items()}
        return [(k, known[k.partition("/")[2]]) for k in self.session.optimizer_state_names]

    def _fed(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        assert self._exported is not None
        return [inputs[i].detach() for i in self._exported.inputs]

    def _prediction(self, outputs: Sequence[Any]) -> Any:
        assert self._exported is not None
        tensors = [torch.empty(()), *(from_dlpack(o) for o in outputs)]
        _, *rest = unflatten(self._exported.results, tensors)
        return rest[0] if len(rest) == 1 else tuple(rest)

    def _example(self) -> list[torch.Tensor]:
        if self._exported is None:
            raise ModelError(
                "There is no example to export with.", remedy="pass one, or step first"
            )
        first = self._first if self._net.criterion is None else self._first[:-1]
        return [torch.zeros(t.shape, dtype=t.dtype) for t in first]

    def _load_moments(self, state: Mapping[str, torch.Tensor]) -> None:
        moments, counts = {}, {k for k in self.session.optimizer_state_names if k[:5] == "step/"}
        for key, tensor in state.items():
            if key not in (STEP, LOSS_SCALE):
                kind, _, name = key.removeprefix(OPTIMIZER).partition("/")
                own = f"{kind}/{self._names.get(name, name)}"
                if kind != "step" or own in counts:  # not every session counts by parameter
                    moments[own] = tensor
        self.session.set_optimizer_state(moments)
        if STEP in state:
            self.session.step_count = int(state[STEP])
        if LOSS_SCALE in state and self._settings.get("precision") == "fp16":
            self.session.loss_scale = float(state[LOSS_SCALE])
        self._agree()


@contextlib.contextmanager
def in_mode(module: torch.nn.Module, training: bool) -> Iterator[None]:
    """Within, all of a module's parts are in this mode; then each in its own again."""
    before = [(part, part.training) for part in module.modules()]
    module.train(training)
    try:
        yield
    finally:
        for part, mode in before:
            part.training = mode


def _check_tensors(inputs: Sequence[Any]) -> None:
    for i, value in enumerate(inputs):
        if not isinstance(value, torch.Tensor):
            raise DataError(
                "An input is not a tensor.",
                node=f"input {i}",
                expected="a torch.Tensor",
                received=f"a {type(value).__module__}.{type(value).__qualname__}",
                remedy="convert it with torch.as_tensor",
            )


def _positional(inputs: Sequence[torch.Tensor]) -> Any:
    return flatten((tuple(inputs), {}))[1]


def embed_weights(
    exported: Exported, module: torch.nn.Module, without_data: Collection[str] = ()
) -> tuple[onnx.ModelProto, dict[str, str]]:
    """Put a module's tensors into its exported graph as initializers.

    Returns the model and, by the module's name of each tensor, the initializer's. Tied tensors
    become one initializer. Those named in ``without_data`` get a name and a type alone.
    """
    proto = onnx.load_from_string(exported.model)
    tensors: dict[str, torch.Tensor] = {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }
    graph = proto.graph
    first: dict[int, str] = {}
    same: dict[str, str] = {}
    names: dict[str, str] = {}
    for value in [v for v in graph.input if v.name in exported.states]:
        graph.input.remove(value)
        tensor = tensors[exported.states[value.name]]
        same[value.name] = first.setdefault(id(tensor), value.name)
        if same[value.name] == value.name:
            if exported.states[value.name] in without_data:
                dtype = value.type.tensor_type.elem_type
                graph.initializer.add(name=value.name, data_type=dtype, dims=tensor.shape)
            else:
                array = tensor.detach().contiguous().numpy()
                graph.initializer.append(onnx.numpy_helper.from_array(array, value.name))
    for node in graph.node:
        for i, name in enumerate(node.input):
            node.input[i] = same.get(name, name)
    for name, tensor in tensors.items():
        if id(tensor) in first:
            names[name] = first[id(tensor)]
    return proto, names
