"""A graph of functional ATen operators in ONNX: from the cache, or translated by to_onnx.py.

Models are kept in the cache under a digest of the graph: operators, constants, and constraints of
its symbols.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable

import onnx
import torch
from google.protobuf.message import DecodeError
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from steep.lowering import cache
from steep.lowering.fingerprint import Undetermined, fingerprint

log = logging.getLogger("steep")


@dataclasses.dataclass(frozen=True)
class Translation:
    """A graph in ONNX.

    Attributes:
        model: its inputs are called arg_0, arg_1 … by position.
        cached: whether it came from the cache.
        store: stores it in the cache as it was translated. The caller does so once the engine has
            accepted the model: a stored model that cannot be used would be read by each process.
    """

    model: onnx.ModelProto
    cached: bool
    store: Callable[[], object] = lambda: None


def translate(
    graph_module: torch.fx.GraphModule, env: ShapeEnv | None, *, read_cache: bool = True
) -> Translation:
    """Translate a graph, or read its model from the cache. Changes the graph.

    ``env`` holds the constraints of the extents' symbols, and records new ones. Without
    ``read_cache`` the model is made anew. Raises CannotTranslate, or errors of the exporter.
    """
    knowledge = _knowledge(env)
    key = _key(graph_module, knowledge)
    if key and read_cache and (cached_model := _from_cache(graph_module, key)):
        return Translation(cached_model, cached=True)
    from steep.lowering.to_onnx import to_onnx

    model = to_onnx(graph_module)
    if not key or _knowledge(env) != knowledge:  # a cached model could not add guards
        return Translation(model, cached=False)
    store = functools.partial(cache.store, key, model.SerializeToString())
    return Translation(model, cached=False, store=store)


def _key(graph_module: torch.fx.GraphModule, knowledge: str) -> str | None:
    """Return the key of the model in the cache; None if the cache is off or there is no digest."""
    if cache.folder() is None:
        return None
    try:
        return fingerprint(graph_module, f"{cache.versions()} {knowledge}")
    except Undetermined as e:
        log.info("the cache is not used: %s", e)
        return None


def _from_cache(graph_module: torch.fx.GraphModule, key: str) -> onnx.ModelProto | None:
    content = cache.load(key)
    if content is None:
        return None
    (end,) = (n for n in graph_module.graph.nodes if n.op == "output")
    try:
        model = onnx.load_from_string(content)
        count = sum(n.op == "placeholder" for n in graph_module.graph.nodes)
        names = {value.name for value in model.graph.input}
        if len(model.graph.output) != len(end.args[0]) or not names <= {
            f"arg_{i}" for i in range(count)
        }:
            raise ValueError("its inputs or outputs are not those of the graph")
    # an entry with a valid digest may still contain any bytes
    except (DecodeError, ValueError) as e:
        log.warning("ignoring a cached file that is not a model: %s (%s)", key, e)
        return None
    return model


def _knowledge(env: ShapeEnv | None) -> str:
    """Return all constraints of the extents' symbols as text; they need no further guards."""
    if env is None:
        return ""
    guards = [str(g.expr) for g in env.guards]
    assertions = [str(a.expr) for some in env.deferred_runtime_asserts.values() for a in some]
    return f"{guards} {assertions} {env.replacements} {env.var_to_range}"
