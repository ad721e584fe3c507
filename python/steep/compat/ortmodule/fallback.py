"""Fallback policies and exceptions, under ONNX Runtime's names."""

from __future__ import annotations

import enum

from steep.errors import DataError, Error, ModelError, ProviderError


class _FallbackPolicy(enum.IntFlag):
    """For which failures PyTorch may run a call."""

    FALLBACK_DISABLE = 1
    FALLBACK_FORCE_TORCH_FORWARD = 2
    FALLBACK_FORCE_TORCH_BACKWARD = 4
    FALLBACK_UNSUPPORTED_DEVICE = 8
    FALLBACK_UNSUPPORTED_DATA = 16
    FALLBACK_UNSUPPORTED_TORCH_MODEL = 32
    FALLBACK_UNSUPPORTED_ONNX_MODEL = 64
    FALLBACK_BAD_INITIALIZATION = 128

    def is_set(self, policy: _FallbackPolicy) -> bool:
        """Return whether all flags of ``policy`` are set."""
        return policy in self

    def is_disabled(self) -> bool:
        """Return whether fallback is disabled."""
        return _FallbackPolicy.FALLBACK_DISABLE in self

    @property
    def forces_torch(self) -> bool:
        """Whether PyTorch must run everything."""
        forward = _FallbackPolicy.FALLBACK_FORCE_TORCH_FORWARD
        return bool(self & (forward | _FallbackPolicy.FALLBACK_FORCE_TORCH_BACKWARD))

    def allows(self, error: Error) -> bool:
        """Return whether PyTorch may run a call for which the engine raised ``error``."""
        if self.is_disabled():
            return False
        kinds = _KINDS[next(kind for kind in _KINDS if isinstance(error, kind))]
        return bool(self & kinds)


class _SkipCheck(enum.IntFlag):
    """Checks that a call may skip; without effect, since graphs have guards."""

    SKIP_CHECK_DISABLED = 1
    SKIP_CHECK_DEVICE = 2
    SKIP_CHECK_BUILD_GRADIENT = 4
    SKIP_CHECK_EXECUTION_AGENT = 8

    def is_set(self, check: _SkipCheck) -> bool:
        """Return whether all flags of ``check`` are set."""
        return check in self

    def is_disabled(self) -> bool:
        """Return whether no check is skipped."""
        return _SkipCheck.SKIP_CHECK_DISABLED in self


_Policy = _FallbackPolicy
_KINDS: dict[type[Error], _FallbackPolicy] = {
    ProviderError: _Policy.FALLBACK_UNSUPPORTED_DEVICE | _Policy.FALLBACK_UNSUPPORTED_ONNX_MODEL,
    ModelError: _Policy.FALLBACK_UNSUPPORTED_TORCH_MODEL | _Policy.FALLBACK_UNSUPPORTED_ONNX_MODEL,
    DataError: _Policy.FALLBACK_UNSUPPORTED_DATA,
    Error: _Policy(0),
}

DEFAULT = (
    _Policy.FALLBACK_UNSUPPORTED_DEVICE
    | _Policy.FALLBACK_UNSUPPORTED_DATA
    | _Policy.FALLBACK_UNSUPPORTED_TORCH_MODEL
    | _Policy.FALLBACK_UNSUPPORTED_ONNX_MODEL
)

# An `except` clause with an old name must catch Steep's exceptions.
ORTModuleFallbackException = Error
ORTModuleInitException = ModelError
ORTModuleDeviceException = ProviderError
ORTModuleTorchModelException = ModelError
ORTModuleONNXModelException = ModelError
ORTModuleIOError = DataError


def wrap_exception(new_exception: type[Exception], raised_exception: Exception) -> Exception:
    """Return an exception of another class whose cause is ``raised_exception``."""
    try:
        raise new_exception(str(raised_exception)) from raised_exception
    except new_exception as error:
        return error
