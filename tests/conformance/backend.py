"""ONNX's backend interface over ``steep.InferenceSession``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
from onnx.backend.base import Backend, BackendRep

import steep


class Prepared(BackendRep):
    """A model that is ready to run at any number of inputs."""

    def __init__(self, session: steep.InferenceSession) -> None:
        self.session = session
        self.names = [i.name for i in session.get_inputs()]

    def run(self, inputs: Sequence[Any], **kwargs: Any) -> tuple[Any, ...]:
        return tuple(self.session.run(None, dict(zip(self.names, inputs, strict=True))))


class SteepBackend(Backend):
    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> Prepared:
        return Prepared(steep.InferenceSession(model))

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device == "CPU"
