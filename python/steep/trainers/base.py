"""A PyTorch model's whole training step in one compiled graph.

``trainer(model, criterion, optimizer)``, in trainer.py, reads a ``torch.optim`` object;
``ORTTrainer``, in ort_trainer.py, has the interface of ONNX Runtime Training.

Dynamo captures model and loss as it does for ORTModule, and guards the graph on what they read.
There is one copy of the weights: the engine updates the model's parameters in place, and the
buffers that forward writes.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.dlpack import from_dlpack

from steep import _steep
from steep.dynamo.report import GraphReport, Report
from steep.errors import DataError, ModelError, ShapeError
from steep.export.module_to_onnx import export
from steep.inspection import StrPath
from steep.lowering.ops.index_bounds import errors_of_pytorch
from steep.module.ort_module import innermost
from steep.onnx_graph.initializers import with_states
from steep.patching.torch_versions import load
from steep.providers import choices_of
from steep.session.processes import require_alone
from steep.session.training import TrainingSession
from steep.torch_internals.dynamo import TorchRuntimeError
from steep.trainers.captured_step import CapturedStep, Roles, StepCompiled, like_the_first
from steep.trainers.carried_gradients import CarriedGradients, take_gradients
from steep.trainers.loss_module import WithLoss, in_mode, the_loss
from steep.trainers.optimizer_state import (
    LOSS_SCALE,
    OPTIMIZER,
    STEP,
    load_state,
    named_state,
    require_counts,
    require_fit,
    without_moments,
)
from steep.trainers.parameter_checks import (
    check_apart,
    check_autocast,
    check_gradients,
    check_hooks,
)
from steep.trainers.several_processes import TrainerRanks, count_rows, describe, require_mean

if TYPE_CHECKING:
    from steep.dynamo.captured_module import CapturedModule
    from steep.graph.lowered import LoweredGraph

log = logging.getLogger("steep")

# (names of parameters, their settings or optimizer)
Groups = Sequence[tuple[Sequence[str], Mapping[str, float] | _steep.OptimizerOptions]]
_CAPTURE = "steep.dynamo.captured_module"  # loads a large part of PyTorch
_SEED_MASK = 2**63 - 1
_WITH_ORTMODULE = "train with ORTModule, where PyTorch can run it"
_REBUILT_IN_A_ROW = 3  # most successive steps that compile again


class Trainer:
    """Trains a model with a loss and an optimizer as one compiled step.

    The base class of what ``steep.trainer`` and ``ORTTrainer`` make, and public as a type: make
    trainers with those two. The first step compiles. A later step compiles again if a guard of its
    graph fails: an attribute, a global, a hook, a mode, dtypes, or extents that forward branches
    on. Calls from several threads run one after the other.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        criterion: Callable[..., Any] | None,
        settings: Mapping[str, Any],
        *,
        seed: int | None = None,
        opset: int | None = None,
        predictions: bool = True,
        parallel: TrainerRanks | None = None,
    ) -> None:
        if not isinstance(model, torch.nn.Module):
            raise TypeError(f"a trainer needs a torch.nn.Module, not a {type(model).__name__}")
        self._parallel = parallel
        if parallel is None:
            require_alone("trainer")
        _steep.check_passes(settings.get("disabled_passes", ()))
        self.model = model
        self._net = WithLoss(innermost(model), criterion, predictions)
        self._settings = dict(settings)
        self._seed = torch.initial_seed() & _SEED_MASK if seed is None else seed
        self._opset = opset  # of exported files
        self._lock = threading.RLock()
        self._captured: CapturedModule | None = None
        self._evaluation: tuple[torch.nn.Module, CapturedModule] | None = None
        self._reports: list[GraphReport] = []
        self._session: TrainingSession | None = None
        self._roles = Roles()  # set together with the session
        self._varies = False  # whether extents change from step to step
        self._holds = False  # whether the session fits the present model and optimizer
        self._first: list[torch.Tensor] = []  # meta tensors like the first inputs
        self._lr: float | None = None
        self._given_lr: float | None = None
        self._accumulates = False  # the step that runs is a part of an accumulated one
        self._carried: CarriedGradients | None = None
        self._rebuilt_in_a_row, self._only_compile = 0, False
        self._pending_state: dict[str, Any] | None = None
        self._loaded: TrainingSession | None = None  # a checkpoint, and no step since

    # --- steps ------------------------------------------------------------------------------------

    def compile(self, *inputs: torch.Tensor) -> None:
        """Capture and compile for inputs of these dtypes and shapes, before the first step."""
        with self._lock:
            if self._session is None:
                self._only_compile = True
                try:
                    self._call(inputs)
                except StepCompiled:
                    self._remember(inputs)
                finally:
                    self._only_compile = False

    def step(self, *inputs: torch.Tensor, lr: float | None = None, accumulate: bool = False) -> Any:
        """Run one training step: ``loss, y_pred = trainer.step(x, y)``.

        The last input is the label; the others go to the model. ``lr`` replaces the learning rate
        from this step on. Returns the loss (a scalar) and the model's result, or only the loss if
        the trainer was made with ``predictions=False``. With ``accumulate``, no weight changes: the
        gradients are added to those that wait for ``apply_gradients``. Raises ShapeError and
        DataError before any weight changes.
        """
        with self._lock, contextlib.ExitStack() as stack:
            if self._parallel is not None:
                stack.enter_context(self._parallel.agree())
                self._parallel.count_and_form = count_rows(self._net.criterion, inputs)
                self._carried = self._carried if self._parallel.accumulated else None
            self._believe()
            self._given_lr, self._accumulates = lr, accumulate
            return self._call(inputs)

    def apply_gradients(self, lr: float | None = None) -> torch.Tensor:
        """Clip the mean of the accumulated gradients, and update the weights by it.

        The result is that of one step of all rows, if the parts have one size and the loss is a
        mean. If the criterion is the mean of a cross entropy alone, the parts count by their
        labels. ``lr`` replaces the learning rate from this step on. Returns the mean of the parts'
        losses.

        Raises:
            DataError: no gradients were accumulated, or the optimizer's parameters or flags changed
                since.
        """
        with self._lock, contextlib.ExitStack() as stack:
            if self._parallel is not None:
                stack.enter_context(self._parallel.agree(self._session))
                self._carried = self._carried if self._parallel.accumulated else None
            self._add_carried()
            if not self._fits():
                raise DataError(
                    "The optimizer's parameters or flags changed since the last step.",
                    expected="those of the accumulated steps",
                    remedy="change them after apply_gradients(), or call drop_gradients()",
                )
            self._believe()
            self._feed(session := self.session, lr)
            self._roles.read_weights()
            result = session.apply_gradients()
            self._roles.note_writes(weights=not result.skipped)
            self._say_if_skipped(result)
            return torch.tensor(result.loss)

    def drop_gradients(self) -> None:
        """Discard the accumulated gradients."""
        with self._lock:
            self._carried = None
            if self._session is not None:
                self._session.drop_gradients()

    def _call(self, inputs: Sequence[torch.Tensor]) -> Any:
        tensors = self._like_the_first(inputs)
        other = [t.shape for t in tensors] != [t.shape for t in self._first]
        varies = bool(self._first) and other and not self._varies
        if self._captured is None or varies:
            # Once extents vary, capture anew: the graph for any extents replaces that for fixed
            # ones.
            self._varies, self._rebuilt_in_a_row = varies, 0
            torch.compiler.allow_in_graph(the_loss)
            self._captured = load(_CAPTURE).CapturedModule(
                innermost(self._net),
                lambda: self._settings.get("precision", "fp32"),
                self._reports.append,
                whole=True,
                graph_factory=lambda lowered: CapturedStep(lowered, self._run),
                fallback_advice=_WITH_ORTMODULE,
                first=[t.shape for t in self._first] if varies else None,
            )
        check_autocast(self._settings.get("precision", "fp32"))
        with torch.enable_grad(), torch.autocast("cpu", enabled=False), self._step_mode():
            result = self._answer(self._captured, tensors)
        self._remember(tensors)
        return result

    def _answer(self, module: CapturedModule, tensors: Sequence[torch.Tensor]) -> Any:
        try:
            return module(*tensors)
        except ModelError as e:
            cause = e.__cause__
            if not self._first or not isinstance(cause, TorchRuntimeError):
                raise
            raise ShapeError(
                "The model does not take inputs of these extents.",
                expected=f"such as {[list(t.shape) for t in self._first]}",
                received=f"{[list(t.shape) for t in tensors]}: {str(cause).splitlines()[0]}",
            ) from cause

    def _remember(self, tensors: Sequence[torch.Tensor]) -> None:
        if not self._first:
            self._first = [torch.empty_like(t, device="meta") for t in tensors]

    def _run(self, lowered: LoweredGraph, arguments: tuple[Any, ...]) -> object:
        """Run a captured graph as a step; Dynamo has checked its guards."""
        tensors = lowered.call_tensors(arguments)
        roles = self._roles
        if self._holds and roles.hold(lowered, tensors):
            self._rebuilt_in_a_row = 0
        else:
            roles = self._build(lowered, tensors)
        if self._only_compile:
            raise StepCompiled
        check_hooks(tensor for _, tensor, _ in roles.bindings)
        self._feed(session := self.session, self._given_lr)
        self._say_checkpoint_note()
        with errors_of_pytorch():
            arrays = [tensors[i].detach() for i in roles.input_positions]
            roles.read_weights()
            if self._accumulates:
                result = session.step(*arrays, accumulate=True)
            self._add_carried()
            if not self._accumulates:
                result = session.step(*arrays)
        roles.note_writes(weights=not (self._accumulates or result.skipped))
        self._say_if_skipped(result)
        outputs = [from_dlpack(o) for o in result.outputs]
        with torch.no_grad():
            for i, value in zip(roles.targets, outputs, strict=False):
                arguments[i].copy_(value)
        values = outputs[len(roles.targets) :]
        loss = torch.tensor(result.loss, dtype=torch.float64)  # exact for float32
        values.insert(roles.loss, loss.reshape([1] * lowered.values[roles.loss].example.dim()))
        return lowered.results(arguments, values)

    def evaluate(self, *inputs: torch.Tensor) -> Any:
        """Return the loss and the model's result in evaluation mode, without an update.

        The model is captured once more, with all submodules in evaluation mode.
        """
        with self._lock:
            tensors = self._like_the_first(inputs)
            check_autocast(precision := self._settings.get("precision", "fp32"))
            if self._evaluation is None:
                net = WithLoss(self._net.model, self._net.criterion, predictions=True)
                module = load(_CAPTURE).CapturedModule(
                    net,
                    lambda: precision,
                    self._reports.append,
                    whole=True,
                    fallback_advice=_WITH_ORTMODULE,
                    providers=choices_of(self._settings.get("providers")),
                    disabled_passes=self._settings.get("disabled_passes", ()),
                    memory_limit=self._settings.get("memory_limit", ""),
                )
                self._evaluation = net, module
            net, module = self._evaluation
            with torch.no_grad(), torch.autocast("cpu", enabled=False), in_mode(net, False):
                return self._answer(module, tensors)

    def plan(self) -> _steep.StepPlan:
        """Return the plan of a step, for the extents that it was compiled for."""
        return self.session.plan(*_zeros(self._roles.types))

    def memory_report(self) -> _steep.MemoryReport:
        """Return which values of forward a step keeps, and which its backward recomputes.

        Raises:
            ProviderError: the step is not planned as a whole.
        """
        return self.session.memory_report(*_zeros(self._roles.types))

    def dump(self, *, html: StrPath | None = None, passes: bool = False) -> str:
        """Return the text of a step's graph and plan, for the extents that it was compiled for.

        Args:
            html: path of a file; graph and plan are written to it as a page, with a picture of
                memory.
            passes: return the graph before the first pass and after each that changed it.

        Raises:
            ModelError: nothing is compiled yet.
            IoError: the page cannot be written.
        """
        return self.session.dump(*_zeros(self._roles.types), html=html, passes=passes)

    def profile(self, path: StrPath) -> contextlib.AbstractContextManager[None]:
        """Record every kernel of steps in the ``with`` block; write a trace for ui.perfetto.dev.

        A step that compiles again makes a new session, which is not recorded.

        Raises:
            ModelError: nothing is compiled yet.
            IoError: the trace cannot be written.
        """
        return self.session.profile(path)

    def report(self) -> Report:
        """Return a report about the model: its graphs, and why there are several."""
        return Report(type(self.model).__name__, tuple(self._reports), (), 0)

    # --- state ------------------------------------------------------------------------------------

    @property
    def session(self) -> TrainingSession:
        """The compiled step. Raises ModelError before the first step."""
        if self._session is None:
            raise ModelError("Nothing is compiled yet.", remedy="call step() or compile() first")
        return self._session

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Copy the model's state under its names, moments as ``optimizer/exp_avg/NAME``.

        With ``zero``, all processes call this: rank 0 gets all moments, others those they keep.
        """
        self._agree()
        state = {name: t.detach().clone() for name, t in self.model.state_dict().items()}
        if (session := self._session) is not None:
            everything = None if self._parallel is None else self._parallel.moments_of_all(session)
            state |= named_state(session, self._roles.names, self._settings, everything)
        return state

    def load_state_dict(self, state: Mapping[str, torch.Tensor], strict: bool = True) -> None:
        """Load a result of ``state_dict``; moments are optional.

        The logger ``steep`` warns of parameters that have none, if others have: they start anew.
        Raises DataError, ModelError and ShapeError for moments that do not fit, before any change,
        or at the first step if nothing is compiled yet. With ``zero``, every process loads the
        state of rank 0.
        """
        self._agree()
        weights = {k: v for k, v in state.items() if not k.startswith(OPTIMIZER)}
        moments = {k: v for k, v in state.items() if k.startswith(OPTIMIZER)}
        require_counts(moments, OPTIMIZER)
        if self._session is not None:
            require_fit(self._session, self._roles.names, moments)
            self._require_whole(moments)
        self.model.load_state_dict(weights, strict=strict)
        if self._session is None:
            self._pending_state = moments
        else:
            self._pending_state = None
            roles, own = self._roles, self.model.state_dict()
            session_names = {**roles.names, **roles.statistics}
            # The weights are in place already; this call tells a session whose update was
            # interrupted.
            self._session.set_weights(
                {session_names[k]: own[k] for k in weights if k in session_names}
            )
            self._load_moments(moments)
            self._note_loaded(moments)

    def save_checkpoint(self, path: str | os.PathLike[str], user: object = None) -> None:
        """Write weights, moments and counters to a folder; ``user`` is any JSON value.

        With ``parallel``, all processes call this, and rank 0 writes it; with ``zero``, all do.
        """
        self._agree()
        self._add_carried()  # the session then refuses
        self._roles.read_weights()
        self.session.save_checkpoint(os.fspath(path), json.dumps(user))

    def load_checkpoint(self, path: str | os.PathLike[str]) -> Any:
        """Load a checkpoint after ``compile``; return its ``user``. Raises CheckpointError.

        The optimizer's settings stay. The next step logs a warning (logger ``steep``) if these or
        options of the trainer are others than in the checkpoint, or the number of threads.
        """
        self._agree()
        user = self.session.load_quietly(os.fspath(path))
        self._roles.note_writes(weights=True)
        self._loaded = self.session
        self._lr = self.session.lr  # the checkpoint's
        self._carried = None  # the session discards its own accumulated gradients
        self._agree()
        return json.loads(user)

    def save_as_onnx(self, path: str | os.PathLike[str], *inputs: torch.Tensor) -> None:
        """Write the model, without its loss, as inference ONNX.

        ``inputs`` is an example for the model; by default it is made like the first step's.
        """
        if not self._writes:
            return
        with in_mode(self.model, False):
            proto = export(self.model, list(inputs) or self._example(), opset=self._opset)
        _steep.write_file(os.fspath(path), proto.SerializeToString())

    # --- inside -----------------------------------------------------------------------------------

    def _say_checkpoint_note(self) -> None:
        """Log what differs from a loaded checkpoint, once the first step's rates are set."""
        loaded, self._loaded = self._loaded, None
        if loaded is not None and loaded.checkpoint_note and self._writes:
            log.warning("%s", loaded.checkpoint_note)

    def _say_if_skipped(self, result: _steep.StepResult) -> None:
        if result.skipped and self._writes:
            log.info("skipped a step: gradients overflowed at loss scale %g", result.loss_scale)

    @property
    def _writes(self) -> bool:
        """Whether this process writes files, among the processes that train this model."""
        return self._parallel is None or self._parallel.rank == 0

    def _like_the_first(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        return like_the_first(inputs, self._first, self._has_float64)

    def _has_float64(self) -> bool:
        return any(p.dtype == torch.float64 for p in self._net.parameters())

    def _build(self, lowered: LoweredGraph, tensors: list[torch.Tensor]) -> Roles:
        """Make the session that trains the parameters of a captured graph."""
        self._rebuilt_in_a_row += 1
        if self._rebuilt_in_a_row > _REBUILT_IN_A_ROW:
            raise ModelError(
                "An option that is compiled into the step changes at every step.",
                expected="only numbers that change at every step; trained parameters and modes may "
                "change rarely",
                remedy="ORTModule works with any optimizer",
            )
        old_state = {} if (before := self._session) is None else self._carry_over()
        if before is not None and before.accumulated:
            self._carried = take_gradients(before, self._accumulates)
        read = [tensors[i] for i in lowered.inputs]
        trained, buffers = self._trained_names(read), dict(self._net.named_buffers())
        names = {id(t): n for n, t in (*buffers.items(), *self._net.named_parameters())}
        outputs = [o.name for o in lowered.model.graph.output]
        count = len(lowered.writes)
        new_values = {write.tensor: outputs[k] for k, write in enumerate(lowered.writes)}
        check_apart(self._net, trained, read)
        states = {}
        for i in lowered.inputs:
            name = names.get(id(tensors[i]), "")
            if name in trained and i in new_values:
                raise ModelError("Forward writes a parameter that is trained.", node=name)
            kept = name in buffers and i in new_values and tensors[i].is_contiguous()
            if name in trained or kept:
                states[i] = name
        of_graph = [name for name in states.values() if name in trained]
        if not of_graph:
            raise ModelError(
                "No trainable parameter is in the graph.",
                remedy="check requires_grad, and that the loss depends on the model",
            )
        memory = {i: tensors[i].detach().contiguous() for i in states}
        input_positions = [i for i in lowered.inputs if i not in states]
        own = set(states.values()) - set(of_graph)
        other_writes = [write for write in lowered.writes if write.tensor not in states]
        roles = Roles(
            lowered,
            loss=next(k for k, v in enumerate(lowered.values) if v.node.target is the_loss),
            bindings=[(i, tensors[i], tensors[i].data_ptr()) for i in states],
            apart=[(tensors[i], memory[i]) for i in states if not tensors[i].is_contiguous()],
            input_positions=input_positions,
            targets=[write.argument for write in other_writes],
            types=[torch.empty_like(tensors[i], device="meta") for i in input_positions],
            names={n.removeprefix("model."): n for n in of_graph},
            statistics={n.removeprefix("model."): n for n in own},
        )
        step_outputs = [new_values[write.tensor] for write in other_writes] + outputs[count:]
        step_outputs.remove(outputs[count + roles.loss])
        groups = self._groups({name: name for name in of_graph})
        if self._parallel is not None:
            require_mean(lowered.model, outputs[count + roles.loss])
            describe(self._parallel, self._net, self._settings, groups, set(states.values()))
        session = TrainingSession(
            with_states(lowered.model, {f"arg_{i}": name for i, name in states.items()}),
            output=outputs[count + roles.loss],
            trainable=of_graph,
            updates={name: new_values[i] for i, name in states.items() if i in new_values},
            step_outputs=step_outputs,
            seed=self._seed,
            groups=groups,
            weights={name: memory[i] for i, name in states.items()},
            parallel=self._parallel,
            bound_to_graph=False,  # other extents or PyTorch releases may give another graph
            **self._settings,
        )
        reach = {names.get(id(tensors[i]), "") for i in lowered.values[roles.loss].reach}
        check_gradients(reach & trained, session.parameter_names)
        self._session, self._roles, self._holds = session, roles, True
        self._share(session, {name: tensors[i] for i, name in states.items() if name in trained})
        if before is not None:
            there = {f"{OPTIMIZER}{k.partition('/')[0]}/{n}" for k, n in self._moments()}
            there |= {STEP, LOSS_SCALE}
            self._load_moments({k: v for k, v in old_state.items() if k in there})
            session.run_count = before.run_count
            if self._lr is not None:
                session.lr = self._lr
        self._load_pending()
        return roles

    def _add_carried(self) -> None:
        """Add gradients of the session before to those of the present one."""
        if self._carried is not None:
            self._carried.add_to(self.session)
            self._carried = None

    def _feed(self, session: TrainingSession, lr: float | None) -> None:
        if lr is not None and lr != self._lr:
            session.lr = self._lr = lr

    def _trained_names(self, read: Sequence[torch.Tensor]) -> set[str]:
        """Return the names of the parameters to train, among the tensors that the graph reads."""
        return {n for n, p in self._net.named_parameters() if p.requires_grad}

    def _believe(self) -> None:
        """Check whether the compiled step is still valid."""

    def _fits(self) -> bool:
        """Return whether the optimizer is still the one that the session has."""
        return True

    def _step_mode(self) -> contextlib.AbstractContextManager[None]:
        return in_mode(self._net, True)

    def _groups(self, names: dict[str, str]) -> Groups:
        return []

    def _share(self, session: TrainingSession, parameters: dict[str, torch.Tensor]) -> None:
        """Expose a new session's moments; ``parameters`` are by the session's names."""

    def _agree(self) -> None:
        """Synchronise the session's moments with the object that exposes them."""

    def _carry_over(self) -> dict[str, torch.Tensor]:
        """Return the state that a new session takes over from the one before."""
        return named_state(self.session, self._roles.names, self._settings)

    def _moments(self) -> list[tuple[str, str]]:
        """Return the session's moments, each with the model's name of its parameter."""
        name_of = {graph: name for name, graph in self._roles.names.items()}
        return [(k, name_of[k.partition("/")[2]]) for k in self.session.optimizer_state_names]

    def _example(self) -> list[torch.Tensor]:
        if not self._first:
            raise ModelError(
                "There is no example input to export with.", remedy="pass one, or step first"
            )
        first = self._first if self._net.criterion is None else self._first[:-1]
        return _zeros(first)

    def _load_pending(self) -> None:
        """Load the moments that came before there was a session."""
        if self._pending_state is not None:
            self._holds = False  # after an error, no step goes on without them
            self._require_whole(self._pending_state)
            self._load_moments(self._pending_state)
            self._note_loaded(self._pending_state)
            self._holds, self._pending_state = True, None

    def _note_loaded(self, state: Mapping[str, torch.Tensor]) -> None:
        if self._parallel is not None:
            self._parallel.note_loaded(state)

    def _require_whole(self, state: Mapping[str, torch.Tensor]) -> None:
        """Refuse some moments of a parameter only; warn of parameters that have none."""
        new = without_moments(self._moments(), state, OPTIMIZER)
        if new and self._writes:
            log.warning("the state has no moments of %s: they start anew", ", ".join(new))

    def _load_moments(self, state: Mapping[str, torch.Tensor]) -> None:
        load_state(self.session, self._roles.names, self._settings, state)
        self._agree()


def _zeros(like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [torch.zeros(t.shape, dtype=t.dtype) for t in like]
