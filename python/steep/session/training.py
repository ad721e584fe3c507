"""``TrainingSession``: train an ONNX file without PyTorch."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from steep import _steep
from steep.errors import DataError, ModelError
from steep.inspection import StrPath, make_dump, record_profile
from steep.providers import Providers, choices_of
from steep.session.history import History
from steep.session.names import names_of
from steep.session.processes import join_processes, require_alone, require_whole
from steep.session.records import Loaded, loaded_from
from steep.session.schedule import RateFunction, engine_rate, take_function
from steep.session.source import ModelProto, source_of
from steep.session.steps import SessionSteps
from steep.session.training_options import Group, Loss, groups_of, options_of, take_loss

if TYPE_CHECKING:
    from steep.parallel.ranks import Ranks
    from steep.session import fitting
    from steep.session.batches import Data
    from steep.session.metrics import Metrics

log = logging.getLogger("steep")


@functools.cache
def announce_precision(precision: str) -> None:
    """Log once if a precision is not faster on this machine."""
    if precision == "fp16" and not _steep.has_products("float16"):
        log.info(
            "this processor has no float16 products: they run in float32, on values rounded to "
            "float16"
        )


class TrainingSession(SessionSteps):
    """An ONNX model, its loss and its optimizer as one compiled step.

    Arrays are those of NumPy, PyTorch or any library with DLPack; results are ``steep.Tensor``. If
    the dtype of an array differs from the model's input, it is converted: float64 and float16 to
    float32 and the reverse, int32 labels to int64. Numbers that do not fit, and floats for
    integers, are refused. Labels may be [n] for [n, 1] and the reverse, except those of "mse",
    which would broadcast. Labels of softmax cross entropy may also be floats with whole values, or
    one-hot rows.

    >>> session = TrainingSession("model.onnx", loss="mse", optimizer="sgd", lr=0.1)
    >>> session.step(x, y).loss

    Args:
        model: path of the file, its bytes, or an ``onnx.ModelProto``.
        loss: "mse", "l1", "huber", "softmax_cross_entropy", "nll" (of log-probabilities),
            "binary_cross_entropy" (of probabilities), "binary_cross_entropy_with_logits", or ""
            if an output of the model is the loss. Each is PyTorch's loss of that name. Or an ONNX
            model with inputs for scores and labels, in this order, and one output of one element:
            its path (NAME.onnx), its bytes, or an ``onnx.ModelProto``.
        output: the output that is the loss, or that the added loss reads; by default the only
            output, or "loss".
        label: name of the input for labels; the last positional array of ``step``.
        ignore_index: label that softmax cross entropy and nll skip.
        huber_delta: distance from which "huber" is linear.
        label_smoothing: for softmax cross entropy: the part of a label that all classes share.
        class_weights: for softmax cross entropy and nll: the weight of each class.
        trainable: initializers to train, and Constant nodes by the name of their output; by default
            every float initializer that the loss depends on and that acts as a weight. ``left_out``
            lists the others, each with its reason. If an initializer is also an input, as in old
            files, it may be a weight; it is then not an input of ``step``.
        frozen: names that are not trained, even if they are in ``trainable``.
        lora_rank: above 0: train low-rank adapters (LoRA), ``W.lora_A`` and ``W.lora_B`` for each
            weight W of ``lora_targets``, and what ``trainable`` names; all else is frozen.
        lora_alpha: the adapters' product counts by this number / their rank; by default the rank.
        lora_targets: weights, or patterns with a ``*``; by default all matrices that are only right
            operands of MatMul and Gemm, and that neither ``trainable`` nor ``frozen`` selects.
            ``adapted_names`` lists them.
        optimizer: "sgd", "adam", "adamw", "nadam", "radam", "adagrad", "adadelta", "rmsprop",
            "adamax", "lamb", "adafactor" or "muon" (for matrices only), with the conventions of
            ``torch.optim``; "transformers_adamw"; or a registered optimizer
            (``steep.register_optimizer``).
        attributes: values of the attributes of a registered optimizer, by name.
        lr, weight_decay, momentum, dampening, nesterov, betas, eps, bias_correction: settings of
            the optimizer, if it has them.
        maximize, amsgrad, decoupled_weight_decay, momentum_decay, lr_decay: as in ``torch.optim``.
        initial_accumulator_value, rho, alpha, centered: as in ``torch.optim``.
        beta2_decay, epsilon2, clip_threshold: of "adafactor": in ``torch.optim`` ``beta2_decay``,
            ``eps[1]`` and ``d``; ``eps`` is ``eps[0]``.
        ns_coefficients, ns_steps, adjust_lr_fn: of "muon", as in ``torch.optim``.
        state_precision: how moments are kept between steps: "float32"; "bfloat16"; or "int8",
            floats of 8 bits with a scale for each block of 256, a quarter of the memory. For "sgd",
            "adam", "adamw" and "lamb". Updates are computed in float32. Moments of weights of fewer
            than 4,096 elements, and of float64, stay as they are (docs/memory.md).
        groups: parameters with other settings, as pairs of names and settings:
            ``(names, {"lr_multiplier": 0.1})``, ``(names, {"lr": 1e-4})``, which is a multiple of
            the session's rate too, or ``(names, {"weight_decay": 0.0})``; or with an
            optimizer of their own, whose numbers ``set_group`` may change: ``(names,
            {"optimizer": "adamw", "lr": 1e-4})``, with the settings of optimizers above, or
            ``(names, OptimizerOptions)``. A name may be in one group only.
        updates: other initializers that a step writes, such as a moving average or a counter, each
            with the name of the model's output that computes its new value.
        schedule, warmup_steps, total_steps, min_lr_ratio: "constant", "linear" or "cosine", from
            ``warmup_steps`` to ``total_steps``, down to ``min_lr_ratio`` times the rate. Or a
            function that returns the factor of the rate for a step, numbered from 0.
        clip_norm: bound of the gradients' global norm; 0 for none.
        clip_value: bound of each element of the gradients, after ``clip_norm``; 0 for none.
        ema_decay: decay of the moving averages of the weights, ``ema/NAME`` of the optimizer's
            state, which ``eval`` and ``export_onnx`` then use instead of the weights.
        grad_norm: report that norm even without clipping.
        step_outputs: outputs that ``step`` returns besides the loss.
        seed: seed of dropout, and of the initial values of adapters.
        threads: number of threads that compute in the session's calls; 0: the number of OpenMP.
        precision: "fp32", or "bf16" or "fp16": matrix products read bfloat16 or float16, everything
            else (weights, moments, norms, softmax, losses, sums, updates) stays float32.
        loss_scale: initial scale of the loss with "fp16". A step whose gradients overflow is
            skipped (``result.skipped``), and the scale is halved.
        loss_scale_window: number of steps without a skip after which the scale doubles; 0 for
            never.
        check_finite: check the gradients before an update, and the weights after it. If they are
            not finite, the step is an error, which names the first node that produced NaN or
            infinity. Without this option only the loss is checked: a step may leave weights that
            are not finite, and the next step reports it. Slow.
        master_weights: train weights of float16 and bfloat16 through a float32 copy of each,
            ``master/NAME`` in the optimizer's state. Forward, backward and exports use the weights
            in their own dtype. With False, an update of less than half a unit in a weight's last
            place is lost. Moments of such weights are always float32.
        stochastic_rounding: without ``master_weights``, round updated bfloat16 weights up or down
            at random, so that small updates count on average.
        bound_to_graph: a checkpoint loads only into a session whose model has the same operators.
            With False, only the parameters, the kind of loss and the moments must be the same.
        memory_limit: the most memory that one call may hold, as "2GiB" or a number of bytes:
            parameters, moments, inputs, constants, results and intermediate values. If a step does
            not fit, backward recomputes values of forward instead of keeping them; results are
            the same bits (docs/memory.md). "least" is the smallest plan that is found, "" none.
        offload_folder: folder of a file for states that do not fit in memory (docs/memory.md). The
            file has no name, and is gone when the session ends. A forked process cannot use the
            session. "" for none.
        offload: what is on disk. In that file: "moments" of the optimizer, or "all": parameters
            too, except those in ``weights``. Or "frozen", without that file: with ``lora_rank``,
            weights that no step changes stay in the external data of ``model``, a path, and are
            read when a node needs them. The file must not change meanwhile.
        disabled_passes: rewrites of the graph to turn off, by name (docs/look_inside.md).
        limits: a ``steep.Limits``: bounds on memory, nodes and loops.
        providers: where steps run, as for ``InferenceSession``. Weights stay in the host's memory.
        weights: arrays with the data of initializers, by name; ``model`` (bytes or a proto) then
            need not contain it. Trained arrays are updated in place, so they must be contiguous and
            writable.
        parallel: several processes train this model together, each with its own rows
            (docs/parallel.md): "torch": those of ``torch.distributed``; "gloo": those of
            ``steep launch``; "mpi": those of Open MPI's ``mpirun``. All make the same calls. A
            step's loss and gradients are the means over the rows of all. Only rank 0 writes files.
        zero: 1: with ``parallel``, each process keeps the optimizer's states of its share of the
            weights only (ZeRO-1). 2: the sums of gradients, too (ZeRO-2): backward sends them, also
            for each ``step(accumulate=True)``, which all processes then call equally often.
        full_checkpoints: with ``zero``, rank 0 collects the optimizer's states and writes
            checkpoints alone. Otherwise they are sharded: each process writes the states that it
            keeps, and all must see the folder.
        wire_precision: with ``parallel``, "bfloat16": gradients are exchanged in half the bytes,
            and rounded (docs/parallel.md); all processes still have the same weights.

    Raises:
        ModelError: the model cannot be read or trained; all obstacles are listed. Or
            ``memory_limit`` is not a size. With ``parallel``, at the first step: the processes
            train different models.
        DataError: a trained array of ``weights`` cannot be updated in place.
        IoError: ``offload_folder`` cannot be written to, or has too little space.
        OutOfMemoryError: at a call with new shapes: no plan fits ``memory_limit``; the error has
            the least limit that would do.
        ProviderError: a launcher (torchrun, mpirun, srun) or PyTorch's process group has several
            processes, and each would train alone: pass ``parallel``, or set
            ``STEEP_ALONE=1`` if this is intended. With ``parallel``: no launcher started this
            process; at a step: another process ended.

    Warns:
        UserWarning: the loss normalises scores that the model has normalised already.
    """

    _loaded = Loaded()  # of a checkpoint of fit, and no fit since
    _in_one_process = True  # False in subclasses that synchronise processes themselves

    def __init__(
        self,
        model: str | os.PathLike[str] | bytes | ModelProto,
        *,
        loss: Loss = "",
        output: str = "",
        label: str = "label",
        ignore_index: int | None = None,
        huber_delta: float = 1.0,
        label_smoothing: float = 0.0,
        class_weights: Sequence[float] = (),
        trainable: Sequence[str] = (),
        frozen: Sequence[str] = (),
        lora_rank: int = 0,
        lora_alpha: float | None = None,
        lora_targets: Sequence[str] = (),
        optimizer: str = "adamw",
        lr: float = 1e-3,
        weight_decay: float = 0.0,
        momentum: float | None = None,
        dampening: float = 0.0,
        nesterov: bool | None = None,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float | None = None,
        bias_correction: bool = True,
        maximize: bool = False,
        amsgrad: bool = False,
        decoupled_weight_decay: bool = False,
        momentum_decay: float = 4e-3,
        lr_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        rho: float = 0.9,
        alpha: float = 0.99,
        centered: bool = False,
        beta2_decay: float = -0.8,
        epsilon2: float = 1e-3,
        clip_threshold: float = 1.0,
        ns_coefficients: Sequence[float] = (),
        ns_steps: int = 5,
        adjust_lr_fn: str = "",
        state_precision: str = "float32",
        attributes: Mapping[str, float] | None = None,
        groups: Sequence[Group] = (),
        updates: Mapping[str, str] | None = None,
        schedule: str | RateFunction = "constant",
        warmup_steps: int = 0,
        total_steps: int = 0,
        min_lr_ratio: float = 0.0,
        clip_norm: float = 0.0,
        clip_value: float = 0.0,
        ema_decay: float = 0.0,
        grad_norm: bool = False,
        step_outputs: Sequence[str] = (),
        seed: int = 0,
        threads: int = 0,
        precision: str = "fp32",
        loss_scale: float = 2.0**16,
        loss_scale_window: int = 2000,
        check_finite: bool = False,
        master_weights: bool = True,
        stochastic_rounding: bool = False,
        bound_to_graph: bool = True,
        memory_limit: str | int = "",
        offload_folder: str | os.PathLike[str] = "",
        offload: str = "moments",
        disabled_passes: Sequence[str] = (),
        limits: _steep.Limits | None = None,
        providers: Providers | None = None,
        weights: Mapping[str, object] | None = None,
        parallel: str | Ranks | None = None,
        zero: int = 0,
        full_checkpoints: bool = False,
        wire_precision: str = "float32",
    ) -> None:
        parameters = dict(locals())
        if parallel is not None:
            self._parallel = join_processes(parallel, zero, full_checkpoints, wire_precision)
        else:
            require_whole(zero, wire_precision)
            if self._in_one_process:
                require_alone("TrainingSession")
        function = take_function(parameters)
        options = options_of(parameters)
        if limits is not None:
            options.limits = limits
        options.providers = choices_of(providers)
        announce_precision(precision)
        scaling = options.loss_scale
        scaling.min, scaling.max = min(scaling.min, loss_scale), max(scaling.max, loss_scale)
        options.updates = dict(updates or {})
        options.groups = groups_of(groups, lr)
        options.optimizer.attributes = dict(attributes or {})
        source = source_of(model)
        if weights:
            super().__init__(source, options, dict(weights))
        else:
            super().__init__(source, options)
        if self._writes:
            for text in self.warnings:
                warnings.warn(text, stacklevel=2)
            log.info("trained: %s", ", ".join(self.parameter_names))
            for constant in self.left_out:
                log.info("not trained: %s %s", constant.name, constant.reason)
        reads_scores: Callable[[], bool] = bool
        if options.loss == "binary_cross_entropy_with_logits":
            reads_scores = functools.partial(_steep.reads_scores_within, source, options)
        self._of_loss = options.loss, output, label, ignore_index, reads_scores
        self._prepare_steps(options, function)
        if self._parallel is not None:
            self._parallel.describe(self, source)

    def fit(
        self,
        data: Data,
        *,
        epochs: int = 1,
        batch: int | None = None,
        drop_last: bool = False,
        accumulate: int = 1,
        validation: Data | float | None = None,
        shuffle: bool = True,
        seed: int = 0,
        metrics: Metrics = (),
        callbacks: Sequence[fitting.EpochCallback] = (),
        step_callbacks: Sequence[fitting.StepCallback] = (),
        patience: int | None = None,
        restore_best: bool = False,
        schedule: RateFunction | None = None,
        checkpoint: StrPath | None = None,
        checkpoint_every: int | None = None,
        metrics_file: StrPath | None = None,
        tensorboard: StrPath | None = None,
        progress: bool = True,
    ) -> History:
        """Train for some epochs, from the present weights on; return what each epoch did.

        >>> history = session.fit((x, y), epochs=20, validation=0.1, patience=3)
        >>> history.best.validation_loss

        With ``parallel``, all processes call this with the same arguments: each trains on its share
        of every batch, so the result is that of one process. Each evaluates all validation data. If
        a callback in one process returns True, or after a Ctrl-C in one, all end together.

        Args:
            data: a tuple of arrays in the order of ``input_info()``, or arrays by name, each with a
                row for each sample. Or an iterable of batches (a list, a DataLoader): dicts, tuples
                or lists of arrays as for ``step``; not with ``parallel``. Or a
                ``steep.ImageFolder``.
            epochs: number of passes over the data.
            batch: rows of a step, of arrays: by default those that the model fixes,
                else 32. The last batch may be smaller; if the model fixes the rows, what is left
                over in a pass is left out.
            drop_last: leave out a last batch of arrays that is smaller.
            accumulate: number of batches whose gradients are added before the weights are updated
                by their mean; the last update of an epoch may have fewer.
            validation: data as above, whose loss ``eval`` computes after each epoch; or the part of
                the rows of ``data`` that is held out: 0.1.
            shuffle: train on arrays in a new order in each epoch, and hold out random rows. False:
                in the given order, and hold out the last rows.
            seed: seed of these orders; an order also depends on ``step_count``, so a run that
                continues from a checkpoint has the same batches.
            metrics: computed from all validation predictions: "accuracy", "f1" or "top5" (another
                number) for losses of classes; "accuracy" or "f1" for binary losses; "r2" for
                others; or functions of predictions and labels (NumPy arrays), as a list or by name.
            callbacks: functions that are called with an ``Epoch`` after each epoch. If one returns
                True, the training ends.
            step_callbacks: the same after each update, with the result of ``step``, or with
                ``accumulate`` of ``apply_gradients``; an epoch that one of them ends is not in the
                history, and not validated.
            patience: end after this number of epochs without a smaller validation loss.
            restore_best: at the end, bring weights, statistics, moments and ``step_count`` back to
                the epoch with the smallest validation loss. Keeps a copy of them.
            schedule: a function that returns the factor of the learning rate for a step, by
                ``step_count``: 0 for the session's first.
            checkpoint: path to save to, as ``save_checkpoint``: after each epoch, and at a Ctrl-C.
                With ``patience`` or ``restore_best``, CHECKPOINT.best is the best epoch's.
            checkpoint_every: save after this number of steps, too.
            metrics_file: path of a CSV file with a row for each step, as ``steep train --metrics``
                writes it. Rows of an earlier file up to ``step_count`` stay.
            tensorboard: folder of files for TensorBoard, as ``steep train --tensorboard``.
            progress: show a bar (``tqdm``, if it is installed) after two seconds.

        Raises:
            DataError: an argument is wrong, or as ``step`` and ``eval``; or the session has
                another schedule besides ``schedule``; or ``fit`` is called in a callback of
                ``fit``, or in another thread meanwhile. With ``parallel``: ``data`` are batches;
                the arguments differ between processes; the model fixes the rows of a batch.
            ProviderError: with ``parallel``: a process was lost, or makes another call.
            ShapeError: arrays have different numbers of rows, or as ``step`` and ``eval``.
            IoError: a checkpoint cannot be written, or a file that ``metrics_file`` or
                ``tensorboard`` names cannot be made. If one of these fails later, the logger
                ``steep`` warns, and the training goes on without it.
            KeyboardInterrupt: after Ctrl-C, when the step is complete: the session may be used.
        """
        from steep.session.fitting import FitOptions, fit  # it needs NumPy
        from steep.session.metrics import LossOfSession
        from steep.session.team import Team

        options = FitOptions(
            epochs=epochs,
            batch=batch,
            accumulate=accumulate,
            validation=validation,
            shuffle=shuffle,
            seed=seed,
            metrics=metrics,
            callbacks=callbacks,
            step_callbacks=step_callbacks,
            patience=patience,
            restore_best=restore_best,
            progress=progress,
            drop_last=drop_last,
            checkpoint=checkpoint,
            checkpoint_every=checkpoint_every,
            metrics_file=metrics_file,
            tensorboard=tensorboard,
            loaded=self._loaded,
            load=self._load,
        )
        self._loaded = Loaded()  # said once
        team = Team(self._parallel)
        with self._alone_in_fit(), team.telling(), self._scheduled(schedule):
            return fit(self, team, LossOfSession(*self._of_loss), data, options)

    @property
    def _writes(self) -> bool:
        """Whether this process writes files (rank 0)."""
        return self._parallel is None or self._parallel.rank == 0

    def save_checkpoint(self, path: StrPath, user: str = "{}") -> None:
        """Write a checkpoint; it replaces an old one at ``path`` only when it is complete.

        With ``parallel``, all processes call this, and rank 0 writes it; with ``zero``, each writes
        the states that it keeps (``full_checkpoints``), and an error of one is one of all. Any
        number of processes can load it.

        Raises:
            IoError: it cannot be written.
        """
        if self._schedule is not None:
            self._schedule.remove(self)  # the next step sets the rate again
        if self._parallel is None:
            super().save_checkpoint(path, user)
        else:
            self._parallel.save_checkpoint(self, path, user)

    def export_onnx(
        self,
        path: StrPath,
        for_inference: bool = False,
        external_data: bool = False,
        max_file_bytes: int = 2**31 - 1,
        merge_adapters: bool = True,
    ) -> None:
        """Write a copy of the model with the trained weights.

        With ``parallel``, rank 0 writes it, and the others return at once.

        Args:
            path: path of the file.
            for_inference: rewrite it as ``steep.model_for_inference`` does, and remove a loss
                inside the model with the labels that it reads.
            external_data: write tensors of 1 KiB and more to the file PATH.data beside it.
            max_file_bytes: a larger model is written with external data. External data of the model
                that is not trained stays where it is if ``path`` is in the model's folder; else
                it is copied.
            merge_adapters: write the weights with their adapters added. With False, the weights
                stay as they are, and the adapters are initializers beside them, as they always are
                for a weight that is stored in another type than its product reads, such as int4.

        Raises:
            IoError: it cannot be written.
        """
        if self._writes:
            super().export_onnx(path, for_inference, external_data, max_file_bytes, merge_adapters)

    def save_artifact(self, path: StrPath, *batches: Sequence[object]) -> None:
        """Write a file from which ``libsteep.so`` trains and predicts, without the model and ONNX.

        With ``parallel``, rank 0 writes it, and the others return at once.

        Args:
            path: path of the file.
            batches: arrays as for ``step``, or without the label for a prediction alone. The file
                has a step and a prediction for the shapes of each batch.

        Raises:
            ModelError: an artifact does not support an option of this session (docs/runtime.md).
            IoError: it cannot be written.
        """
        if self._schedule is not None:
            raise ModelError(
                "An artifact cannot have a schedule that is a function.",
                node="schedule",
                expected='"constant", "linear" or "cosine"',
            )
        if self._writes:
            super().save_artifact(path, *batches)

    def load_checkpoint(self, path: str | os.PathLike[str]) -> str:
        """Verify a checkpoint completely, then load it; return ``user``.

        The logger ``steep`` warns in one line of what this session has otherwise
        (``checkpoint_note``): options, each with both values, and the number of threads: results
        may then differ in their last bits from those of an uninterrupted run. Moments of another
        ``state_precision`` are converted, and it warns of that too.

        With ``parallel``, every rank loads it; the next step begins with the state of rank 0.

        Raises:
            CheckpointError: it is damaged, or belongs to another model; nothing has changed.
        """
        user = self.load_quietly(path)
        if self.checkpoint_note and self._writes:
            log.warning("%s", self.checkpoint_note)
        return user

    def load_quietly(self, path: str | os.PathLike[str]) -> str:
        """As ``load_checkpoint``; the caller logs ``checkpoint_note``."""
        user = self._load(path)
        self._loaded = loaded_from(user, self.step_count, path)
        return user

    def _load(self, path: str | os.PathLike[str]) -> str:
        user = super().load_checkpoint(path)
        if self._schedule is not None:
            self._schedule.base = float(engine_rate.__get__(self))
        if self._parallel is not None:
            self._parallel.loaded(self)
        return user

    def dump(self, *arrays: object, html: StrPath | None = None, passes: bool = False) -> str:
        """Return the text of the step's graph; with arrays, of the step compiled for their shapes.

        Args:
            arrays: as for ``step``; only dtypes and shapes are used.
            html: path of a file; the compiled step is written to it as a page, with a picture of
                its memory.
            passes: return the graph before the first pass and after each pass that changed it.

        Raises:
            DataError: ``html`` or ``passes`` is given without arrays.
            ShapeError: the arrays do not fit the model.
            IoError: the page cannot be written.
        """
        if not arrays and (html is not None or passes):
            raise DataError(
                "A plan needs the shapes of the inputs.",
                expected="arrays as step() is fed",
                received="none",
            )
        page = html if self._writes else None
        return make_dump(lambda form: self.dump_as(form, *arrays), page, passes)

    def profile(self, path: StrPath) -> contextlib.AbstractContextManager[None]:
        """Record every kernel in the ``with`` block; write a trace for ui.perfetto.dev.

        Raises IoError.

        >>> with session.profile("step.json"):
        ...     session.step(x, y)
        """
        if not self._writes:
            return contextlib.nullcontext()
        return record_profile(self.start_profile, self.write_profile, path)


def check(
    model: str | os.PathLike[str] | bytes | ModelProto,
    *,
    loss: Loss = "",
    output: str = "",
    trainable: Sequence[str] = (),
    frozen: Sequence[str] = (),
    lora_rank: int = 0,
    lora_targets: Sequence[str] = (),
    providers: Providers | None = None,
    limits: _steep.Limits | None = None,
) -> list[_steep.Obstacle]:
    """List every obstacle to training a model; the list is empty if the model can be trained.

    Obstacles are operators without a gradient between the parameters and the loss (without ``loss``
    and ``output``: any float output), operators for which no provider has a kernel, and errors of
    the importer. Each has ``op``, ``node``, ``path`` (to the loss), ``what`` and ``remedy``.

    >>> for obstacle in check("model.onnx", loss="mse"):
    ...     print(obstacle)

    Args:
        model: path of the file, its bytes, or an ``onnx.ModelProto``.
        loss, output, trainable, frozen, lora_rank, lora_targets, providers, limits: as for
            ``TrainingSession``.

    Raises:
        IoError: the file cannot be opened.
        ModelError: one text is given where a list of names is taken.
        ProviderError: there is no such provider, or it has no such option.
    """
    options = _steep.TrainingOptions()
    options.loss, options.output = take_loss(options, loss), output
    options.trainable = names_of(trainable, "trainable")
    options.frozen = names_of(frozen, "frozen")
    options.lora_rank, options.lora_targets = lora_rank, names_of(lora_targets, "lora_targets")
    options.providers = choices_of(providers)
    if limits is not None:
        options.limits = limits
    return _steep.check(source_of(model), options)
