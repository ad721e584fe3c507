"""A PyTorch module → ONNX bytes in memory, without its weights.

``torch.export`` comes first: it proves which extents of the inputs may vary. Where it refuses, the
module is traced instead. A trace records one path through Python code; if that code turned
extents or values into Python numbers, the trace holds for these alone. Such an export remembers for
which extents and values it is known to hold, and another trace decides about new ones.

What was exported is kept on disk (cache.py) under what the module computes (fingerprint.py) and
the versions of everything that takes part. An export from there is known to hold for the extents
that it was asked for; new extents ask again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import io
import json
import logging
import re
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import onnx
import torch

from steep import cache
from steep.attributes import changed_by_forward, name_attribute, read_attributes
from steep.errors import ModelError
from steep.exported import Exported, evaluate, sizes
from steep.faithful import faithful
from steep.fingerprint import fingerprint
from steep.quiet import quiet
from steep.stops import TRANSLATIONS, mark_stops
from steep.structure import Keyed, Leaf, Sequence, Structure, flatten, tensor_paths, unflatten

log = logging.getLogger("steep")

_PREFIX = "module."
_SAMPLE_VARIANCE = "steep.sample_variance"
_TRACING_OPSET = 17
_NORMS = (torch.nn.modules.batchnorm._BatchNorm, torch.nn.modules.instancenorm._InstanceNorm)


@dataclasses.dataclass
class _Seen:
    """What a run of the module told."""

    results: Structure
    kept: list[str]  # attributes that hold another tensor or object afterwards
    decisive: set[int]  # the arguments that a trace turned into Python values


class _Flat(torch.nn.Module):
    """Takes and returns flat tensors; ``record`` receives what else a run of it tells."""

    def __init__(
        self, module: torch.nn.Module, structure: Structure, record: Callable[[_Seen], None]
    ) -> None:
        super().__init__()
        self.module = module
        self.training = module.training  # but let submodules keep theirs
        self.structure = structure
        self.record = record

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        args, kwargs = unflatten(self.structure, list(tensors))
        before = read_attributes(self.module)
        with faithful(tensors) as watch:
            results = self.module(*args, **kwargs)
        kept = changed_by_forward(before, read_attributes(self.module))
        flat, structure = flatten(results, results=True)
        watch.written.check(flat)
        for i, tensor in enumerate(flat):
            if tensor.is_complex():
                raise RuntimeError(f"result {i} is complex, which ONNX has no type for")
        names = [name_attribute(self.module, *where) for where in kept]
        self.record(_Seen(structure, names, watch.decisive))
        return tuple(flat)


def export(
    module: torch.nn.Module,
    structure: Structure,
    tensors: list[torch.Tensor],
    *,
    exporter: str | None = None,
    opset: int | None = None,
) -> Exported:
    """Export a module for a call of this structure (of ``(args, kwargs)``).

    ``exporter`` is "torch.export", "tracing" or None for the first that works. Raises ModelError
    with the reasons of both.
    """
    start = time.perf_counter()
    seen: list[_Seen] = []

    def record(run: _Seen) -> None:  # a function, since the exporters copy or undo objects
        seen.append(run)

    _refuse_backward_hooks(module)
    flat = _Flat(module, structure, record)
    names = _input_names(module, structure)
    examples = [t.detach() for t in tensors]
    key = _key(flat, names, examples, exporter, opset)
    if key and (kept := _from_cache(flat, key, names, examples)):
        kept.results = seen[-1].results
        kept.seconds = time.perf_counter() - start
        log.info(
            "took %s from the cache in %.2f s; %s had exported it (%s)",
            type(module).__name__,
            kept.seconds,
            kept.exporter,
            key[:12],
        )
        return kept
    reasons = []
    for name, run in (("torch.export", _torch_export), ("tracing", _trace)):
        if exporter not in (None, "torch.onnx", name):
            continue
        start = time.perf_counter()
        try:
            with quiet(), _unobserved():
                exported = run(flat, names, examples, opset)
                if seen[-1].kept and name == "tracing":  # a cache may have been filled, for good
                    exported = run(flat, names, examples, opset)
            if seen[-1].kept:
                raise RuntimeError(f"forward keeps {seen[-1].kept[0]} from one call to the next")
            if seen[-1].decisive:
                exported.path_dependent, exported.decisive = True, seen[-1].decisive
            exported.keep_values(tensors)
        except Exception as e:  # the exporters raise whatever went wrong inside them
            reasons.append(f"{name}: {_first_line(e)}")
            last = e
            continue
        exported.results = seen[-1].results
        exported.reason = "; ".join(reasons)
        exported.seconds = time.perf_counter() - start
        note = f" ({exported.reason})" if reasons else ""
        log.info(
            "exported %s by %s in %.1f s%s", type(module).__name__, name, exported.seconds, note
        )
        # A module that computes something else each time has no place in the cache.
        same = key and _key(flat, names, examples, exporter, opset) == key
        if key and same and not exported.path_dependent:
            cache.store(key, _to_bytes(exported))
        return exported
    raise ModelError(
        f"The module {type(module).__name__} could not be exported to ONNX.",
        received="; ".join(reasons),
        remedy='change the code named above, or opt in to PyTorch with fallback="torch"',
    ) from last


def _refuse_backward_hooks(module: torch.nn.Module) -> None:
    for name, part in module.named_modules():
        if part._backward_hooks or part._backward_pre_hooks:
            raise ModelError(
                "A hook on the backward of a module would not run: it is within the graph.",
                node=name or type(module).__name__,
                remedy="remove it, or hook the tensors that enter or leave the wrapped module",
            )


@contextlib.contextmanager
def _unobserved() -> Iterator[None]:
    """Within, nobody counts the tensors that autograd saves: checkpointing would find too many."""
    hooks = []
    while (top := torch._C._autograd._top_saved_tensors_default_hooks(True)) is not None:
        hooks.append(top)
        torch._C._autograd._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        for pack, unpack in reversed(hooks):
            torch._C._autograd._push_saved_tensors_default_hooks(pack, unpack)


# --- the cache -----------------------------------------------------------------------------------


def _key(
    flat: _Flat,
    names: list[str],
    tensors: list[torch.Tensor],
    exporter: str | None,
    opset: int | None,
) -> str | None:
    """Return what names the export in the cache; None when the cache is off, or must stay out."""
    if cache.folder() is None:
        return None
    try:
        with quiet():
            digest = fingerprint(flat, tensors, exporting=exporter != "tracing")
        settings = (cache.versions(*_SOURCES), flat.training, names, exporter, opset)
        digest.update(repr(settings).encode())
    except Exception as e:  # whatever the module raises; the export says it again if it matters
        log.info("no use for the cache: %s", _first_line(e))
        return None
    return digest.hexdigest()


_SOURCES = (
    "attributes.py",
    "export.py",
    "exported.py",
    "faithful.py",
    "fingerprint.py",
    "quiet.py",
    "restated.py",
    "stops.py",
    "translations.py",
)
_KEPT = (
    *("inputs", "names", "states", "statistics", "counters"),
    *("exporter", "reason", "training", "extents"),
)


def _to_bytes(exported: Exported) -> bytes:
    kept = {field: getattr(exported, field) for field in _KEPT}
    return json.dumps(kept).encode() + b"\n" + exported.model


def _from_cache(
    flat: _Flat, key: str, names: list[str], tensors: list[torch.Tensor]
) -> Exported | None:
    content = cache.load(key)
    if content is None:
        return None
    head, _, model = content.partition(b"\n")
    known: dict[str, Any] = {
        "model": model,
        "results": Leaf(),
        "seconds": 0.0,
        "confined": {sizes(tensors)},
    }
    try:
        kept = Exported(**known, **json.loads(head))
        graph = onnx.load_from_string(model).graph
        held = {_state(n) for n in (*_names(flat.named_parameters), *_names(flat.named_buffers))}
        if not (
            [names[i] for i in kept.inputs] == kept.names
            and kept.names == [i.name for i in graph.input if i.name not in kept.states]
            and held.issuperset([*kept.states.values(), *kept.statistics, *kept.counters])
            and [len(extents) for extents in kept.extents] == [t.ndim for t in tensors]
        ):
            raise ValueError("it is not of this module")
    except Exception as e:  # bytes may be anything, under the right digest too
        log.warning("ignoring what is no export in the cache: %s (%s)", key, _first_line(e))
        return None
    return kept


# --- the exporters -------------------------------------------------------------------------------


def _torch_export(
    flat: _Flat, names: list[str], tensors: list[torch.Tensor], opset: int | None
) -> Exported:
    # Found at the end too, seconds later; but most modules that train statistics say so.
    if (buffer := _trained_statistic(flat)) is not None:
        raise RuntimeError(f"forward writes the buffer {buffer}")
    auto = torch.export.Dim.AUTO
    shapes = tuple({axis: auto for axis in range(t.ndim)} for t in tensors)
    # Capturing here, once, keeps torch.onnx from trying its slower ways too: tracing comes next.
    with contextlib.redirect_stderr(io.StringIO()):  # the graph so far, where it gives up
        captured = torch.export.export(
            flat, tuple(tensors), dynamic_shapes={"tensors": shapes}, strict=False
        )
    with torch.no_grad():  # what is captured says all; attention is taken apart otherwise
        program = torch.onnx.export(
            captured,
            (),
            dynamo=True,
            custom_translation_table=TRANSLATIONS,
            input_names=names,
            opset_version=opset,
            optimize=False,
            verbose=False,
        )
    assert program is not None and program.exported_program is not None
    written = program.exported_program.graph_signature.buffers_to_mutate
    if written:
        raise RuntimeError(f"forward writes the buffer {_state(next(iter(written.values())))}")
    graph: Any = program.model.graph
    extents = [
        [e if isinstance(e, int) else _extent(str(e.value)) for e in value.shape]
        for value in graph.inputs
    ]
    held = {*_names(flat.named_parameters), *_names(flat.named_buffers)}
    for name in list(graph.initializers):
        if (
            name in held
        ):  # becomes an input, so that no byte of it is copied; the rest are constants
            value = graph.initializers.pop(name)
            value.const_value = None
            graph.inputs.append(value)
    return _exported(flat, program.model_proto, names, extents, "torch.export")


def _extent(text: str) -> int | str:
    """Return what torch.onnx calls an extent: a symbol, or the number that it found it to be."""
    if text.isdecimal():
        return int(text)
    if (
        evaluate(text, dict.fromkeys(re.findall(r"[A-Za-z_]\w*", text), 1)) is None
    ):  # accepts() could not compare
        raise RuntimeError(f"an extent of the inputs is bound to be {text}")
    return text


def _trained_statistic(flat: _Flat) -> str | None:
    """Return the name of a buffer that a normalisation in training writes, if there is one."""
    for name, part in flat.module.named_modules():
        if isinstance(part, _NORMS) and part.training and part.running_mean is not None:
            return f"{name}.running_mean" if name else "running_mean"
    return None


def _trace(
    flat: _Flat, names: list[str], tensors: list[torch.Tensor], opset: int | None
) -> Exported:
    for name, part in flat.module.named_modules():
        if isinstance(part, _NORMS) and part.training and part.momentum is None:
            raise RuntimeError(f"{name}.momentum is None: its average counts calls")
    file = io.BytesIO()
    buffers = dict(flat.module.named_buffers())
    before = {name: b.clone() for name, b in buffers.items()}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.onnx.export(
            flat,
            tuple(tensors),
            file,  # type: ignore[arg-type]
            dynamo=False,
            export_params=False,
            training=torch.onnx.TrainingMode.PRESERVE,
            do_constant_folding=False,
            opset_version=opset or _TRACING_OPSET,
            input_names=names,
            dynamic_axes={
                n: dict(enumerate(_axes(n, t))) for n, t in zip(names, tensors, strict=True)
            },
        )
    written = [name for name, b in buffers.items() if not torch.equal(b, before[name])]
    for name in written:  # the trace ran the module
        buffers[name].copy_(before[name])
    model = onnx.load_from_string(file.getvalue())
    mark_stops(model.graph)
    statistics = _running_statistics(model, written)
    counters = [name for name in written if name.endswith("num_batches_tracked")]
    for name in written:
        if name not in (*statistics, *counters):
            raise RuntimeError(f"forward writes the buffer {name}")
    decisions = [w for w in caught if issubclass(w.category, torch.jit.TracerWarning)]
    path_dependent = bool(decisions)
    if path_dependent:
        places = sorted({f"{w.filename}:{w.lineno}" for w in decisions})
        log.warning("the trace holds for one outcome of the decisions at %s", ", ".join(places))
    extents: list[list[int | str]] = [
        list(t.shape) if path_dependent else list(_axes(n, t))
        for n, t in zip(names, tensors, strict=True)
    ]
    exported = _exported(flat, model, names, extents, "tracing")
    exported.statistics, exported.counters = statistics, counters
    if path_dependent:
        exported.path_dependent = True
    return exported


def _running_statistics(model: onnx.ModelProto, written: list[str]) -> list[str]:
    """Make the statistics that training normalisations keep outputs; return the buffers' names."""
    made: dict[str, str] = {}
    twice = set()
    for node in model.graph.node:
        if node.op_type != "BatchNormalization" or len(node.output) < 3:
            continue
        node.metadata_props.add(key=_SAMPLE_VARIANCE)  # PyTorch's definition; ONNX has another
        for source, result in zip(node.input[3:5], node.output[1:3], strict=True):
            buffer = _state(source)
            if made.setdefault(buffer, result) != result:
                twice.add(buffer)  # the exporter loses what the first call wrote
    statistics = [name for name in written if name in made and name not in twice]
    for name in statistics:
        model.graph.output.append(
            onnx.helper.make_tensor_value_info(made[name], onnx.TensorProto.FLOAT, None)
        )
    return statistics


def _exported(
    flat: _Flat,
    model: onnx.ModelProto,
    names: list[str],
    extents: list[list[int | str]],
    exporter: str,
) -> Exported:
    inputs, states = [], {}
    for value in model.graph.input:
        if value.name in names:
            inputs.append(names.index(value.name))
        else:
            states[value.name] = _state(value.name)
    return Exported(
        model=model.SerializeToString(),
        inputs=inputs,
        names=[names[i] for i in inputs],
        states=states,
        results=Leaf(),
        exporter=exporter,
        reason="",
        seconds=0,
        training=flat.training,
        extents=extents,
    )


def _names(tensors: Callable[..., Any]) -> list[str]:
    return [name for name, _ in tensors(remove_duplicate=False)]


def _state(name: str) -> str:
    return name.removeprefix(_PREFIX)


def _axes(name: str, tensor: torch.Tensor) -> list[str]:
    return [f"{name}.{axis}" for axis in range(tensor.ndim)]


def _input_names(module: torch.nn.Module, structure: Structure) -> list[str]:
    """Name tensors after the parameters of ``forward``."""
    assert isinstance(structure, Sequence)
    args, kwargs = structure.items
    assert isinstance(args, Sequence) and isinstance(kwargs, Keyed)
    items = (*args.items, *kwargs.items)
    # bound are positions, not values: each finds the name that it is known by
    keywords = {k: len(args.items) + i for i, k in enumerate(kwargs.keys)}
    try:
        bound = inspect.signature(module.forward).bind(*range(len(args.items)), **keywords)
    except TypeError as e:
        raise TypeError(f"{type(module).__name__}.forward(): {e}") from None
    names = [""] * len(items)
    for name, value in bound.arguments.items():
        if isinstance(value, tuple):
            for i, position in enumerate(value):
                names[position] = f"{name}.{i}"
        elif isinstance(value, dict):
            for key, position in value.items():
                names[position] = key
        else:
            names[value] = name
    return [p for name, item in zip(names, items, strict=True) for p in tensor_paths(item, name)]


def _first_line(e: BaseException) -> str:
    text = str(e.__cause__ or e).strip()
    return f"{type(e.__cause__ or e).__name__}: {text.splitlines()[0] if text else ''}"[:300]
