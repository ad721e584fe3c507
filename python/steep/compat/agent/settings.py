"""Options of the builders of training graphs."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, ClassVar

from steep.compat.notices import say_once

_PLANNED = "the planner decides what backward computes again, and passes what is fused"


class Severity(enum.IntEnum):
    """Log level. It has no effect: the level of the logger ``steep`` applies."""

    VERBOSE = 0
    INFO = 1
    WARNING = 2
    ERROR = 3
    FATAL = 4


class PropagateCastOpsStrategy(enum.IntEnum):
    """How casts are moved; without effect, since ``precision=`` places casts here."""

    NONE = -1
    INSERT_AND_REDUCE = 0
    FLOOD_FILL = 1


class Settings:
    """Settings by name, each with a default. Other names raise AttributeError.

    If an option without effect is set to another value than its default, a log message says so
    once.
    """

    _defaults: ClassVar[Mapping[str, Any]] = {}
    _idle: ClassVar[frozenset[str]] = frozenset()

    def __init__(self) -> None:
        for name, value in self._defaults.items():
            fresh = type(value)(value) if isinstance(value, (list, set, dict)) else value
            object.__setattr__(self, name, fresh)

    def __setattr__(self, name: str, value: object) -> None:
        if name not in self._defaults:
            names = ", ".join(self._defaults)
            raise AttributeError(f"{type(self).__name__} has no {name!r}, only {names}")
        if name in self._idle and value != self._defaults[name]:
            say_once(f"{type(self).__name__}.{name}", _PLANNED)
        object.__setattr__(self, name, value)


class PropagateCastOpsConfiguration(Settings):
    """Accepted for compatibility: ``precision=`` of a session places casts."""

    _defaults: ClassVar[Mapping[str, Any]] = {
        "level": 1,
        "strategy": PropagateCastOpsStrategy.FLOOD_FILL,
        "allow": [],
    }
    _idle = frozenset(_defaults)

    level: int
    strategy: PropagateCastOpsStrategy
    allow: list[str]


class TrainingGraphTransformerConfiguration(Settings):
    """Accepted for compatibility: the engine's passes need no settings."""

    _defaults: ClassVar[Mapping[str, Any]] = {
        "attn_dropout_recompute": False,
        "gelu_recompute": False,
        "transformer_layer_recompute": False,
        "number_recompute_layers": 0,
        "enable_compute_optimizer": False,
        "enable_gelu_approximation": False,
        "print_input_density": False,
        "optimized_pre_grad_filepath": "",
        "propagate_cast_ops_config": None,
    }
    _idle = frozenset(_defaults) - {"propagate_cast_ops_config"}

    propagate_cast_ops_config: PropagateCastOpsConfiguration

    def __init__(self) -> None:
        super().__init__()
        self.propagate_cast_ops_config = PropagateCastOpsConfiguration()


class OrtModuleGraphBuilderConfiguration(Settings):
    """Options of ``OrtModuleGraphBuilder.initialize``.

    Attributes:
        initializer_names: initializers that become inputs, after the model's own, in this order.
        initializer_names_to_train: initializers that have gradients; these come after those of the
            model's inputs, in this order.
        input_names_require_grad: inputs of the model that have gradients.
        build_gradient_graph: whether ``build`` makes a training graph.
        graph_transformer_config: accepted; ``build`` had no argument up to release 1.12.
        use_memory_efficient_gradient, enable_caching: accepted; they have no effect.
        loglevel: accepted; the level of the logger ``steep`` applies.
    """

    _defaults: ClassVar[Mapping[str, Any]] = {
        "initializer_names": [],
        "initializer_names_to_train": [],
        "input_names_require_grad": [],
        "build_gradient_graph": True,
        "use_memory_efficient_gradient": False,
        "enable_caching": False,
        "loglevel": Severity.WARNING,
        "graph_transformer_config": None,
    }
    _idle = frozenset({"use_memory_efficient_gradient", "enable_caching"})

    initializer_names: list[str]
    initializer_names_to_train: list[str]
    input_names_require_grad: list[str]
    build_gradient_graph: bool
    graph_transformer_config: TrainingGraphTransformerConfiguration

    def __init__(self) -> None:
        super().__init__()
        self.graph_transformer_config = TrainingGraphTransformerConfiguration()


class GradientGraphConfiguration(Settings):
    """Options of ``GradientGraphBuilder``.

    Attributes:
        use_memory_efficient_gradient: accepted; it has no effect.
        set_gradients_as_graph_outputs: whether gradients are outputs of the new model, or inner
            values with their names.
    """

    _defaults: ClassVar[Mapping[str, Any]] = {
        "use_memory_efficient_gradient": False,
        "set_gradients_as_graph_outputs": False,
    }
    _idle = frozenset({"use_memory_efficient_gradient"})

    set_gradients_as_graph_outputs: bool
