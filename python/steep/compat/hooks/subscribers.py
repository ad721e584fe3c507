"""Subscribers that get the outputs of a model's submodules, and their gradients, at each step."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch.utils.hooks import RemovableHandle

from steep.compat.notices import say_once
from steep.errors import DataError
from steep.torch_internals.pytree import tree_leaves


class SubscriberBase:
    """Receives activations and their gradients in the steps [start_step, end_step).

    Subclasses override ``activation`` and ``gradient``.
    """

    def __init__(self, start_step: int | None = None, end_step: int | None = None) -> None:
        self.start_step = 0 if start_step is None else start_step
        self.end_step = end_step

    def wants(self, step: int) -> bool:
        """Return whether a step is in this range."""
        return self.start_step <= step and (self.end_step is None or step < self.end_step)

    def activation(self, name: str, step: int, tensor: torch.Tensor) -> None:
        """Receive a detached activation; ``name`` names the submodule's output."""

    def gradient(self, name: str, step: int, tensor: torch.Tensor) -> None:
        """Receive the gradient of an activation."""


class StatisticsSubscriber(SubscriberBase):
    """Writes statistics of activations and gradients, for comparing two runs.

    ``step_N/order.txt`` lists names in their order; ``step_N/CLASS_I_Kth_output_forward``, and
    ``…_backward``, have the statistics of one tensor: the K-th output of the I-th submodule.

    Args:
        output_dir: a new folder.
        start_step, end_step: as for ``SubscriberBase``.
        override_output_dir: write into an existing folder.
        run_on_cpu, bucket_size: accepted for compatibility; they are for GPUs.

    Raises:
        FileExistsError: the folder exists.
    """

    def __init__(  # noqa: PLR0917 (ONNX Runtime's order)
        self,
        output_dir: str,
        start_step: int | None = None,
        end_step: int | None = None,
        override_output_dir: bool = False,
        run_on_cpu: bool = False,
        bucket_size: int = 2**29,
    ) -> None:
        super().__init__(start_step, end_step)
        self._folder = Path(output_dir)
        self._folder.mkdir(parents=True, exist_ok=override_output_dir)

    def activation(self, name: str, step: int, tensor: torch.Tensor) -> None:
        """See ``SubscriberBase``."""
        self._write(f"{name}_forward", step, tensor)

    def gradient(self, name: str, step: int, tensor: torch.Tensor) -> None:
        """See ``SubscriberBase``."""
        self._write(f"{name}_backward", step, tensor)

    def _write(self, name: str, step: int, tensor: torch.Tensor) -> None:
        folder = self._folder / f"step_{step}"
        folder.mkdir(exist_ok=True)
        with (folder / "order.txt").open("a") as order:
            order.write(f"{name}\n")
        values = tensor.detach().double()
        numbers = {
            "shape": list(tensor.shape),
            "min": values.min().item() if values.numel() else None,
            "max": values.max().item() if values.numel() else None,
            "mean": values.mean().item(),
            "std": values.std(correction=0).item(),
            "nan": int(values.isnan().sum()),
            "inf": int(values.isinf().sum()),
            "zero": int((values == 0).sum()),
        }
        text = "".join(f"{key}: {value}\n" for key, value in numbers.items())
        (folder / name).write_text(text)


@dataclasses.dataclass
class GlobalStates:
    """State of a run: ``execution_step``, the number of completed forwards of the model."""

    execution_step: int = 0


@dataclasses.dataclass
class RunContext:
    """The result of ``SubscriberManager.get_run_context``."""

    global_states: GlobalStates


class SubscriberManager:
    """Passes the outputs of every submodule to subscribers. A step ends with the model's forward.

    PyTorch runs the watched submodules one by one, and the engine only the code between their
    hooks: use it to inspect a model; it is slow.
    """

    def __init__(self) -> None:
        self._subscribers: list[SubscriberBase] = []
        self._context = RunContext(GlobalStates())
        self._handles: list[RemovableHandle] = []

    def get_run_context(self) -> RunContext:
        """Return the state of the run; it changes with later steps."""
        return self._context

    def subscribe(self, module: torch.nn.Module, subscribers: Sequence[SubscriberBase]) -> None:
        """Pass the activations of a model, an ORTModule or not, to subscribers from now on.

        The model and the subscribers replace those of an earlier call; steps count from 0 again.

        Raises:
            DataError: one is no ``SubscriberBase``; the earlier ones stay.
        """
        for subscriber in subscribers:
            if not isinstance(subscriber, SubscriberBase):
                raise DataError(
                    "The object is not a subscriber.",
                    expected="a SubscriberBase",
                    received=type(subscriber).__name__,
                )
        for handle in self._handles:
            handle.remove()
        self._subscribers = list(subscribers)
        self._context = RunContext(GlobalStates())
        self._handles = [
            # for an ORTModule, the name of the wrapped module's class
            part.register_forward_hook(self._hook(f"{part.__class__.__name__}_{index}"))
            for index, part in enumerate(module.modules())
        ]
        self._handles.append(module.register_forward_hook(self._end))

    def get_subscriber(self, kind: type[SubscriberBase]) -> SubscriberBase:
        """Return the subscriber of this class. Raises DataError if there is none."""
        for subscriber in self._subscribers:
            if isinstance(subscriber, kind):
                return subscriber
        raise DataError("There is no such subscriber.", received=kind.__name__)

    def tell(self, name: str, tensor: torch.Tensor) -> None:
        """Pass a tensor to the subscribers, and later its gradient."""
        step = self._context.global_states.execution_step
        for subscriber in self._subscribers:
            if not subscriber.wants(step):
                continue
            subscriber.activation(name, step, tensor.detach())
            if tensor.requires_grad:
                tensor.register_hook(_gradient_hook(subscriber, name, step))

    def _hook(self, name: str) -> Callable[[torch.nn.Module, object, object], None]:
        @torch.compiler.disable  # type: ignore[untyped-decorator]
        def hook(_: torch.nn.Module, __: object, result: object) -> None:
            tensors = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor)]
            for k, tensor in enumerate(t for t in tensors if t.is_floating_point()):
                self.tell(f"{name}_{k}th_output", tensor)

        apart: Callable[[torch.nn.Module, object, object], None] = hook
        return apart

    def _end(self, _: torch.nn.Module, __: object, ___: object) -> None:
        self._context.global_states.execution_step += 1


def _gradient_hook(
    subscriber: SubscriberBase, name: str, step: int
) -> Callable[[torch.Tensor], None]:
    def hook(gradient: torch.Tensor) -> None:
        subscriber.gradient(name, step, gradient.detach())

    return hook


GlobalSubscriberManager = SubscriberManager()


def inspect_activation(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Pass a tensor in ``forward`` to the global manager's subscribers; return it."""
    _inspect(name, tensor)
    return tensor


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _inspect(name: str, tensor: torch.Tensor) -> None:
    GlobalSubscriberManager.tell(name, tensor)


def configure_ort_compatible_zero_stage3(
    debug: bool = False, stats_output_dir: str = "./", stats_overwrite: bool = False
) -> None:
    """Do nothing but log once: an ORTModule works within DeepSpeed's ZeRO 3 without changes."""
    say_once("configure_ort_compatible_zero_stage3", _GATHERED)


_GATHERED = "ORTModule reads parameters where they are at each call, gathered or not"
