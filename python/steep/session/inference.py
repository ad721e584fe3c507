"""``InferenceSession``: runs an ONNX model, with the interface of ONNX Runtime's Python package."""

from __future__ import annotations

import contextlib
import enum
import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from steep import _steep
from steep.errors import DataError
from steep.inspection import StrPath, make_dump, record_profile
from steep.providers import choices_of
from steep.session.names import names_of
from steep.session.source import ModelProto, source_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

log = logging.getLogger("steep")

_CPU = "CPUExecutionProvider"
_ONNX_NAMES = {"float32": "float", "float64": "double"}
_LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)


def _set_level(level: int | None) -> None:
    if level is None or level == -1:
        return
    if level not in range(len(_LEVELS)):
        raise DataError(
            "The log level is out of range.",
            node="SessionOptions.log_severity_level",
            expected=f"-1 to {len(_LEVELS) - 1}",
            received=repr(level),
            remedy="Use 2 for warnings and errors.",
        )
    log.setLevel(_LEVELS[level])


class GraphOptimizationLevel(enum.IntEnum):
    """How much a session rewrites the graph: not at all, or fully (every other level)."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class SessionOptions:
    """Options of an ``InferenceSession``. Any other name raises AttributeError.

    Attributes:
        intra_op_num_threads: greatest number of threads in a run; 0: the number of OpenMP.
        graph_optimization_level: ``ORT_DISABLE_ALL`` runs the model's operators unchanged.
        enable_profiling: record every kernel; ``end_profiling()`` writes the trace.
        profile_file_prefix: first part of the name of the trace's file.
        log_severity_level: of the logger ``steep``, 0 (all) to 4 (fatal only); None or -1:
            unchanged.
        seed: seed of operators that draw random numbers.
        check_finite: raise DataError at the first node that produces NaN or infinity; slow.
        limits: a ``steep.Limits``: bounds on memory, nodes and loops.
        disabled_passes: rewrites of the graph that are left out, by name (docs/look_inside.md).
    """

    __slots__ = (
        "check_finite",
        "disabled_passes",
        "enable_profiling",
        "graph_optimization_level",
        "intra_op_num_threads",
        "limits",
        "log_severity_level",
        "profile_file_prefix",
        "seed",
    )

    def __init__(self) -> None:
        self.intra_op_num_threads = 0
        self.graph_optimization_level = GraphOptimizationLevel.ORT_ENABLE_ALL
        self.enable_profiling = False
        self.profile_file_prefix = "steep_profile"
        self.log_severity_level: int | None = None
        self.seed = 0
        self.check_finite = False
        self.limits = _steep.Limits()
        self.disabled_passes: Sequence[str] = ()


@dataclass(frozen=True)
class NodeArg:
    """An input or output of a model.

    Attributes:
        name: name of the value.
        type: as ONNX writes it: "tensor(float)", "tensor(int64)".
        shape: the extents: a number, the name of a dynamic extent, or None if it has no name. None
            instead of a list if the rank is unknown.
    """

    name: str
    type: str
    shape: list[int | str | None] | None


class InferenceSession:
    """An ONNX model, compiled for each set of input shapes when it is first used.

    ``run`` takes and returns NumPy arrays. Types that NumPy lacks (bfloat16, types of 8 and 4 bits)
    are those of the package ``ml_dtypes``. It also takes PyTorch tensors and arrays of any library
    with DLPack. Dropout is the identity. Several threads may call ``run``; runs are one after the
    other.

    >>> session = InferenceSession("model.onnx")
    >>> [i.name for i in session.get_inputs()]
    ['x']
    >>> (y,) = session.run(None, {"x": np.ones((8, 4), np.float32)})

    Args:
        model: path of the file, its bytes, or an ``onnx.ModelProto``.
        sess_options: a ``SessionOptions``.
        providers: where to run, in this order; the CPU takes what the others do not. A name, or
            one with options: ``("MirrorExecutionProvider", {"device_id": 0})``. By default the CPU.

    Raises:
        ModelError: the model cannot be read, or has operators that Steep does not know; or a pass
            to be disabled does not exist.
        ProviderError: none of ``providers`` is there.
        DataError: ``log_severity_level`` is not a level.
        IoError: the file cannot be opened.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | bytes | ModelProto,
        sess_options: SessionOptions | None = None,
        providers: Sequence[str | tuple[str, Mapping[str, Any]]] | None = None,
    ) -> None:
        choices = choices_of(providers)
        settings = sess_options or SessionOptions()
        _set_level(settings.log_severity_level)
        options = _steep.InferenceOptions()
        options.optimize = (
            settings.graph_optimization_level != GraphOptimizationLevel.ORT_DISABLE_ALL
        )
        options.disabled_passes = names_of(settings.disabled_passes, "disabled_passes")
        options.threads = settings.intra_op_num_threads
        options.seed = settings.seed
        options.check_finite = settings.check_finite
        options.limits = settings.limits
        options.providers = choices
        self._session = _steep.InferenceSession(source_of(model), options)
        self._options = settings
        self._providers = [c.name for c in choices if c.name != _CPU] + [_CPU]
        self._recording = bool(settings.enable_profiling)
        if self._recording:
            self._session.start_profile()

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, object],
        run_options: object = None,
        *,
        out: Mapping[str, object] | None = None,
    ) -> list[NDArray[Any] | Any]:  # nearly always arrays; a union with lists would be in the way
        """Run the model.

        Args:
            output_names: outputs to compute, in this order; None or empty for all.
            input_feed: an array for each input, by name; a list of arrays for a sequence, None
                for an empty optional.
            run_options: accepted for compatibility; its members have no effect.
            out: arrays by the names of outputs, to which these are copied: writable NumPy arrays
                with any strides, or contiguous tensors of PyTorch or others in CPU memory.

        Returns:
            For each output a NumPy array, a list of arrays (a sequence), or None (an empty
            optional). The arrays own their memory. In their place stand the arrays of ``out``.

        Raises:
            DataError: an input is missing, unknown or not an array, or a value does not fit the
                model's dtype; an output is unknown; an array of ``out`` is not writable, overlaps
                another, or has the name of no output that is computed.
            ShapeError: the rank or an extent of an input differs from the model's, or its dtype
                cannot be converted (docs/training.md). An array of ``out`` has another dtype or
                shape: results are not converted.
            ProviderError: there is no kernel for a node.
            ModelError: an output needs an operator that Steep does not know, or ``output_names``
                is one text.
        """
        wanted = names_of(output_names, "output_names")
        if out is None:
            return self._session.run_data(wanted, dict(input_feed))
        from steep.session.destinations import Destinations, types_of  # they need NumPy

        infos = {i.name: i for i in self._session.output_info()}
        names = wanted or list(infos)
        tensors = [i for n in names if (i := infos.get(n)) and not (i.sequence or i.optional)]
        places = Destinations(out, types_of(tensors))
        results: list[Any] = self._session.run_data(wanted, dict(input_feed))
        places.write({n: r for n, r in zip(names, results, strict=True) if n in out})
        return [out.get(name, result) for name, result in zip(names, results, strict=True)]

    def plan(self, input_feed: Mapping[str, object]) -> _steep.StepPlan:
        """Return the memory and the kernels of a run of all outputs for these input shapes.

        All numbers are zero if shapes depend on data: such a graph is planned while it runs.

        Args:
            input_feed: as for ``run``; only dtypes and shapes are used.

        Raises as ``run``.
        """
        return self._session.plan(dict(input_feed))

    def dump(
        self,
        input_feed: Mapping[str, object],
        *,
        html: StrPath | None = None,
        passes: bool = False,
    ) -> str:
        """Return the text of the graph of all outputs, compiled for these input shapes.

        Args:
            input_feed: as for ``run``; only dtypes and shapes are used.
            html: path of a file; the compiled graph is written to it as a page, with a picture of
                its memory.
            passes: return the graph before the first pass and after each pass that changed it.

        Raises as ``run``, and IoError: the page cannot be written.
        """
        feed = dict(input_feed)
        return make_dump(lambda form: self._session.dump(feed, form), html, passes)

    def profile(self, path: StrPath) -> contextlib.AbstractContextManager[None]:
        """Record every kernel in the ``with`` block; write a trace for ui.perfetto.dev.

        Raises IoError.
        """
        return record_profile(self._session.start_profile, self._session.write_profile, path)

    def get_inputs(self) -> list[NodeArg]:
        """List the inputs that ``run`` requires."""
        return [node_arg(info) for info in self._session.input_info()]

    def get_overridable_initializers(self) -> list[NodeArg]:
        """List the inputs that have a default value; ``run`` may get another value for them."""
        return [node_arg(info) for info in self._session.default_info()]

    def get_outputs(self) -> list[NodeArg]:
        """List the outputs, except those that need operators which Steep does not know."""
        return [node_arg(info) for info in self._session.output_info()]

    def get_providers(self) -> list[str]:
        """Name the providers that this session runs on."""
        return list(self._providers)

    def get_modelmeta(self) -> _steep.ModelMetadata:
        """Return the model's metadata: producer_name, graph_name, version, …"""
        return self._session.metadata

    def get_session_options(self) -> SessionOptions:
        """Return the options that the session was made with."""
        return self._options

    def end_profiling(self) -> str:
        """Write the recorded kernels as a trace for ui.perfetto.dev; return the file's name.

        Raises DataError: nothing was recorded.
        """
        if not self._recording:
            raise DataError(
                "Nothing was recorded.", remedy="Set enable_profiling in the session's options."
            )
        name = f"{self._options.profile_file_prefix}_{time.strftime('%Y-%m-%d_%H-%M-%S')}.json"
        self._session.write_profile(name)
        self._recording = False
        return name


def node_arg(info: _steep.TensorInfo) -> NodeArg:
    """Return a value's description in ONNX Runtime's form."""
    dtype = _ONNX_NAMES.get(info.dtype, info.dtype.replace("_", ""))
    kind = f"tensor({dtype})"
    if info.sequence:
        kind = f"seq({kind})"
    if info.optional:
        kind = f"optional({kind})"
    return NodeArg(info.name, kind, list(info.shape) if info.has_rank else None)
