"""The calls of a ``TrainingSession`` that run its step, and what they read between steps."""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from steep import _steep
from steep.errors import DataError, Error
from steep.session.schedule import CallableSchedule, RateFunction, engine_rate

if TYPE_CHECKING:
    from steep.parallel.ranks import Ranks
    from steep.session.destinations import Destinations

log = logging.getLogger("steep")


class SessionSteps(_steep.TrainingSession):
    """The engine's session, with schedules by functions, bound outputs and several processes."""

    _parallel: Ranks | None = None
    _schedule: CallableSchedule | None = None
    _destinations: Destinations | None = None

    def _prepare_steps(
        self, options: _steep.TrainingOptions, function: RateFunction | None
    ) -> None:
        """Begin, once the engine's session exists.

        Args:
            options: those of the session.
            function: the schedule, if it is a function.
        """
        self._step_outputs = tuple(options.step_outputs)
        self._fit_lock = threading.Lock()
        groups = enumerate(options.groups)
        self._own_optimizers = {i: g.optimizer for i, g in groups if g.optimizer is not None}
        kind = options.schedule.kind
        if function is not None:
            kind = "a function"
            self._schedule = CallableSchedule(function, self, self._own_optimizers)
        elif options.schedule.warmup_steps:
            kind = f"{kind} with warmup_steps={options.schedule.warmup_steps}"
        self._schedule_text = "" if kind == "constant" else kind
        # An attribute of the instance hides the method; _first_step removes it, so later steps pay
        # nothing.
        self.__dict__["step"] = self._first_step
        if self._parallel is not None:
            self._install_step()

    def apply_gradients(self) -> _steep.StepResult:
        """Clip the mean of the accumulated gradients, and update the weights by it.

        The result is that of one step of all their inputs, if the parts have one size and the loss
        is a mean. The parts of a mean cross entropy that ignores labels are weighted by their
        labels. The result's loss is the mean of the parts' losses. With ``parallel``, the parts of
        all processes count.

        Raises:
            DataError: no gradients were accumulated.
        """
        if self._schedule is not None:
            self._schedule.apply(self)
        if self._parallel is None:
            return super().apply_gradients()
        return self._parallel.apply_gradients(self)

    def drop_gradients(self) -> None:
        """Discard the accumulated gradients."""
        super().drop_gradients()
        if self._parallel is not None:
            self._parallel.drop(self)

    def eval(self, *arrays: object, out: object = None, **named: object) -> _steep.EvalResult:
        """Run forward in inference mode. Without the label there is no loss.

        Args:
            arrays, named: as for ``step``; the label may be left out.
            out: arrays by the names of outputs, to which these are copied; see ``bind_outputs``.

        Raises as ``step`` and ``bind_outputs``.
        """
        if out is not None and not isinstance(out, Mapping):
            if all(info.name != "out" for info in self.input_info()):
                raise DataError(
                    "eval writes outputs to arrays by name.",
                    node="out",
                    expected="a mapping of the names of outputs to arrays",
                    received=f"a {type(out).__name__}",
                )
            named["out"], out = out, None  # an input of this name
        if out is None:
            return super().eval(*arrays, **named)
        from steep.session.destinations import Destinations, types_of  # they need NumPy

        places = Destinations(out, types_of(self.output_info()))
        result = super().eval(*arrays, **named)
        outputs = zip((i.name for i in self.output_info()), result.outputs, strict=True)
        places.write(dict(outputs))
        return result

    def gradients(
        self, *arrays: object, out: object = None
    ) -> tuple[float, dict[str, _steep.Tensor]]:
        """Return the loss, and the gradient of each trained parameter, without an update.

        Args:
            arrays: as for ``step``.
            out: arrays by the names of parameters, or one vector for all in the order of
                ``parameter_names``, to which gradients are copied; see ``bind_outputs``.

        Raises as ``step`` and ``bind_outputs``.
        """
        if out is None:
            return super().gradients(*arrays)
        from steep.session.destinations import ResultType, gradient_destinations

        states = {n: self.state(n) for n in self.parameter_names}
        places = gradient_destinations(
            out, [ResultType(n, t.dtype, t.shape) for n, t in states.items()]
        )
        loss, gradients = super().gradients(*arrays)
        places.write(gradients)
        return loss, gradients

    def bind_outputs(self, arrays: Mapping[str, object]) -> None:
        """From now on, each ``step`` also writes the outputs named here to these arrays.

        Results have the dtypes and shapes of the arrays; they are copied once. An empty mapping
        ends it.

        Args:
            arrays: by the names in ``step_outputs``: writable arrays of NumPy, with any strides, or
                contiguous tensors of PyTorch or others in CPU memory.

        Raises:
            DataError: a name is not in ``step_outputs``, or memory is not writable or overlaps. At
                a step, before it: PyTorch has moved the memory of a tensor (``resize_``).
            ShapeError: a dtype, rank or fixed extent differs. At a step, for an extent that the
                model leaves open: the step is done then, and nothing is written.
        """
        from steep.session.destinations import Destinations, types_of

        named = {t.name: t for t in types_of(self.output_info())}
        types = [named[n] for n in self._step_outputs]
        self._destinations = Destinations(arrays, types) if arrays else None
        self._refresh_step()

    @property
    def lr(self) -> float:
        """Learning rate of the next step; assigning sets the rate before the schedule's factor."""
        if self._schedule is None:
            return float(engine_rate.__get__(self))
        return self._schedule.base * self._schedule.factor(self.step_count)

    @lr.setter
    def lr(self, rate: float) -> None:
        engine_rate.__set__(self, rate)
        if self._schedule is not None:
            self._schedule.base = rate

    def set_group(self, i: int, optimizer: _steep.OptimizerOptions) -> None:
        """Set the numbers of the i-th group, which has an optimizer of its own."""
        super().set_group(i, optimizer)
        self._own_optimizers[i] = optimizer
        if self._schedule is not None:
            self._schedule.change_group(i, optimizer)

    @contextlib.contextmanager
    def _alone_in_fit(self) -> Iterator[None]:
        """Refuse a second ``fit`` meanwhile: the two would set each other's rate and weights."""
        if not self._fit_lock.acquire(blocking=False):
            raise DataError(
                "fit is running in this session.",
                expected="one call at a time",
                received="a call in a callback of fit, or in another thread",
                remedy="In a callback, call step() or eval(); or fit another session.",
            )
        try:
            yield
        finally:
            self._fit_lock.release()

    @contextlib.contextmanager
    def _scheduled(self, function: RateFunction | None) -> Iterator[None]:
        """Set the rate by a function in the ``with`` block."""
        if function is None:
            yield
            return
        if not callable(function) or self._schedule_text:
            raise DataError(
                "The session has a schedule." if callable(function) else "This is no schedule.",
                node="schedule",
                expected="a function, and a session without a schedule of its own",
                received=self._schedule_text if callable(function) else repr(function),
            )
        self._schedule = schedule = CallableSchedule(function, self, self._own_optimizers)
        self._refresh_step()
        try:
            yield
        finally:
            self._schedule = None
            schedule.remove(self)
            self._refresh_step()

    def set_weights(self, weights: Mapping[str, object]) -> None:
        """Copy values to weights, after all were checked. Names left out keep their values."""
        super().set_weights(dict(weights))
        self._refresh_peers()

    def set_optimizer_state(self, moments: Mapping[str, object]) -> None:
        """Copy values to moments, after all were checked. Names left out keep their values."""
        super().set_optimizer_state(dict(moments))
        self._refresh_peers()

    def _refresh_peers(self) -> None:
        if self._parallel is not None:
            self._parallel.refresh()

    def _install_step(self) -> None:
        """Make ``step`` the fastest function that does what this session needs."""
        if self._schedule is not None or self._destinations is not None:
            self.__dict__["step"] = self._prepared_step
        elif self._parallel is not None:
            self.__dict__["step"] = functools.partial(self._parallel.step, self)
        else:
            self.__dict__.pop("step", None)  # another thread may have removed it

    def _refresh_step(self) -> None:
        if self.__dict__.get("step") != self._first_step:
            self._install_step()

    def _prepared_step(
        self, *arrays: object, accumulate: bool = False, **kwargs: object
    ) -> _steep.StepResult:
        """Run a step with a rate by a function, or with outputs that are bound."""
        if self._destinations is not None:
            self._destinations.require_in_place()
        if self._schedule is not None:
            self._schedule.apply(self)
        if self._parallel is not None:
            result = self._parallel.step(self, *arrays, accumulate=accumulate, **kwargs)
        else:
            result = super().step(*arrays, accumulate=accumulate, **kwargs)
        if self._destinations is not None:
            self._destinations.write(dict(zip(self._step_outputs, result.outputs, strict=True)))
        return result

    def _first_step(
        self, *arrays: object, accumulate: bool = False, **kwargs: object
    ) -> _steep.StepResult:
        """Log the plan of a step before the first one runs."""
        if log.isEnabledFor(logging.INFO):
            inputs = arrays or [kwargs[i.name] for i in self.input_info() if i.name in kwargs]
            with contextlib.suppress(Error):  # the step itself raises a better error
                log.info("step planned: %s", self.plan(*inputs))
        self._install_step()
        return self.step(*arrays, accumulate=accumulate, **kwargs)
