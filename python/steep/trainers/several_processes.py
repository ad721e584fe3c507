"""A trainer's part of a training in several processes, and the facts that it compares."""

from __future__ import annotations

import contextlib
import functools
import logging
import re
import weakref
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from steep import _steep, extension
from steep.errors import DataError, ModelError, ProviderError
from steep.parallel.ranks import Ranks
from steep.session.processes import require_whole

if TYPE_CHECKING:
    import onnx

    from steep.trainers.loss_module import WithLoss

log = logging.getLogger("steep")

_ADDRESS = re.compile(r"0x[0-9a-f]+")
# operators after a loss that do not change its reduction
_MOVES = ("Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze")
# Losses that are means over all elements of the label: extents of a row may differ between
# processes.
_OVER_ELEMENTS = (
    *(torch.nn.MSELoss, torch.nn.L1Loss, torch.nn.SmoothL1Loss, torch.nn.HuberLoss),
    *(torch.nn.BCELoss, torch.nn.BCEWithLogitsLoss, torch.nn.CrossEntropyLoss, torch.nn.NLLLoss),
)


class TrainerRanks(Ranks):
    """The processes of a trainer, which makes its sessions from a module, and replaces them.

    Attributes:
        facts: what must be the same everywhere, by name.
        others: tensors outside of the session, which start with rank 0's values.
        settings: settings of the next step's update, which must be the same everywhere.
        count_and_form: for the next step, the number of elements in the mean and the shape of a row
            as text.
    """

    def __init__(self, way: str, zero: int, full_checkpoints: bool, wire_precision: str) -> None:
        """Join the processes.

        Raises:
            ProviderError: ``way`` is not "torch"; or no launcher started this process, or the
                others cannot be reached.
        """
        if way != "torch":
            raise ProviderError(
                "The value of `parallel` is not supported.",
                node="parallel",
                expected='"torch", for the processes of torch.distributed',
                received=repr(way),
                remedy='"gloo" and "mpi" are for steep.TrainingSession',
            )
        if zero not in (0, 1, 2):
            raise ModelError(
                "States cannot be divided in this way.",
                node="zero",
                expected="0; 1: each process keeps the moments of its share of the parameters; or "
                "2: the sums of gradients, too",
                received=repr(zero),
            )
        super().__init__(way, int(zero), full_checkpoints, wire_precision)
        self.facts: dict[str, str] = {}
        self.others: list[torch.Tensor] = []
        self.settings = ""
        self.count_and_form = (0.0, "")
        self._session: Callable[[], _steep.TrainingSession | None] = lambda: None
        self._divided = not self._zero

    def describe(self, session: _steep.TrainingSession, _: str | bytes) -> None:
        """Go on with a new session; ``facts`` and ``others`` are those of its graph."""
        if not hasattr(self, "_engine"):
            self._engine = _steep.DataParallel(session, self._peers, {}, 0, self._wire_precision)
        copy = functools.partial(_copy_from_first, self.others)
        self._engine.move_to(session, self.facts, copy)
        self._session = weakref.ref(session)
        if not self._divided:  # in the first session of all processes
            self._engine.divide(self._zero)
            self._divided = True

    @property
    def accumulated(self) -> int:
        """As ``Ranks.accumulated``: 0 before the first session, and where all dropped the parts."""
        return self._engine.accumulated if hasattr(self, "_engine") else 0

    @property
    def divides_gradients(self) -> bool:
        """Whether adding a part of a step is a call of all, and its error drops the parts."""
        return self._zero == 2 and self.size > 1

    def moments_of_all(self, session: _steep.TrainingSession) -> dict[str, _steep.Tensor] | None:
        """With ``zero``: return moments, on rank 0 those of all processes, which all call this.

        Elsewhere those that this process keeps, and None if they are not divided.
        """
        if not self._zero or self.size == 1:
            return None
        with self._lock:
            every = self._engine_of(session).optimizer_state()
        return every if self.rank == 0 else None

    def note_loaded(self, state: Mapping[str, torch.Tensor]) -> None:
        """Compare what was loaded at the next step: with ``zero``, each took its share of it."""
        if self._zero:
            checksum = 0
            for name, tensor in sorted(state.items()):
                value = torch.as_tensor(tensor).detach().contiguous().view(-1).view(torch.uint8)
                checksum = zlib.crc32(value.numpy(), zlib.crc32(name.encode(), checksum))
            self._engine.set_loaded(f"{checksum:08x} of {len(state)}")

    def _engine_of(self, session: _steep.TrainingSession) -> _steep.DataParallel:
        if self._session() is not session:  # one was made that the trainer could not use
            self.describe(session, b"")
        self._engine.count(*self.count_and_form)
        self._engine.set_settings(self.settings)
        return self._engine

    @contextlib.contextmanager
    def agree(self, applies: _steep.TrainingSession | None = None) -> Iterator[None]:
        """Tell the other processes of an error in the ``with`` block before the session's step.

        Args:
            applies: the session, if the block applies accumulated gradients. If the block adds a
                part of them, the others learn of an error when they apply; with gradients that are
                divided, at once.
        """
        with self._lock:
            before = self._peers.agreements
            try:
                yield
            except Exception as error:
                if self._peers.agreements == before:
                    if not hasattr(self, "_engine") or not self._engine.opened:
                        self._peers.tell(error)
                    elif applies is not None:
                        self._engine_of(applies).fail(error)
                    elif self.divides_gradients:
                        self._engine.fail(error)
                raise


def join_trainer(
    parallel: str | None, zero: int, full_checkpoints: bool, wire_precision: str
) -> TrainerRanks | None:
    """Return the processes of a trainer, None for one; raise as ``TrainerRanks``.

    Raises:
        ModelError: one process would exchange gradients, or divide moments; or another ``zero``.
    """
    if parallel is None:
        require_whole(zero, wire_precision)
        return None
    return TrainerRanks(parallel, zero, full_checkpoints, wire_precision)


def _copy_from_first(tensors: Sequence[torch.Tensor]) -> None:
    """Replace tensors by those of rank 0."""
    with torch.no_grad():
        for tensor in tensors:
            if tensor.numel() == 0:
                continue
            flat = tensor.detach().contiguous()
            torch.distributed.broadcast(flat.view(-1).view(torch.uint8), src=0)
            if flat.data_ptr() != tensor.data_ptr():
                tensor.copy_(flat)


def describe(
    parallel: TrainerRanks,
    net: WithLoss,
    settings: Mapping[str, Any],
    groups: Sequence[tuple[Sequence[str], Any]],
    in_session: Collection[str],
) -> None:
    """Set the facts that must be the same in all processes.

    Graphs are not compared: those for other extents may differ.

    Args:
        parallel: gets the facts.
        net: model and loss.
        settings: options of the session.
        groups: names of parameters with their settings; the settings are compared at each step.
        in_session: names of the parameters and buffers that the session has.
    """
    tensors = dict(sorted((*net.named_parameters(), *net.named_buffers())))
    others = {name: tensor for name, tensor in tensors.items() if name not in in_session}
    first = not parallel.facts
    parallel.others = list(others.values())
    parallel.facts = {
        "version of steep": extension.VERSION,
        "version of torch": torch.__version__,
        "model": _ADDRESS.sub("0x", f"{net.model}\nloss: {_name_of(net.criterion)}"),
        **{f"option {k}": _option_text(v) for k, v in settings.items() if k != "providers"},
        "parameter groups": str([sorted(names) for names, _ in groups]),
        **{f"tensor {n}": f"{t.dtype} {list(t.shape)}" for n, t in others.items()},
    }
    normalises = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d)
    warns = first and parallel.rank == 0
    if warns and any(isinstance(part, normalises) and part.training for part in net.modules()):
        log.warning(
            "batch normalisation: each process normalises its own rows, and running statistics are "
            "those of rank 0, as with DistributedDataParallel; results differ from those of one "
            "process with all rows"
        )


def count_rows(
    criterion: Callable[..., Any] | None, inputs: Sequence[torch.Tensor]
) -> tuple[float, str]:
    """Return over how many elements this process's loss is the mean, and the shape of a row.

    The count is that of the label's elements; without a criterion, of the first input's rows. The
    shape is text, and "" if it may differ between processes.

    Raises:
        DataError: the count is 0.
    """
    tensors = [t for t in inputs if isinstance(t, torch.Tensor)]
    rows, form = 1, ""
    if criterion is not None and tensors:
        label = tensors[-1]
        rows = label.numel()
        form = "" if isinstance(criterion, _OVER_ELEMENTS) else f"{list(label.shape[1:])}"
    elif tensors and tensors[0].dim() > 0:
        rows = tensors[0].shape[0]
    if rows == 0:
        raise DataError(
            "A process has no rows in this step.",
            expected="a row at least",
            received=f"inputs of {[list(t.shape) for t in tensors]}",
            remedy="give each rank a row, or leave this batch out on all ranks",
        )
    return float(rows), form


def require_mean(model: onnx.ModelProto, loss: str) -> None:
    """Raise ModelError for a loss that is a sum: gradients are averaged over all processes' rows.

    Args:
        model: the captured graph.
        loss: name of its output.
    """
    makers = {name: node for node in model.graph.node for name in node.output}
    node = makers.get(loss)
    while node is not None and node.op_type in _MOVES:
        node = makers.get(node.input[0])
    if node is None:
        return
    reductions = [a.s for a in node.attribute if a.name == "reduction"]
    if node.op_type == "ReduceSum" or b"sum" in reductions:
        raise ModelError(
            "The loss is a sum, and processes that train together need a mean.",
            node=node.name,
            op=node.op_type,
            expected="a mean over rows or elements",
            received="a sum",
            remedy='use reduction="mean", and a learning rate to match',
        )


def _name_of(criterion: Callable[..., Any] | None) -> str:
    if isinstance(criterion, torch.nn.Module):
        return str(criterion)
    return getattr(criterion, "__qualname__", type(criterion).__name__)


def _option_text(value: object) -> str:
    """Return an option as text; equal texts mean equal options."""
    if isinstance(value, _steep.OptimizerOptions):
        names = [name for name in dir(value) if not name.startswith("_")]
        return _option_text({name: getattr(value, name) for name in names})
    if isinstance(value, Mapping):
        return str({str(k): _option_text(v) for k, v in sorted(value.items())})
    if isinstance(value, (list, tuple)):
        return str([_option_text(v) for v in value])
    return repr(value)
