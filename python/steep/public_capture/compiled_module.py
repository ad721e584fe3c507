"""A module whose calls ``torch.compile`` captures, for ``ORTModule``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import torch

from steep.dynamo import forks
from steep.dynamo.report import GraphReport
from steep.errors import ModelError, ProviderError
from steep.patching.torch_versions import window
from steep.providers import Providers
from steep.public_capture.compile_backend import capture_state, compiled, warn_untested_release

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class CompiledModule:
    """A module whose graphs run in the engine; PyTorch runs what the engine cannot.

    Calls from several threads are safe, and wait for each other; backward passes may run in
    parallel.

    Args:
        module: the module to capture.
        precision: None; ``torch.autocast`` chooses one.
        record: called with a report of each graph.
        whole: whether the engine must run all of it, which is not supported here.
        verify, providers, disabled_passes: as for ``ORTModule``.
        memory_limit: must be "": here forward and backward are separate graphs, and PyTorch keeps
            the values that backward reads.

    Raises:
        ProviderError: a memory limit is given.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        precision: str | None,
        record: Callable[[GraphReport], None],
        *,
        whole: bool,
        verify: bool | None,
        providers: Providers | None,
        disabled_passes: Sequence[str],
        memory_limit: str,
    ) -> None:
        if memory_limit:
            raise ProviderError(
                "memory_limit is not available with this release of PyTorch.",
                expected=window(),
                received=torch.__version__,
                remedy="leave it out, or install a release that the tests have run with",
            )
        warn_untested_release()
        self._module, self._precision, self._whole = module, precision, whole
        self._state = capture_state(verify, providers, disabled_passes)
        self._state.record = record
        self._state.training = lambda: module.training
        self._structure: tuple[int, ...] | None = None
        self._call: Callable[..., Any] | None = None
        self.breaks: list[str] = []  # torch.compile does not report graph breaks

    left_on_purpose = False  # this package leaves no call to PyTorch by design

    @property
    def ran_in_engine(self) -> bool:
        """Whether a part of the module has run in the engine."""
        return self._state.ran_in_engine

    @property
    def graphs(self) -> list[Any]:
        """Raise ModelError: the plans of a graph's parts are not kept."""
        raise ModelError(
            "plan(), dump() and profile() are not available with this release of PyTorch.",
            expected=f"PyTorch {window()}",
            received=f"PyTorch {torch.__version__}",
            remedy="print(model.report())",
        )

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Return the module's result.

        Raises:
            ModelError: an option needs more than public interfaces, or the process was forked while
                another thread was in a call.
            VerificationError: in one of the first steps, a value differs from PyTorch's.
        """
        if self._whole or self._precision is not None:
            raise ModelError(
                "Steep has not been tested with this release of PyTorch.",
                expected=f'PyTorch {window()}, or fallback="parts" and precision=None',
                received=f"PyTorch {torch.__version__}",
                remedy="let PyTorch run what the engine cannot, and choose the precision by "
                "torch.autocast",
            )
        # a forked child has one thread, for which torch.compile captures again
        forks.refuse_to_capture()
        # torch.compile does not guard on all of the structure: capture again if it changed.
        structure = self._read_structure()
        with forks.tracing:  # any call may capture, and no other call may run during a capture
            if self._call is None or structure != self._structure:
                self._structure, self._call = structure, self._compile()
            return self._call(*args, **kwargs)

    def _compile(self) -> Callable[..., Any]:
        module, state = self._module, self._state

        def call(*args: object, **kwargs: object) -> Any:
            return module(*args, **kwargs)

        def run(graph_module: torch.fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
            return compiled(graph_module, examples, state)

        # torch.compile limits the graphs per code object: each module gets a code object of its
        # own.
        own = FunctionType(
            call.__code__.replace(), call.__globals__, "call", None, call.__closure__
        )
        compiled_call: Callable[..., Any] = torch.compile(own, backend=run, dynamic=False)
        return compiled_call

    def _read_structure(self) -> tuple[int, ...]:
        """Return a key that changes with hooks and with tied parameters."""
        ids = [id(p) for _, p in self._module.named_parameters(remove_duplicate=False)]
        for module in self._module.modules():
            for table in _HOOKS:
                ids += map(id, vars(module).get(table, {}).values())
        return tuple(ids)
