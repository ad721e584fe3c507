"""Steep trains ONNX graphs with an ahead-of-time compiled engine.

There are three ways to train:

* ``ORTModule(module)`` runs a ``torch.nn.Module``'s forward and backward; the loop stays as it is.
* ``ORTTrainer`` and ``trainer(model, criterion, optimizer)`` compile a PyTorch model's whole step.
* ``TrainingSession("model.onnx", ...)`` trains an ONNX file, without PyTorch.

``GradientSession("layer.onnx", wrt=["x"])`` runs forward and backward of an ONNX file as two calls.
``InferenceSession("model.onnx").run(None, {"x": x})`` runs an ONNX file, with the interface of ONNX
Runtime; ``grad("model.onnx", wrt=["x"])`` returns the ONNX model of its gradients, and
``model_for_inference("trained.onnx")`` a smaller model to deploy.

``register_op`` and ``register_optimizer`` add users' own operators and optimizers, as ONNX
functions; ``register_ops("ops.onnx")`` adds all those of a file.

``check("model.onnx")`` lists every obstacle to training a model. PyTorch is imported only by the
names that need it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from steep import backends, extension
from steep._steep import Limits, Tensor, logs, pass_names, set_logs
from steep.dependencies import require_not_hidden
from steep.errors import (
    CheckpointError,
    DataError,
    Error,
    InstallationError,
    InternalError,
    IoError,
    ModelError,
    OutOfMemoryError,
    OutOfRangeError,
    PeerLostError,
    ProviderError,
    ShapeError,
    VerificationError,
)
from steep.providers import get_available_providers, register_provider
from steep.session.custom_ops import Registration, register_op, register_ops, register_optimizer
from steep.session.deploy import model_for_inference
from steep.session.gradient import grad
from steep.session.gradient_session import GradientSession
from steep.session.history import Epoch, History
from steep.session.images import ImageFolder
from steep.session.inference import (
    GraphOptimizationLevel,
    InferenceSession,
    NodeArg,
    SessionOptions,
)
from steep.session.training import TrainingSession, check

if TYPE_CHECKING:
    from steep.module.ort_module import ORTModule
    from steep.trainers.base import Trainer
    from steep.trainers.optimizer import Lamb, Optimizer
    from steep.trainers.ort_trainer import IODescription, ModelDescription, ORTTrainer
    from steep.trainers.trainer import trainer

__version__ = extension.VERSION

# Nothing imports them yet, and what fails later would not name the file.
for _library in ("numpy", "onnx"):
    require_not_hidden(_library)

# Names that need PyTorch: they are imported on first use.
_LAZY = {
    "IODescription": "steep.trainers.ort_trainer",
    "ModelDescription": "steep.trainers.ort_trainer",
    "ORTModule": "steep.module.ort_module",
    "ORTTrainer": "steep.trainers.ort_trainer",
    "Lamb": "steep.trainers.optimizer",
    "Optimizer": "steep.trainers.optimizer",
    "Trainer": "steep.trainers.base",
    "trainer": "steep.trainers.trainer",
}

# PyPI's brings some 3 GB of CUDA. The releases are those of pyproject.toml.
_TORCH = 'pip install "torch>=2.13,<2.16" --index-url https://download.pytorch.org/whl/cpu'

_OF_ANY_RELEASE = {"ORTModule"}  # work with any release of PyTorch; others need a tested one

__all__ = [
    "CheckpointError",
    "DataError",
    "Epoch",
    "Error",
    "GradientSession",
    "GraphOptimizationLevel",
    "History",
    "IODescription",
    "ImageFolder",
    "InferenceSession",
    "InstallationError",
    "InternalError",
    "IoError",
    "Lamb",
    "Limits",
    "ModelDescription",
    "ModelError",
    "NodeArg",
    "ORTModule",
    "ORTTrainer",
    "Optimizer",
    "OutOfMemoryError",
    "OutOfRangeError",
    "PeerLostError",
    "ProviderError",
    "Registration",
    "SessionOptions",
    "ShapeError",
    "Tensor",
    "Trainer",
    "TrainingSession",
    "VerificationError",
    "check",
    "get_available_providers",
    "grad",
    "model_for_inference",
    "pass_names",
    "register_op",
    "register_ops",
    "register_optimizer",
    "register_provider",
    "set_logs",
    "trainer",
]

# `import *` asks __getattr__ for __all__: names that need PyTorch may be of no use here.
_PUBLIC = __all__
del __all__

backends.announce()
logs("graphs")  # raises DataError now if STEEP_LOGS has an unknown name
del logs


def _is_usable(name: str) -> bool:
    try:
        getattr(sys.modules[__name__], name)
    except (ImportError, ModelError):  # no PyTorch, or not a tested one: said when it is used
        return False
    return True


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return [public for public in _PUBLIC if _is_usable(public)]
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module 'steep' has no attribute {name!r}")
    try:
        from steep.patching.torch_versions import load, require_tested

        if name not in _OF_ANY_RELEASE:
            require_tested()
        value = getattr(load(module), name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != "torch":
            raise
        raise ImportError(
            f"steep.{name} needs PyTorch, for CPUs alone: {_TORCH}; then, for the rest: "
            'pip install "steep[torch]"',
            name="torch",
        ) from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
