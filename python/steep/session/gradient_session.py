"""``GradientSession``: forward and backward of an ONNX model as separate calls."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from steep import _steep
from steep.errors import DataError, counted
from steep.inspection import StrPath, make_dump, record_profile
from steep.providers import Providers, choices_of
from steep.session.memory_limit import limit_text
from steep.session.names import names_of
from steep.session.source import ModelProto, source_of

if TYPE_CHECKING:
    from steep.session.destinations import Destinations

Arrays = Mapping[str, object] | Sequence[object]


class GradientSession(_steep.GradientSession):
    """An ONNX model whose forward and backward are two calls.

    The caller passes the gradients of the outputs, and gets those of inputs and weights. Use it for
    layers, losses and optimizers that are not part of an ONNX file. ``TrainingSession`` runs a
    whole step. Arrays are those of NumPy, PyTorch or any library with DLPack; results are
    ``steep.Tensor``, or arrays of the caller (``out``). Inputs and gradients of outputs of another
    dtype than the model's are converted (docs/training.md).

    >>> session = GradientSession("layer.onnx", wrt=["x", "weight"])
    >>> (y,), run = session.forward({"x": x})
    >>> gradients = session.backward(run, {"y": dy})
    >>> gradients["weight"]

    Any number of runs may wait for their backward; each run has one. A run holds the memory that
    its backward reads, until its backward, or until the last reference to the run is gone. Several
    threads may call; their calls run one after the other.

    Forward runs the model as in training: with dropout, and with the statistics of the batch where
    a normalisation is in training mode. Running statistics do not change; a model that updates them
    returns them as outputs. ``eval`` runs it without dropout.

    Args:
        model: path of the file, its bytes, or an ``onnx.ModelProto``.
        wrt: float inputs and initializers whose gradients ``backward`` returns. The initializers
            among them are the session's weights.
        outputs: outputs that ``forward`` returns, in this order; by default all.
        borrow: copy nothing. Inputs, bound arrays and outputs must then not be written until the
            run's backward, which reads their memory.
        seed: seed of dropout.
        threads: number of threads that compute in the session's calls; 0: the number of OpenMP.
        precision: "fp32", or "bf16" or "fp16" for matrix products.
        memory_limit: the most memory that a forward and its backward may hold, as "2GiB" or a
            number of bytes. Backward recomputes values that do not fit (docs/memory.md). "" for
            none.
        disabled_passes: names of passes that do not run, to find a fault (docs/look_inside.md).
        limits: a ``steep.Limits``: bounds on memory and nodes.
        providers: where to run, as for ``InferenceSession``.

    Raises:
        ModelError: the model is unreadable or has operators that Steep does not know; a name of
            ``wrt`` is no float input or initializer; an output is unknown; none depends on
            ``wrt``; or ``memory_limit`` is not a size.
        IoError: the file cannot be opened.
        OutOfMemoryError: at a call with new shapes: no plan fits ``memory_limit``.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | bytes | ModelProto,
        wrt: Sequence[str],
        *,
        outputs: Sequence[str] | None = None,
        borrow: bool = False,
        seed: int = 0,
        threads: int = 0,
        precision: str = "fp32",
        memory_limit: str | int = "",
        disabled_passes: Sequence[str] = (),
        limits: _steep.Limits | None = None,
        providers: Providers | None = None,
    ) -> None:
        options = _steep.GradientSessionOptions()
        options.wrt, options.outputs = names_of(wrt, "wrt"), names_of(outputs, "outputs")
        options.borrow, options.seed, options.precision = borrow, seed, precision
        options.threads = threads
        options.memory_limit = limit_text(memory_limit)
        options.disabled_passes = names_of(disabled_passes, "disabled_passes")
        if limits is not None:
            options.limits = limits
        options.providers = choices_of(providers)
        super().__init__(source_of(model), options)
        self._inputs = [i.name for i in self.input_info()]
        self._outputs = [o.name for o in self.output_info()]
        self._wrt, self._borrow = list(wrt), borrow

    def forward(
        self, inputs: Arrays, *, out: Mapping[str, object] | None = None
    ) -> tuple[list[_steep.Tensor], _steep.GradientRun]:
        """Run the model, and keep what its backward needs.

        Args:
            inputs: an array for each of ``input_info()``, in order or by name. By name you may also
                give weights, which then replace the session's weights in this run.
            out: arrays by the names of outputs, to which these are also copied: writable NumPy
                arrays with any strides, or contiguous tensors in CPU memory.

        Returns:
            The outputs, in the order of ``output_info()``, and the run for ``backward``.

        Raises:
            DataError: an input is missing, unknown or not an array; a name in ``out`` is unknown,
                or its array is not writable or overlaps another, or, with ``borrow``, an input.
            ShapeError: the rank or an extent of an array differs from the model's, or its dtype
                cannot be converted (docs/training.md). Arrays in ``out`` are not converted.
            ProviderError: there is no kernel for a node.
        """
        places = self._outputs_into(out)
        input_of = _by_name("forward", self._inputs, inputs)
        if places is not None and self._borrow:
            places.require_apart(input_of)
        outputs, run = super().forward(input_of)
        if places is not None:
            places.write(dict(zip(self._outputs, outputs, strict=True)))
        return outputs, run

    def _outputs_into(self, out: Mapping[str, object] | None) -> Destinations | None:
        if out is None:
            return None
        from steep.session.destinations import Destinations, types_of  # they need NumPy

        return Destinations(out, types_of(self.output_info()))

    def eval(
        self, inputs: Arrays, *, out: Mapping[str, object] | None = None
    ) -> list[_steep.Tensor]:
        """Run the model without dropout, only for its outputs.

        Args:
            inputs, out: as for ``forward``.

        Raises:
            ModelError: a normalisation is in training mode; nothing here updates its statistics.
            DataError, ShapeError, ProviderError: as ``forward``.
        """
        places = self._outputs_into(out)
        outputs = super().eval(_by_name("eval", self._inputs, inputs))
        if places is not None:
            places.write(dict(zip(self._outputs, outputs, strict=True)))
        return outputs

    def backward(
        self,
        run: _steep.GradientRun,
        output_gradients: Arrays | None = None,
        *,
        out: object = None,
    ) -> dict[str, _steep.Tensor]:
        """Return gradients of the sum over outputs ``y`` of ``(output_gradients[y] * y).sum()``.

        Args:
            run: a run that ``forward`` returned.
            output_gradients: by the name of the output, or in the order of ``output_info()`` with
                None for an output without a gradient; with the shapes of the outputs. Other dtypes
                are converted, as inputs are. If the model has a single output of one float32
                number, the default is 1.
            out: arrays by the names in ``wrt``, to which these gradients are also copied; or one
                vector of ``weight_count`` elements for those of all weights, in the order of
                ``weight_info()``, as ``flatten`` and ``bind_flat`` have it.

        Returns:
            For each name in ``wrt``, its gradient, with its dtype; zeros if the outputs do not
            depend on it.

        Raises:
            DataError: the run belongs to another session, or had its backward; an output is
                unknown, or does not depend on ``wrt``; there is no gradient, or a number does not
                fit the output's dtype; ``out`` as for ``forward``. You may call again with the run.
            ShapeError: a gradient does not have the shape of its output, or its dtype cannot be
                converted; an array of ``out`` has another dtype or shape. You may call again with
                the run, unless the extent is of an input that the model leaves open.
            ModelError: an operator between ``wrt`` and the outputs has no gradient; all are listed.
        """
        seeds = {} if output_gradients is None else output_gradients
        seed_of = _by_name("backward", self._outputs, seeds)
        places = self._gradients_into(out)
        gradients = super().backward(run, {k: v for k, v in seed_of.items() if v is not None})
        if places is not None:
            places.write(gradients)
        return gradients

    def _gradients_into(self, out: object) -> Destinations | None:
        if out is None:
            return None
        from steep.session.destinations import Destinations, gradient_destinations, types_of

        weights = types_of(self.weight_info())
        if not isinstance(out, Mapping):
            return gradient_destinations(out, weights)
        inputs = [t for t in types_of(self.input_info()) if t.name in self._wrt]
        return Destinations(out, [*weights, *inputs])

    def plan(self, inputs: Arrays) -> _steep.StepPlan:
        """Return the memory and the kernels of a forward and its backward for these input shapes.

        All numbers are zero if shapes depend on data: such a graph is planned while it runs.

        Args:
            inputs: as for ``forward``; only dtypes and shapes are used.

        Raises as ``forward``.
        """
        return super().plan(_by_name("plan", self._inputs, inputs))

    def dump(  # type: ignore[override]
        self, inputs: Arrays, *, html: StrPath | None = None, passes: bool = False
    ) -> str:
        """Return the text of the graph of forward and backward, compiled for these input shapes.

        Args:
            inputs: as for ``forward``; only dtypes and shapes are used.
            html: path of a file; the compiled graph is written to it as a page, with a picture of
                its memory.
            passes: return the graph before the first pass and after each pass that changed it.

        Raises as ``forward``, and IoError: the page cannot be written.
        """
        input_of = _by_name("dump", self._inputs, inputs)
        of_engine = super().dump
        return make_dump(lambda form: of_engine(input_of, form), html, passes)

    def profile(self, path: StrPath) -> contextlib.AbstractContextManager[None]:
        """Record every kernel of ``forward`` and ``backward`` in the ``with`` block.

        At the end, writes a trace for ui.perfetto.dev to the file. Raises IoError.

        >>> with session.profile("layer.json"):
        ...     outputs, run = session.forward({"x": x})
        """
        return record_profile(self.start_profile, self.write_profile, path)


def _by_name(call: str, names: Sequence[str], arrays: Arrays) -> dict[str, object]:
    if isinstance(arrays, Mapping):
        return dict(arrays)
    if isinstance(arrays, (str, bytes)) or not isinstance(arrays, (list, tuple)):
        raise DataError(
            f"{call} takes arrays by name, or a list of them.",
            expected="a mapping or a list",
            received=type(arrays).__name__,
        )
    if len(arrays) != len(names):
        raise DataError(
            f"{call} takes one array for each of its names.",
            expected=", ".join(names),
            received=counted(len(arrays), "array"),
        )
    return dict(zip(names, arrays, strict=True))
