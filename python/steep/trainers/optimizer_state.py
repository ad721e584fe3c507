"""The state of a ``torch.optim`` object in the engine's memory."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

import torch
from torch.utils.dlpack import from_dlpack

from steep.errors import DataError, ModelError, ShapeError
from steep.session.training import TrainingSession

OPTIMIZER = "optimizer/"
STEP = "optimizer/step"
LOSS_SCALE = "optimizer/loss_scale"
_STEP = "step"
# optimizers of PyTorch whose state has no count of steps
_WITHOUT_COUNT = tuple(
    getattr(torch.optim, name) for name in ("SGD", "Muon") if hasattr(torch.optim, name)
)
# of moments that the engine keeps in fewer bits (``state_precision``)
_NARROW = (torch.int8, torch.uint8, torch.bfloat16)
_MASTER = "master"  # of a 16-bit parameter; if it is not given, it starts from the parameter


def require_count(value: object, of: str) -> None:
    """Raise DataError unless a value is a count of steps: one whole number of at least 0.

    Args:
        value: a number, or a tensor of one element.
        of: name of the count, for the message.
    """
    count = torch.as_tensor(value)
    if count.numel() != 1 or not (count >= 0 and count.isfinite() and count == count.trunc()):
        raise DataError(
            "A count of steps is not valid.",
            node=of,
            expected="one whole number of at least 0",
            received=str(value),
            remedy="load a state that was saved as a whole; nothing was changed by this one",
        )


def require_moment(value: torch.Tensor, of: str, *, squares: bool) -> None:
    """Raise DataError unless a moment is one that training can go on from.

    Args:
        value: the moment.
        of: its name, for the message.
        squares: whether it is a mean of squares, which is not negative.
    """
    wrong = ~value.isfinite() | (value < 0) if squares else ~value.isfinite()
    if bool(wrong.any()):
        raise DataError(
            "A moment of the optimizer is not valid.",
            node=of,
            expected="finite numbers" + (" of at least 0" if squares else ""),
            received=str(value[wrong].flatten()[0].item()),
            remedy="load a state from before the gradients became NaN; nothing was changed",
        )


def without_moments(
    wanted: Iterable[tuple[str, str]], state: Mapping[str, object], prefix: str
) -> list[str]:
    """Return the parameters that have no moments in a state in which others have some.

    Args:
        wanted: keys of a session's moments, each with the name of its parameter.
        state: moments as ``PREFIX`` + KIND/NAME.
        prefix: that prefix.

    Raises:
        DataError: some moments of a parameter are missing, as in a state of another optimizer.
    """
    kinds: dict[str, list[str]] = {}
    for key, name in wanted:
        kind = key.partition("/")[0]
        if kind not in (_STEP, _MASTER):  # these follow from the count of all, and the weight
            kinds.setdefault(name, []).append(f"{prefix}{kind}/{name}")
    new = []
    for name, keys in kinds.items():
        missing = [key for key in keys if key not in state]
        if missing == keys:
            new.append(name)
        elif missing:
            raise DataError(
                "The state has some moments of a parameter, and not all.",
                node=name,
                expected=", ".join(missing),
                received="nothing",
                remedy="load a state of the same optimizer and options, or one without moments",
            )
    return new if len(new) < len(kinds) else []


def require_counts(state: Mapping[str, Any], prefix: str = "") -> None:
    """Raise DataError unless all step counts in a state are valid.

    Args:
        state: values by name; counts are "step" and "step/NAME" after the prefix.
        prefix: prefix of all names.
    """
    for name, value in state.items():
        if name.removeprefix(prefix).partition("/")[0] == _STEP:
            require_count(value, name)


def named_state(
    session: TrainingSession,
    names: Mapping[str, str],
    settings: Mapping[str, Any],
    moments: Mapping[str, object] | None = None,
) -> dict[str, torch.Tensor]:
    """Return copies of a session's moments and counters, as ``optimizer/KIND/NAME``.

    Args:
        session: the session.
        names: the model's names of its parameters, each with the session's.
        settings: options of the session.
        moments: those of all processes; None for those that the session has.
    """
    name_of = {graph: name for name, graph in names.items()}
    state: dict[str, torch.Tensor] = {}
    own = session.held_parameters if moments is None else None
    for key, tensor in (session.optimizer_state() if moments is None else moments).items():
        kind, _, graph_name = key.partition("/")
        if own is None or graph_name in own:  # others have counts of steps only
            state[f"{OPTIMIZER}{kind}/{name_of[graph_name]}"] = from_dlpack(tensor)
    state[STEP] = torch.tensor(session.step_count)
    if settings.get("precision") == "fp16":
        state[LOSS_SCALE] = torch.tensor(session.loss_scale)
    return state


def require_fit(
    session: TrainingSession, names: Mapping[str, str], state: Mapping[str, torch.Tensor]
) -> None:
    """Raise unless a session can take all moments of a state, before anything changes.

    Args:
        session: the session.
        names: the model's names of its parameters, each with the session's.
        state: as of ``named_state``.

    Raises:
        DataError: a value is no tensor.
        ModelError: the session's optimizer has no such moment.
        ShapeError: a moment has another shape.
    """
    known, held = set(session.optimizer_state_names), session.held_parameters
    for key, tensor in state.items():
        kind, _, name = key.removeprefix(OPTIMIZER).partition("/")
        own = names.get(name, name)
        elsewhere = held is not None and own not in held and own in names.values()
        if (
            key in (STEP, LOSS_SCALE)
            or elsewhere
            or (kind == _STEP and f"{kind}/{own}" not in known)
        ):
            continue
        if not isinstance(tensor, torch.Tensor):
            raise DataError(
                "A moment is not a tensor.",
                node=key,
                expected="a torch.Tensor",
                received=f"a {type(tensor).__name__}",
            )
        if f"{kind}/{own}" not in known:
            raise ModelError(
                "The state has a moment that the optimizer does not have.",
                node=key,
                expected=", ".join(sorted({k.partition("/")[0] for k in known})) or "none",
                received=kind,
                remedy="load a state of the same optimizer, options and parameters",
            )
        there = from_dlpack(session.state(f"{kind}/{own}"))
        if there.dtype not in _NARROW and there.shape != tensor.shape:
            raise ShapeError(
                "A moment has another shape than its parameter.",
                node=key,
                expected=str(list(there.shape)),
                received=str(list(tensor.shape)),
            )


def load_state(
    session: TrainingSession,
    names: Mapping[str, str],
    settings: Mapping[str, Any],
    state: Mapping[str, torch.Tensor],
) -> None:
    """Load a result of ``named_state``; a session that keeps some moments only takes those."""
    moments: dict[str, torch.Tensor] = {}
    counts = {k for k in session.optimizer_state_names if k[:5] == "step/"}
    held = session.held_parameters
    for key, tensor in state.items():
        if key in (STEP, LOSS_SCALE):
            continue
        kind, _, name = key.removeprefix(OPTIMIZER).partition("/")
        own = names.get(name, name)
        if held is not None and own not in held and own in names.values():
            continue
        # not every session counts steps by parameter
        if kind != _STEP or f"{kind}/{own}" in counts:
            moments[f"{kind}/{own}"] = tensor
    session.set_optimizer_state(moments)
    if STEP in state:
        session.step_count = int(state[STEP])
    if LOSS_SCALE in state and settings.get("precision") == "fp16":
        session.loss_scale = float(state[LOSS_SCALE])


@dataclasses.dataclass(eq=False)
class _EngineState:
    """The optimizer state of one parameter in the engine.

    Moments that the engine keeps in fewer bits cannot be shared. The optimizer's state has them
    only while its ``state_dict`` runs; values that are put there are copied and removed again.
    """

    session: TrainingSession
    parameter: torch.Tensor
    count: torch.Tensor  # number of its steps; for SGD and Muon only whether there was one
    tensors: dict[str, torch.Tensor]  # by PyTorch's names
    narrow: dict[str, str]  # moments in fewer bits: PyTorch's name → the session's
    initial: dict[str, float]  # initial value of each moment

    def is_in(self, state: Mapping[torch.Tensor, dict[str, Any]]) -> bool:
        """Return whether the optimizer's state is as ``show`` left it."""
        if self.parameter not in state:
            return False
        values = state[self.parameter]
        return all(values.get(kind) is own for kind, own in self.tensors.items()) and not any(
            kind in values for kind in self.narrow
        )

    def take(self, state: dict[str, Any]) -> bool:
        """Copy values from the optimizer's state, and put the engine's tensors into it.

        Return False if the optimizer has no state yet. Raises DataError, ShapeError.
        """
        values = {kind: state.get(kind) for kind in (*self.tensors, *self.narrow)}
        if values.get(_MASTER, self) is None:
            values[_MASTER] = self.tensors[_MASTER].zero_()
        # as SGD's state before the first step
        if _STEP not in self.tensors and None in values.values():
            return False
        for kind, value in values.items():
            if value is None:
                raise DataError(
                    "The optimizer's state lacks a moment of a parameter.",
                    node=f"a parameter of shape {list(self.parameter.shape)}",
                    expected=", ".join(values),
                    received=f"no {kind}",
                    remedy="load a state_dict of this kind of optimizer, or clear the state",
                )
            shape = list(torch.as_tensor(value).shape)
            expected = list(self.tensors.get(kind, self.parameter).shape)
            if shape != expected:
                raise ShapeError(
                    "A moment has another shape than its parameter.",
                    node=kind,
                    expected=str(expected),
                    received=str(shape),
                )
            if kind == _STEP:
                require_count(value, f"step of a parameter of shape {list(self.parameter.shape)}")
        for kind, own in self.tensors.items():
            if values[kind] is not own:
                own.copy_(torch.as_tensor(values[kind]))
            state[kind] = own
        self._set_narrow({kind: torch.as_tensor(state.pop(kind)) for kind in self.narrow})
        if _STEP not in self.tensors:
            self.count.clamp_(min=1)
        return True

    def begin_anew(self) -> None:
        """Reset to the state before the first step."""
        self.count.zero_()
        for kind, own in self.tensors.items():
            own.fill_(self.initial[kind])
        self._set_narrow({kind: torch.zeros_like(self.parameter) for kind in self.narrow})

    def _set_narrow(self, values: Mapping[str, torch.Tensor]) -> None:
        self.session.set_optimizer_state(
            {
                self.narrow[kind]: value.detach().to(torch.float32).contiguous()
                for kind, value in values.items()
            }
        )


class SharedState:
    """The moments of one session: ``optimizer.state`` contains the tensors that steps write.

    They appear there with a parameter's first step. Values that are put into the optimizer's state,
    or removed from it, take effect at the next ``agree``, which removes those of parameters whose
    moments another process keeps.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        session: TrainingSession,
        parameters: Mapping[str, torch.Tensor],
    ) -> None:
        self._optimizer = optimizer
        self._session = session
        held = session.held_parameters
        self._elsewhere = [p for n, p in parameters.items() if held is not None and n not in held]
        moments: dict[str, dict[str, torch.Tensor]] = {name: {} for name in parameters}
        narrow: dict[str, dict[str, str]] = {name: {} for name in parameters}
        for key in session.optimizer_state_names:
            kind, _, name = key.partition("/")
            if held is not None and name not in held:
                continue
            tensor = from_dlpack(session.state(key))
            if tensor.dtype in _NARROW:
                narrow[name][kind] = key
            else:
                moments[name][kind] = tensor
        counts = not isinstance(optimizer, _WITHOUT_COUNT)
        initial = _initial(optimizer)
        states = []
        for name, own in moments.items():
            if not own and not narrow[name]:  # no gradient reaches it
                continue
            visible = own if counts else _without_step(own)
            begin = {kind: initial.get((kind, id(parameters[name])), 0.0) for kind in visible}
            states.append(
                _EngineState(session, parameters[name], own[_STEP], visible, narrow[name], begin)
            )
        self._hidden_states = [h for h in states if h.tensors or h.narrow]
        self._hooks = self._add_hooks() if any(h.narrow for h in states) else ()
        self._in_state: list[_EngineState] = []
        self._last_ids: list[int] = []
        self.agree()

    def agree(self) -> None:
        """Take over changes of the optimizer's state, and add moments that it lacks."""
        if self._ids() != self._last_ids:
            self._believe()
        self.show()

    def _ids(self) -> list[int]:
        """Return a cheap fingerprint of the state, which changes if objects are replaced.

        The engine's tensors live as long as this object, so that no other object gets their id.
        """
        state = self._optimizer.state
        return [*map(id, state), *map(id, chain.from_iterable(map(dict.values, state.values())))]

    def _believe(self) -> None:
        state = self._optimizer.state
        for parameter in self._elsewhere:
            state.pop(parameter, None)
        removals = []
        for own_state in self._in_state:
            if own_state.is_in(state):
                continue
            values = state.get(own_state.parameter)
            if not values or not own_state.take(values):
                own_state.begin_anew()
                removals.append(own_state)
        additions = [h for h in self._hidden_states if (s := state.get(h.parameter)) and h.take(s)]
        if removals or additions:
            self._in_state = [h for h in (*self._in_state, *additions) if h not in removals]
            self._hidden_states = [
                h for h in (*self._hidden_states, *removals) if h not in additions
            ]
        self._last_ids = self._ids()

    def show(self) -> None:
        """Put the moments of parameters that made a step into the optimizer's state."""
        if not self._hidden_states:
            return
        states = [h for h in self._hidden_states if h.count > 0]
        for own_state in states:
            self._optimizer.state[own_state.parameter].update(own_state.tensors)
        self._in_state += states
        self._hidden_states = [h for h in self._hidden_states if h.count == 0]
        self._last_ids = self._ids()

    # --- moments in fewer bits --------------------------------------------------------------------

    def put_copies(self) -> None:
        """Put moments that cannot be shared into the optimizer's state, as float32.

        The next ``agree``, or that of another session, takes them over and removes them.
        """
        if not self._hooks:
            return
        self.agree()
        moments = self._session.optimizer_state()
        for own_state in self._in_state:
            values = self._optimizer.state[own_state.parameter]
            for kind, key in own_state.narrow.items():
                values[kind] = from_dlpack(moments[key])

    def close(self) -> None:
        """Leave the optimizer alone from now on."""
        for hook in self._hooks:
            hook.remove()

    def _remove_copies(self) -> None:
        for own_state in self._in_state:
            values = self._optimizer.state.get(own_state.parameter, {})
            for kind in own_state.narrow:
                values.pop(kind, None)

    def _add_hooks(self) -> tuple[Any, ...]:
        """Let the optimizer's ``state_dict`` contain moments that cannot be shared."""
        reference = weakref.ref(self)  # the optimizer may outlive the session

        def before(_: object) -> None:
            if (shared := reference()) is not None:
                shared.put_copies()

        def after(_: object, result: dict[str, Any]) -> None:
            # its dicts are those of the optimizer's state
            result["state"] = {key: dict(values) for key, values in result["state"].items()}
            if (shared := reference()) is not None:
                shared._remove_copies()

        return (
            self._optimizer.register_state_dict_pre_hook(before),
            self._optimizer.register_state_dict_post_hook(after),
        )


def _initial(optimizer: torch.optim.Optimizer) -> dict[tuple[str, int], float]:
    """Return initial values of moments that do not start at 0, by (kind, id of the parameter)."""
    return {
        key: value
        for group in optimizer.param_groups
        for p in group["params"]
        for key, value in (
            (("mu_product", id(p)), 1.0),
            (("sum", id(p)), float(group.get("initial_accumulator_value", 0))),
        )
    }


def _without_step(own: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {kind: tensor for kind, tensor in own.items() if kind != _STEP}
