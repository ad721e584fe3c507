"""A process that fine-tunes a model by Hugging Face's Trainer, a turn at a time."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import resource
import signal
import time
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from texts import Tokens


@dataclass(frozen=True)
class Plan:
    """What is trained: the same for both."""

    model: str
    """Class of transformers, of a model whose forward returns a loss."""
    config: dict[str, Any]
    """What its configuration says that the class does not say by itself."""
    rows: dict[str, Tokens]
    """Arguments of forward by name, [steps · batch, …], in the order in which they are read."""
    batch: int
    steps: int
    learning_rate: float
    bf16: bool
    seed: int
    out: Path
    """Where the trained model is saved, by the contestant that is Steep."""


def run(connection: Connection, steep: bool, plan: Plan) -> None:
    """Train by the numbers of steps that come; send ("ready", …), ("step", …), then ("done", …).

    None in the place of a number is the end: with it training stops, early or not. What goes wrong
    is sent as ("failed", text).
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one sees to it
    try:
        _train(connection, steep, plan)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # nobody is there to tell: that ends it, at its next step
    except Exception:  # noqa: BLE001 - the parent is told
        with contextlib.suppress(OSError):
            connection.send(("failed", traceback.format_exc()))


def _train(connection: Connection, steep: bool, plan: Plan) -> None:
    import torch
    import transformers
    from transformers.trainer_callback import PrinterCallback

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(torch.get_num_threads())  # tells OpenMP, and with it Steep
    transformers.set_seed(plan.seed)
    cls = getattr(transformers, plan.model)
    model = cls(cls.config_class(**plan.config))
    ready = {"weights": sum(p.numel() for p in model.parameters()), "digest": digest(model)}
    connection.send(("ready", ready | {"threads": torch.get_num_threads()}))
    if steep:
        from steep import ORTModule

        model = ORTModule(model)  # the one line
    else:
        keep_memory()
    length = len(next(iter(plan.rows.values())))
    trainer = transformers.Trainer(
        model=model,
        args=transformers.TrainingArguments(
            output_dir=str(plan.out),
            max_steps=plan.steps,
            per_device_train_batch_size=plan.batch,
            learning_rate=plan.learning_rate,
            warmup_steps=plan.steps // 10,
            optim="adamw_torch_fused",
            bf16=plan.bf16,
            use_cpu=True,
            seed=plan.seed,
            train_sampling_strategy="sequential",  # both read the same rows
            dataloader_pin_memory=False,
            logging_steps=1,
            logging_nan_inf_filter=False,  # it would show another loss in the place of a NaN
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        ),
        train_dataset=[
            {name: torch.from_numpy(v[i]) for name, v in plan.rows.items()} for i in range(length)
        ],
        callbacks=[_turns(connection)],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # KiB on Linux
    summary: dict[str, Any] = {"memory_mib": most // 1024}
    if steep:
        trainer.save_model(str(plan.out))
        report = model.report()
        summary |= {"graphs": len(report.graphs), "whole": report.whole, "report": str(report)}
    connection.send(("done", summary))


def _turns(connection: Connection) -> Any:
    """Make the callback that lets the Trainer train when it is asked to."""
    from transformers import TrainerCallback

    class Turns(TrainerCallback):
        def __init__(self) -> None:
            self._left = 0
            self._since = 0.0

        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self._wait(control)

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if "loss" not in (logs or {}):
                return  # the summary at the end
            now = time.perf_counter()
            connection.send(("step", (logs["loss"], now - self._since)))
            self._since = now
            self._left -= 1
            if self._left == 0 or connection.poll():
                self._wait(control)

        def _wait(self, control: Any) -> None:
            self._left = connection.recv()
            control.should_training_stop = self._left is None
            self._since = time.perf_counter()

    return Turns()


def digest(model: Any) -> str:
    """Return a number that two models share if their weights are the same."""
    hash_of_weights = hashlib.sha256()
    for name, value in model.state_dict().items():
        hash_of_weights.update(name.encode())
        hash_of_weights.update(value.contiguous().numpy().tobytes())
    return hash_of_weights.hexdigest()


def keep_memory() -> None:
    """Have malloc keep what is freed, as ORTModule does: PyTorch alone is faster with it."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # GNU's
        mallopt(-4, 0)  # M_MMAP_MAX: no request is mapped on its own
        mallopt(-1, -1)  # M_TRIM_THRESHOLD: the end of the heap is never given back
