"""Gradients that wait while a step is compiled again, as it is for inputs of other extents."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch
from torch.utils.dlpack import from_dlpack

from steep import _steep
from steep.errors import DataError, counted
from steep.session.training import TrainingSession


@dataclasses.dataclass(frozen=True)
class CarriedGradients:
    """Accumulated gradients of a session that was replaced."""

    sums: Mapping[str, torch.Tensor]  # by the session's names of parameters
    weight: float  # what the sums are divided by
    loss: float  # sum of the parts' losses times their weights

    def add_to(self, session: TrainingSession) -> None:
        """Add them to those that wait in a session.

        Raises:
            DataError: the session trains other parameters.
        """
        waiting = session.accumulated_gradients()
        if waiting.sums.keys() != self.sums.keys():
            raise DataError(
                "Other parameters are trained than in the accumulated steps.",
                expected=", ".join(sorted(self.sums)),
                received=", ".join(sorted(waiting.sums)),
                remedy="call drop_gradients(), and change parameters after apply_gradients()",
            )
        for name, value in waiting.sums.items():
            from_dlpack(value).add_(self.sums[name])
        session.set_accumulated(waiting.weight + self.weight, waiting.loss + self.loss)


def take_gradients(session: TrainingSession, accumulates: bool) -> CarriedGradients:
    """Take the gradients that wait in a session, for the session that replaces it.

    Args:
        session: the session before.
        accumulates: whether the next step adds a part.

    Raises:
        DataError: the next step adds no part.
    """
    if not accumulates:
        raise DataError(
            "step() was called while accumulated gradients wait to be applied.",
            expected="no accumulated gradients",
            received=f"the gradients of {counted(session.accumulated, 'part')}",
            remedy="call apply_gradients() or drop_gradients() first",
        )
    waiting = session.accumulated_gradients()
    sums = {name: from_dlpack(value).clone() for name, value in waiting.sums.items()}
    _steep.TrainingSession.drop_gradients(session)  # not those of other processes
    return CarriedGradients(sums, waiting.weight, waiting.loss)
