"""A graph ready to run in the engine: forward, backward, and the graph of its gradients."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

import onnx
import torch
from torch.utils.dlpack import from_dlpack, to_dlpack

from steep._steep import (
    ModuleProgram,
    ModuleRun,
    ProviderChoice,
    gradient_model,
    keep_freed_memory,
    return_freed_memory,
)
from steep.errors import DataError, ModelError, counted
from steep.graph.layouts import Layout, laid_out
from steep.lowering.ops.index_bounds import errors_of_pytorch
from steep.lowering.ops.stop_gradient import take_again
from steep.onnx_graph.gradient_reach import (
    find_gradient_reach,
    last_results_first,
    results_of_results,
)
from steep.session.training import announce_precision

log = logging.getLogger("steep")

_SEED_RANGE = 2**63 - 1

# Before these steps malloc returns freed memory to the system: earlier steps leave gaps that later
# requests may not fit. After the last of these steps the layout is stable.
_TIDIED_STEPS = (2, 3, 5, 9, 17)


class EngineGraph:
    """A graph ready to run, differentiated for one set of wanted gradients.

    Args:
        model: serialised ONNX; all values it reads are inputs, parameters too.
        names: the names of its inputs.
        inputs: the position of each input among the tensors of a call; ``count`` tensors are given.
        wanted_inputs: the tensors of a call whose gradients backward returns. Only tensors that a
            gradient reaches: the autograd histories of others may have been freed.
        precision: "fp32", "bf16" or "fp16".
        providers: where it runs.
        disabled_passes: names of rewrites of the graph to leave out.
        memory_limit: limit for a call, as the engine reads it; "" for none.
        reach_of_results: for each result, the tensors of a call that PyTorch's autograd reaches
            from it: their gradients are zero where the graph has none.
        saved_inputs, saved_results: for each tensor of a call, and for each result, whether
            PyTorch's autograd saves it without a copy. All others may be written to before
            backward. By default all inputs, and the results that backward reads.
        inputs_in_place, results_in_place: likewise, whether backward reads the tensor's own memory.
            By default all. Backward reads copies of the others, so writes that PyTorch's version
            counter misses have no effect.
        layouts: for each result, its dimensions in the order in which they lie in memory; None for
            results that are contiguous. By default all are.

    Raises ModelError. Calls from several threads are safe.
    """

    def __init__(
        self,
        model: bytes,
        names: list[str],
        inputs: list[int],
        count: int,
        wanted_inputs: tuple[int, ...],
        *,
        precision: str,
        providers: Sequence[ProviderChoice] = (),
        disabled_passes: Sequence[str] = (),
        memory_limit: str = "",
        reach_of_results: Sequence[set[int]] = (),
        saved_inputs: Sequence[bool] = (),
        saved_results: Sequence[bool] = (),
        inputs_in_place: Sequence[bool] = (),
        results_in_place: Sequence[bool] = (),
        layouts: Sequence[Layout] = (),
    ) -> None:
        self.model = model
        places = range(count)
        # positions of the tensors that autograd saves without a copy, and of the others
        self.saved_positions = [i for i in places if not saved_inputs or saved_inputs[i]]
        self.other_positions = sorted({*places}.difference(self.saved_positions))
        order = [*self.saved_positions, *self.other_positions]
        self._places = sorted(places, key=order.__getitem__)  # the inverse of `order`
        self.saved_results, self._layouts = saved_results, layouts
        self.names, self.inputs, self.count = names, inputs, count
        self.reach_of_results = reach_of_results
        self.wanted_inputs = wanted_inputs
        self.precision = precision
        self.providers = list(providers)
        self.disabled_passes = tuple(disabled_passes)
        self.memory_limit = memory_limit
        self._gradient_graphs: dict[tuple[tuple[int, ...], tuple[int, ...]], EngineGraph] = {}
        name_of = dict(zip(inputs, names, strict=True))
        self.program = ModuleProgram(
            model,
            inputs=names,
            input_gradients=[name_of.get(i, "") for i in wanted_inputs],
            precision=precision,
            providers=self.providers,
            may_change=[name_of[i] for i in inputs if inputs_in_place and not inputs_in_place[i]],
            results_may_change=[not in_place for in_place in results_in_place],
            disabled_passes=disabled_passes,
            memory_limit=memory_limit,
        )
        announce_precision(precision)
        self.announced = False
        self.steps = 0
        # after create_graph=True runs keep copies of their inputs
        self.is_differentiated_again = False
        self.last = threading.local()  # the seed of each thread's last run
        self.constant_results = [not d for d in self.program.differentiable]
        self.later_results, self.hook_order = self._order_of_results()
        self.gradients = bool(wanted_inputs) and not all(self.constant_results)
        if self.gradients:  # a training loop allocates the same arrays at every step
            keep_freed_memory()
            return_freed_memory()  # memory of the capture

    def _order_of_results(self) -> tuple[dict[int, list[int]], list[int]]:
        """Return which differentiable results are computed from each other, and their hooks' order.

        The first value maps a result to the later results that depend on it. The second lists the
        results in the order in which their hooks run. Both are empty for fewer than two
        differentiable results.
        """
        if self.constant_results.count(False) < 2:
            return {}, []
        graph = onnx.load_from_string(self.model).graph
        constant = self.constant_results
        later_results = {
            i: some
            for i, later in results_of_results(graph).items()
            if not constant[i] and (some := [j for j in later if not constant[j]])
        }
        return later_results, [i for i in last_results_first(graph) if not constant[i]]

    def run(
        self, tensors: list[torch.Tensor], gradients: bool
    ) -> tuple[list[torch.Tensor], ModuleRun | None, list[bool]]:
        """Run forward; return the results, the pending run, and which results backward reads.

        Args:
            tensors: the tensors of a call, on the CPU, with the dtypes of the model's inputs.
            gradients: whether backward may follow; otherwise the pending run is None.
        """
        self.steps += gradients
        if self.steps in _TIDIED_STEPS:
            return_freed_memory()
        seed = int(torch.randint(_SEED_RANGE, ())) if self.program.random else 0
        self.last.seed = seed
        if not self.announced and log.isEnabledFor(logging.INFO):
            log.info("step planned: %s", self.program.plan(self._arrays(tensors), gradients))
        self.announced = True
        arrays = self._arrays(tensors)
        with errors_of_pytorch():
            capsules, run, is_read = self.program.forward(arrays, gradients, seed)
        results = [from_dlpack(c) for c in capsules]
        if any(self._layouts):
            results = list(map(laid_out, results, self._layouts))
        return results, run, is_read

    def _arrays(self, tensors: Sequence[torch.Tensor]) -> list[object]:
        read = [tensors[i] for i in self.inputs]
        return [_handed_over((t.detach() if t.requires_grad else t).contiguous()) for t in read]

    def find_moved_inputs(
        self, tensors: Sequence[torch.Tensor], pointers: Sequence[int]
    ) -> dict[int, object]:
        """Return the graph's inputs, by position, whose memory is no longer at ``pointers``."""
        return {
            k: _handed_over(tensors[i])
            for k, i in enumerate(self.inputs)
            if tensors[i].data_ptr() != pointers[i]
        }

    def merge_saved_and_others(
        self, saved_tensors: Sequence[torch.Tensor], others: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Return the tensors of a call in order: those that autograd saved, and ``others``."""
        # results that autograd saved come behind the tensors
        there = [*saved_tensors[: len(self.saved_positions)], *others]
        return [there[k] for k in self._places]

    def differentiate(self, positions: tuple[int, ...], among: tuple[int, ...]) -> EngineGraph:
        """Return the graph of this graph's gradients; it is made on first use.

        Its tensors are those of this graph, then the gradients of the results ``among``. Its
        results are the gradients of those ``wanted_inputs`` that the graph has. Its tensors at
        ``positions`` may be differentiated again.

        Raises ModelError: the graph draws random numbers.
        """
        before = self._gradient_graphs.get((positions, among))
        if before is not None:
            return before
        if self.program.random:
            raise ModelError(
                "The gradients of a graph that draws random numbers are not differentiated again.",
                expected="create_graph=False, or a module in evaluation mode",
                remedy="call eval() on the dropouts within, or run this module in PyTorch",
            )
        model = onnx.load_from_string(self.model)
        take_again(model.graph)
        outputs = [o.name for o in model.graph.output]
        name_of = dict(zip(self.inputs, self.names, strict=True))
        wrt = [name_of[i] for i in self.wanted_inputs if i in name_of]
        gradients = onnx.load_from_string(
            gradient_model(model.SerializeToString(), wrt, [outputs[i] for i in among], True)
        )
        # drop the results; only the gradients are new
        del gradients.graph.output[: len(gradients.graph.output) - len(wrt)]
        own = set(self.names)
        seeds = [v.name for v in gradients.graph.input if v.name not in own]
        count = self.count + len(seeds)
        names = [*self.names, *seeds]
        inputs = [*self.inputs, *range(self.count, count)]
        reach = find_gradient_reach(gradients.graph)
        differentiable = {i for i, name in zip(inputs, names, strict=True) if name in reach}
        graph = self._gradient_graphs[positions, among] = EngineGraph(
            gradients.SerializeToString(),
            names,
            inputs,
            count,
            tuple(i for i in positions if i in differentiable),
            precision=self.precision,
            providers=self.providers,
            disabled_passes=self.disabled_passes,
            inputs_in_place=[False] * count,
            memory_limit=self.memory_limit,
        )
        return graph

    def gradients_from(self, results: list[torch.Tensor]) -> list[torch.Tensor | None]:
        """Return one gradient per wanted input; None if the graph has none.

        ``results`` are those of ``differentiate``.
        """
        own = set(self.inputs)
        count = sum(i in own for i in self.wanted_inputs)
        rest = iter(results[len(results) - count :])
        return [next(rest) if i in own else None for i in self.wanted_inputs]


def _handed_over(t: torch.Tensor) -> object:
    """Return a tensor as a DLPack capsule. Raises DataError if its memory was freed."""
    # the address of the storage is 0
    if t.data_ptr() == t.storage_offset() * t.element_size() and t.numel():
        raise DataError(
            "A tensor that the graph reads has no memory: its storage was resized to 0.",
            expected=f"{counted(t.numel() * t.element_size(), 'byte')} for shape {[*t.shape]}",
            remedy="resize the storage and fill it again before the call, and before backward",
        )
    return to_dlpack(t)
