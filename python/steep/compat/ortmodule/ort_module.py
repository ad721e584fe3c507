"""``ORTModule`` with the interface of ONNX Runtime Training."""

from __future__ import annotations

import logging
import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch

from steep.compat.ortmodule import environment, memory_optimizer
from steep.compat.ortmodule.debug_options import DebugOptions
from steep.compat.ortmodule.fallback import DEFAULT, _FallbackPolicy
from steep.compat.ortmodule.graph_files import GraphFiles, memory_line, stage_table
from steep.compat.ortmodule.graph_optimizers import optimizers_of
from steep.compat.ortmodule.json_config import load_from_json
from steep.errors import Error, ModelError
from steep.module import ort_module as ours
from steep.onnx_graph.rewrite_hook import Rewrite, rewriting
from steep.patching.torch_versions import require_tested

require_tested()  # it needs more than PyTorch's public interfaces

log = logging.getLogger("steep")

ONNX_OPSET_VERSION = 17
MINIMUM_RUNTIME_PYTORCH_VERSION_STR = "2.13"  # the oldest release that the tests have run with
ORTMODULE_FALLBACK_POLICY = DEFAULT
ORTMODULE_FALLBACK_RETRY = False
ORTMODULE_IS_DETERMINISTIC = torch.are_deterministic_algorithms_enabled()
ORTMODULE_TORCH_CPP_DIR = ""  # nothing is compiled


class ORTModule(ours.ORTModule):
    """Runs a module's forward and backward in the engine; see ``steep.ORTModule``.

    PyTorch runs the parts that the engine cannot run. If that fails too, PyTorch runs the whole
    call and all later calls, with a warning, as ONNX Runtime's guide says.
    ORTMODULE_FALLBACK_POLICY sets which failures allow this. With "FALLBACK_DISABLE", the module
    must be one graph that runs in the engine; otherwise a call raises an error. With
    ORTMODULE_FALLBACK_RETRY=1 each call tries the engine again.

    Args:
        module: as for ``steep.ORTModule``.
        debug_options: a ``DebugOptions``.

    Raises:
        ModelError: the module is a DataParallel or similar, and the policy allows no fallback; with
            one, PyTorch runs it. When called, as ``steep.ORTModule``, for failures for which the
            policy allows no fallback.
        DataError: an environment variable has an invalid value.
    """

    _MADE = ours.ORTModule._MADE | {
        "_steep_debug_options",
        "_steep_files",
        "_steep_gave_up",
        "_steep_policy",
        "_steep_print_memory",
        "_steep_retry",
        "_steep_told_graphs",
    }

    def __init__(self, module: torch.nn.Module, debug_options: DebugOptions | None = None) -> None:
        environment.say_what_has_no_meaning()
        environment.apply_cache_dir()
        own = self.__dict__
        own["_steep_gave_up"] = False
        super().__init__(module, fallback="parts", memory_limit=memory_optimizer.memory_limit())
        own["_steep_retry"] = environment.switch("FALLBACK_RETRY")
        own["_steep_told_graphs"] = weakref.WeakSet()
        own["_steep_print_memory"] = environment.switch("PRINT_MEMORY_STATS")
        self.set_fallback_policy(environment.fallback_policy())
        self.set_debug_options(debug_options)
        path = environment.text("JSON_CONFIG_PATH")
        if path:
            load_from_json(self, path)

    def _refuse_what_belongs_around(self, module: torch.nn.Module) -> None:
        try:
            super()._refuse_what_belongs_around(module)
        except ModelError as e:
            if not environment.fallback_policy().allows(e):
                raise
            self.__dict__["_steep_gave_up"] = True
            log.warning("running in PyTorch instead: %s", e)

    def set_fallback_policy(self, policy: _FallbackPolicy) -> None:
        """Set for which failures of the engine PyTorch may run a call, from the next call on."""
        self.__dict__["_steep_policy"] = policy
        self.__dict__["fallback"] = None if policy.is_disabled() else "parts"

    def set_debug_options(self, options: DebugOptions | None) -> None:
        """Set the log level and which files are written; None: use the environment variables."""
        if options is not None:
            options.apply_level()
        elif environment.log_level() is not None:
            DebugOptions().apply_level()
        saves_files = options is not None and options.save_onnx
        self.__dict__["_steep_debug_options"] = options
        self.__dict__["_steep_files"] = (
            GraphFiles(options.folder, options.onnx_prefix or type(self._steep_module).__name__)
            if saves_files and options is not None
            else None
        )

    def forward(self, *args: object, **kwargs: object) -> Any:
        """Run the wrapped module's ``forward``."""
        if torch.compiler.is_dynamo_compiling():
            return super().forward(*args, **kwargs)
        if self._steep_gave_up or self._steep_policy.forces_torch:
            with ours._counting:
                self.__dict__["fallback_calls"] += 1
            return self._steep_module(*args, **kwargs)
        before = len(self._steep_reports)
        rewrite = Rewrite(optimizers_of(type(self._steep_module).__name__))
        try:
            with rewriting(rewrite):
                result = super().forward(*args, **kwargs)
        except Error as e:
            self._raise_of(rewrite)
            if not self._steep_policy.allows(e):
                raise
            self.__dict__["_steep_gave_up"] = not self._steep_retry
            return self._run_in_torch(e, args, kwargs)
        self._raise_of(rewrite)
        if len(self._steep_reports) > before:
            self._say_and_write()
        elif self._steep_files is not None:  # evaluation mode may have the graph of training mode
            self._steep_files.write_of_mode(self._graphs(), self._steep_module.training)
        return result

    def _raise_of(self, rewrite: Rewrite) -> None:
        """Raise the error of a rewrite, and drop graphs that PyTorch would run instead."""
        if rewrite.error is not None:
            self._steep_captured.clear()
            raise rewrite.error

    def _say_and_write(self) -> None:
        """Log and write the new graphs as configured."""
        graphs = [p for c in self._steep_captured.values() for p in c.graphs]
        if log.isEnabledFor(logging.INFO):
            log.info("%s", self.report())
            for graph in graphs:
                if graph not in self._steep_told_graphs:
                    self._steep_told_graphs.add(graph)
                    log.info("%s", stage_table(graph))
        if self._steep_files is not None:
            self._steep_files.write(graphs, self._steep_module.training)
        if self._steep_print_memory:
            print(memory_line(graphs), file=sys.stderr)

    def _how_made(self) -> tuple[Callable[..., ORTModule], tuple[Any, ...]]:
        return ORTModule, (self._steep_module, self._steep_debug_options)


class HierarchicalORTModule(ORTModule):
    """Runs the largest possible parts of a module in the engine, and the rest in PyTorch.

    ``ORTModule`` does the same; this class does it regardless of the fallback policy.

    Args:
        module, debug_options: as for ``ORTModule``.
    """

    def __init__(self, module: torch.nn.Module, debug_options: DebugOptions | None = None) -> None:
        super().__init__(module, debug_options)
        self.__dict__["fallback"] = "parts"

    def _how_made(self) -> tuple[Callable[..., ORTModule], tuple[Any, ...]]:
        return HierarchicalORTModule, (self._steep_module, self._steep_debug_options)
