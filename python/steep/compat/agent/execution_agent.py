"""``…training.ortmodule._execution_agent``: agents that make their session themselves."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from steep.compat.agent import training_agent
from steep.compat.inference.ort_device import OrtDevice
from steep.compat.inference.ort_value import OrtValueVector
from steep.compat.inference.session import InferenceSession, IOBinding, Providers
from steep.compat.inference.session_options import SessionOptions


class ExecutionAgentOutput:
    """What a run of ``InferenceAgent`` returns.

    Attributes:
        ortvalues: the outputs.
        run_id: as given.
    """

    def __init__(self, ortvalues: OrtValueVector, run_id: int | None = None) -> None:
        self.ortvalues, self.run_id = ortvalues, run_id


class InferenceAgent:
    """Runs a model with bindings.

    Args:
        path_or_bytes, session_options, providers, provider_options: as for ``InferenceSession``.

    Raises as ``InferenceSession``.
    """

    def __init__(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes,
        session_options: SessionOptions | None = None,
        providers: Providers | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        self._inference_session = InferenceSession(
            path_or_bytes, session_options, providers, provider_options
        )

    def io_binding(self) -> IOBinding:
        """Return a binding for ``run_forward``."""
        return self._inference_session.io_binding()

    def run_forward(self, iobinding: IOBinding, run_options: object) -> ExecutionAgentOutput:
        """Run the model on what is bound. Raises as ``InferenceSession.run_with_iobinding``."""
        self._inference_session.run_with_iobinding(iobinding, run_options)
        return ExecutionAgentOutput(iobinding.get_outputs())


class TrainingAgent(training_agent.TrainingAgent):
    """``TrainingAgent`` of ``onnxruntime.capi._pybind_state``, with a session of its own.

    Args:
        path_or_bytes: a training graph of ``OrtModuleGraphBuilder``.
        fw_feed_names, fw_outputs_device_info, bw_fetches_names, bw_outputs_device_info,
            local_rank: as for that class.
        session_options, providers, provider_options: as for ``InferenceSession``.

    Raises as both.
    """

    def __init__(  # noqa: PLR0917 (ONNX Runtime's order)
        self,
        path_or_bytes: str | os.PathLike[str] | bytes,
        fw_feed_names: Sequence[str],
        fw_outputs_device_info: Sequence[OrtDevice],
        bw_fetches_names: Sequence[str],
        bw_outputs_device_info: Sequence[OrtDevice],
        session_options: SessionOptions | None = None,
        providers: Providers | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        local_rank: int = 0,
    ) -> None:
        super().__init__(
            InferenceSession(path_or_bytes, session_options, providers, provider_options),
            fw_feed_names,
            fw_outputs_device_info,
            bw_fetches_names,
            bw_outputs_device_info,
            local_rank,
        )
