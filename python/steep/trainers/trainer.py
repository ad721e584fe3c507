"""``steep.trainer``: a compiled step that reads a ``torch.optim`` object before every step."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from steep import _steep
from steep.errors import DataError, ModelError
from steep.providers import Providers
from steep.session.training import TrainingSession
from steep.torch_internals.optim import has_own_step, has_step_hooks, note_step
from steep.trainers.base import Groups, Trainer
from steep.trainers.optimizer import Lamb, Optimizer
from steep.trainers.optimizer_state import LOSS_SCALE, OPTIMIZER, STEP, SharedState
from steep.trainers.parameter_checks import check_registered
from steep.trainers.several_processes import join_trainer
from steep.trainers.step_options import StepOptions

_KINDS = {
    getattr(torch.optim, name): name.lower()
    for name in (
        *("SGD", "Adam", "AdamW", "NAdam", "RAdam"),
        *("Adagrad", "Adadelta", "RMSprop", "Adamax", "Adafactor", "Muon"),
    )
    if hasattr(torch.optim, name)  # Adafactor came with PyTorch 2.5, Muon with 2.9
} | {Lamb: "lamb"}
# numbers of a parameter group: PyTorch's name → the engine's
_NUMBERS = {
    **{name: name for name in ("lr", "weight_decay", "momentum", "dampening", "momentum_decay")},
    **{name: name for name in ("lr_decay", "initial_accumulator_value", "rho", "alpha")},
    "eps": "epsilon",
    "beta2_decay": "beta2_decay",
    "d": "clip_threshold",
}
_FLAGS = (
    *("nesterov", "maximize", "amsgrad", "centered", "decoupled_weight_decay", "bias_correction"),
)


@dataclasses.dataclass(frozen=True)
class Update:
    """The update of a parameter group: settings that are compiled in, and numbers of each step."""

    kind: str
    flags: tuple[str, ...]
    has_momentum: bool
    numbers: tuple[tuple[str, float], ...]  # by the engine's names
    own: tuple[tuple[str, float], ...] | None = None  # attributes of a registered optimizer
    newton_schulz: tuple[tuple[str, Any], ...] = ()  # settings of Muon, by the engine's names
    state_precision: str = "float32"

    def compiled_in(self) -> tuple[Any, ...]:
        """Return the settings whose change needs another compiled program."""
        decay = None if self.own is None else dict(self.numbers)["weight_decay"]
        steps = [value for key, value in self.newton_schulz if key != "ns_coefficients"]
        return self.kind, self.flags, self.has_momentum, self.own, decay, *steps

    def of_session(self) -> dict[str, Any]:
        """Return the optimizer settings of a session whose groups have their own optimizers."""
        return {"optimizer": self.kind, "attributes": dict(self.own or ())}

    def options(self) -> _steep.OptimizerOptions:
        """Return the settings as the engine's options."""
        options = _steep.OptimizerOptions()
        options.kind, options.state_precision = self.kind, self.state_precision
        if self.kind == "muon":
            options.nesterov = False  # the default is that of PyTorch
        if self.kind == "lamb":
            options.bias_correction = False
        for flag in self.flags:
            setattr(options, flag, True)
        for name, value in (*self.numbers, *self.newton_schulz):
            setattr(options, name, value)
        if self.own is not None:
            options.attributes = dict(self.own)
        return options


def read_updates(
    optimizer: torch.optim.Optimizer, state_precision: str = "float32"
) -> list[Update]:
    """Return the present settings of each group of an optimizer.

    Args:
        optimizer: one of PyTorch's, or a ``steep.Optimizer``.
        state_precision: the precision of its moments in the engine.

    Raises:
        ModelError: the optimizer has no counterpart in the engine, or has hooks on its step.
    """
    own = isinstance(optimizer, Optimizer)
    kind = optimizer.name if own else _KINDS.get(type(optimizer))
    if kind is None:
        raise ModelError(
            "The optimizer has no counterpart in the engine.",
            expected="of torch.optim: "
            + ", ".join(each.__name__ for each in _KINDS)
            + "; or a steep.Optimizer",
            received=type(optimizer).__name__,
            remedy="use ORTModule, which works with any optimizer",
        )
    if has_step_hooks(optimizer):
        raise ModelError(
            "The optimizer has hooks on its step, which is not called.",
            remedy="do what they do around trainer.step(), or use ORTModule",
        )
    if has_own_step(optimizer):
        raise ModelError(
            "The optimizer's step was replaced by a function, which is not called.",
            received=repr(vars(optimizer)["step"]),
            remedy="do what it does around trainer.step(), or use ORTModule",
        )
    updates = [_read_group(kind, group, own) for group in optimizer.param_groups]
    return [dataclasses.replace(u, state_precision=state_precision) for u in updates]


def _read_group(kind: str, group: Mapping[str, Any], own: bool) -> Update:
    if group.get("differentiable"):
        raise ModelError(
            "The option differentiable of the optimizer has no counterpart in the engine.",
            remedy="use ORTModule, which works with any optimizer",
        )
    numbers = {
        name: float(group[key])
        for key, name in _NUMBERS.items()
        if key in group and (key != "eps" or kind != "adafactor")
    }
    if kind == "adafactor":
        root, size = group["eps"]
        numbers |= {"epsilon2": float(size)} | ({} if root is None else {"epsilon": float(root)})
    if "betas" in group:
        numbers["beta1"], numbers["beta2"] = (float(beta) for beta in group["betas"])
    has_momentum = numbers.get("momentum", 0) != 0
    flags = tuple(
        flag for flag in _FLAGS if group.get(flag) and (flag != "nesterov" or has_momentum)
    )
    attributes = tuple(sorted(group["attributes"].items())) if own else None
    newton_schulz = _newton_schulz(group) if kind == "muon" else ()
    return Update(kind, flags, has_momentum, tuple(numbers.items()), attributes, newton_schulz)


def _newton_schulz(group: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    return (
        ("ns_coefficients", tuple(float(c) for c in group["ns_coefficients"])),
        ("ns_steps", int(group["ns_steps"])),
        ("adjust_lr_fn", group["adjust_lr_fn"] or ""),
    )


class _OptimTrainer(Trainer):
    """A trainer that reads a ``torch.optim`` object and the modes of submodules at every step.

    The optimizer is read before every step. The numbers of each group are inputs of the compiled
    step; another change makes the step compile again. The moments are in the optimizer's state.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        criterion: Callable[..., Any] | None,
        optimizer: torch.optim.Optimizer,
        settings: Mapping[str, Any],
        *,
        seed: int | None,
        opset: int | None,
        predictions: bool,
        parallel: str | None,
        zero: int,
        full_checkpoints: bool,
        wire_precision: str,
    ) -> None:
        self._optimizer = optimizer
        self._state: SharedState | None = None
        self._state_precision: str = settings["state_precision"]
        self._updates = self._read_updates()
        super().__init__(
            model,
            criterion,
            {**settings, **self._updates[0].of_session()},
            seed=seed,
            opset=opset,
            predictions=predictions,
            parallel=join_trainer(parallel, zero, full_checkpoints, wire_precision),
        )
        self._check_groups()

    def _read_updates(self) -> list[Update]:
        return read_updates(self._optimizer, self._state_precision)

    def _check_groups(self) -> None:
        """Refuse a parameter that is in groups twice; ``torch.optim`` detects some cases only."""
        names = {id(p): n.removeprefix("model.") for n, p in self._net.named_parameters()}
        group_of: dict[int, int] = {}
        for i, group in enumerate(self._optimizer.param_groups):
            for p in group["params"]:
                if id(p) in group_of:
                    raise ModelError(
                        "The optimizer lists a parameter twice.",
                        node=names.get(id(p), f"a parameter of shape {list(p.shape)}"),
                        expected="each in one of its param_groups, once",
                        received=f"param_groups {group_of[id(p)]} and {i}, counted from 0",
                        remedy="keep it in the group whose settings it needs",
                    )
                group_of[id(p)] = i

    def _holds_for(self) -> tuple[Any, ...]:
        """Return everything that determines whether the compiled step is still valid."""
        return tuple(
            (update.compiled_in(), tuple(id(p) for p in group["params"] if p.requires_grad))
            for update, group in zip(self._updates, self._optimizer.param_groups, strict=True)
        )

    def _feed(self, session: TrainingSession, lr: float | None) -> None:
        # PyTorch's schedulers warn if step() was not called
        note_step(self._optimizer)
        if lr is not None:
            self._set_lr(lr)
        for i, (now, before) in enumerate(zip(self._updates, self._last_updates, strict=True)):
            if now != before:
                session.set_group(i, now.options())
                self._last_updates[i] = now
        if self._parallel is not None:
            self._parallel.settings = str(self._updates)
        rate = dict(self._updates[0].numbers)["lr"]
        if rate != self._lr:
            session.lr = self._lr = rate

    def _set_lr(self, lr: float) -> None:
        if len(self._optimizer.param_groups) != 1:
            raise ModelError(
                "One learning rate is given for several parameter groups.",
                expected="a rate for each group",
                received=str(lr),
                remedy='set group["lr"] of the optimizer\'s param_groups',
            )
        rate = float(lr) if isinstance(lr, (int, float, torch.Tensor)) else math.nan
        if not 0 <= rate <= torch.finfo(torch.float32).max:
            raise DataError(
                "The learning rate is not valid.",
                node="lr",
                expected="a number of at least 0 that is finite in float32",
                received=repr(lr),
            )
        self._optimizer.param_groups[0]["lr"] = lr
        self._updates = self._read_updates()

    def step(self, *inputs: torch.Tensor, lr: float | None = None, accumulate: bool = False) -> Any:
        """As ``Trainer.step``; ``lr`` is also written to the optimizer."""
        result = super().step(*inputs, lr=lr, accumulate=accumulate)
        if self._state is not None:
            self._state.show()
        return result

    def apply_gradients(self, lr: float | None = None) -> torch.Tensor:
        """As ``Trainer.apply_gradients``; ``lr`` is also written to the optimizer."""
        loss = super().apply_gradients(lr)
        if self._state is not None:
            self._state.show()
        return loss

    def _step_mode(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def _groups(self, names: dict[str, str]) -> Groups:
        by_id = {id(p): names[n] for n, p in self._net.named_parameters() if n in names}
        self._last_updates = list(self._updates)
        return [
            ([by_id[id(p)] for p in group["params"] if id(p) in by_id], update.options())
            for update, group in zip(self._updates, self._optimizer.param_groups, strict=True)
        ]

    def _trained_names(self, read: Sequence[torch.Tensor]) -> set[str]:
        self._check_groups()
        own = [p for group in self._optimizer.param_groups for p in group["params"]]
        check_registered(self._net, read, own)
        self._updates = self._read_updates()
        self._held_for = self._holds_for()
        self._settings.update(self._updates[0].of_session())
        ids = set(map(id, own))
        return {n for n, p in self._net.named_parameters() if p.requires_grad and id(p) in ids}

    def _believe(self) -> None:
        if not self._fits():
            self._holds = False
        elif self._session is not None:
            self._agree()

    def _fits(self) -> bool:
        self._updates = self._read_updates()
        return self._session is None or self._holds_for() == self._held_for

    # --- moments ----------------------------------------------------------------------------------

    def _share(self, session: TrainingSession, parameters: dict[str, torch.Tensor]) -> None:
        if self._state is not None:
            self._state.close()
        self._state = SharedState(self._optimizer, session, parameters)

    def _agree(self) -> None:
        if self._state is not None:
            self._state.agree()

    def _carry_over(self) -> dict[str, torch.Tensor]:
        # moments are in the optimizer's state, or are put there
        carried = {k: v for k, v in super()._carry_over().items() if k in (STEP, LOSS_SCALE)}
        if self._state is not None:
            self._state.put_copies()
        return carried

    def load_state_dict(self, state: Mapping[str, torch.Tensor], strict: bool = True) -> None:
        """As ``Trainer.load_state_dict``; a step count for all parameters becomes that of each."""
        if STEP in state and not any(k.startswith(f"{STEP}/") for k in state):
            kinds = [k.removeprefix(OPTIMIZER) for k in state if k.startswith(OPTIMIZER)]
            names = {k.partition("/")[2] for k in kinds} - {""}
            state = {**state, **{f"{STEP}/{n}": state[STEP].float() for n in names}}
        super().load_state_dict(state, strict)


def trainer(
    model: torch.nn.Module,
    criterion: Callable[[Any, torch.Tensor], torch.Tensor] | None,
    optimizer: torch.optim.Optimizer,
    *,
    clip_norm: float = 0.0,
    clip_value: float = 0.0,
    predictions: bool = True,
    precision: str = "fp32",
    loss_scale: float = 2.0**16,
    loss_scale_window: int = 2000,
    seed: int | None = None,
    check_finite: bool = False,
    master_weights: bool = True,
    stochastic_rounding: bool = False,
    state_precision: str = "float32",
    memory_limit: str | int = "",
    offload_folder: str | os.PathLike[str] = "",
    disabled_passes: Sequence[str] = (),
    providers: Providers | None = None,
    opset: int | None = None,
    parallel: str | None = None,
    zero: int = 0,
    full_checkpoints: bool = False,
    wire_precision: str = "float32",
) -> Trainer:
    """Compile a PyTorch model's whole step: forward, loss, backward and update.

    >>> t = steep.trainer(model, torch.nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=1e-4))
    >>> loss, y_pred = t.step(x, y)

    Args:
        model: its parameters are updated in place.
        criterion: called with the model's result and the label; None if the model returns its loss
            first.
        optimizer: ``torch.optim.SGD``, ``Adam``, ``AdamW``, ``NAdam``, ``RAdam``, ``Adagrad``,
            ``Adadelta``, ``RMSprop``, ``Adamax``, ``Adafactor`` or ``Muon``, or a ``steep.Lamb`` or
            ``steep.Optimizer``. It is read before every step. Rates, betas, momentum and weight
            decay of each group may change at each step. If its parameters change, or which of them
            need a gradient, the step is compiled again.
            Do not call its ``step``. Its ``state`` has the moments, which are the tensors that the
            trainer writes: its ``state_dict`` is complete, and a state that is loaded into it is
            used. With another ``state_precision`` than "float32", moments of large parameters are
            in its ``state_dict`` only, as float32.
        clip_norm: bound of the gradients' global norm; 0 for none.
        clip_value: bound of each element of the gradients, after ``clip_norm``; 0 for none.
        predictions: whether steps return the model's result besides the loss.
        precision: "fp32", or "bf16" or "fp16": matrix products in 16 bits, weights in float32.
        loss_scale, loss_scale_window: with "fp16", as for ``TrainingSession``.
        seed: seed of dropout; by default PyTorch's.
        check_finite, master_weights, stochastic_rounding, state_precision, memory_limit,
            offload_folder, disabled_passes: as for ``TrainingSession``.
        providers: where steps run, as for ``InferenceSession``.
        opset: opset of the files of ``save_as_onnx``.
        parallel: "torch": the processes of ``torch.distributed`` train this model together, each
            with its own rows (docs/parallel.md). All make the same calls. The loss that a step
            returns, and the gradients, are the means over the rows of all. Only rank 0 writes
            files.
        zero: 1: with ``parallel``, each process keeps the moments of its share of the parameters
            only (ZeRO-1), in the optimizer's ``state`` too. All processes call ``state_dict`` and
            ``save_checkpoint``, and load the same; the trained parameters may not change. 2: the
            sums of gradients, too (ZeRO-2): backward sends them, also for each
            ``step(accumulate=True)``, which all processes then call equally often.
        full_checkpoints: with ``zero``, rank 0 collects the moments and writes checkpoints alone;
            otherwise each process writes those that it keeps, in a folder that all see.
        wire_precision: with ``parallel``, "bfloat16": gradients are exchanged in half the bytes,
            and rounded (docs/parallel.md).

    PyTorch's tracer, Dynamo, captures model and criterion as one graph. It captures them again when
    a guard of the graph fails: an attribute, a global, a hook, a mode, dtypes. The parameters of
    the optimizer are trained, also those of the criterion. ``train()`` and ``eval()`` of the model
    and its submodules work as in a PyTorch loop. A step also writes the buffers that forward
    writes; checkpoints contain them.

    Raises:
        ModelError: at a step, if model and criterion do not become one graph in the engine (the
            error names the line), if no parameter in it is trained, or if the optimizer changed in
            a way that needs another compiled step; or if a trained parameter shares its memory with
            another tensor, has a hook on its gradient, or a gradient that is always zero.
        ProviderError: a launcher (torchrun, mpirun, srun) or a process group of PyTorch has several
            processes, and each would train alone: pass ``parallel="torch"``, or set
            ``STEEP_ALONE=1`` if this is intended. With ``parallel``: no launcher started this
            process; at a step: another process ended.
    """
    settings = StepOptions(
        clip_norm=clip_norm,
        clip_value=clip_value,
        precision=precision,
        loss_scale=loss_scale,
        loss_scale_window=loss_scale_window,
        check_finite=check_finite,
        master_weights=master_weights,
        stochastic_rounding=stochastic_rounding,
        state_precision=state_precision,
        memory_limit=memory_limit,
        offload_folder=offload_folder,
        disabled_passes=disabled_passes,
        providers=providers,
    ).settings()
    return _OptimTrainer(
        model,
        criterion,
        optimizer,
        settings,
        seed=seed,
        opset=opset,
        predictions=predictions,
        parallel=parallel,
        zero=zero,
        full_checkpoints=full_checkpoints,
        wire_precision=wire_precision,
    )
