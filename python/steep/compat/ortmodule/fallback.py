"""When PyTorch runs what the engine cannot, in ONNX Runtime's words."""

from __future__ import annotations

import enum

from steep.errors import DataError, Error, ModelError, ProviderError


class _FallbackPolicy(enum.IntFlag):
    """Which failures let PyTorch run a call; a call is whole, or in parts, as ORTModule says."""

    FALLBACK_DISABLE = 1
    FALLBACK_FORCE_TORCH_FORWARD = 2
    FALLBACK_FORCE_TORCH_BACKWARD = 4
    FALLBACK_UNSUPPORTED_DEVICE = 8
    FALLBACK_UNSUPPORTED_DATA = 16
    FALLBACK_UNSUPPORTED_TORCH_MODEL = 32
    FALLBACK_UNSUPPORTED_ONNX_MODEL = 64
    FALLBACK_BAD_INITIALIZATION = 128

    def is_set(self, policy: _FallbackPolicy) -> bool:
        """Return whether all of ``policy`` is in this one."""
        return policy in self

    def is_disabled(self) -> bool:
        """Return whether nothing may fall back."""
        return _FallbackPolicy.FALLBACK_DISABLE in self

    @property
    def forces_torch(self) -> bool:
        """Return whether PyTorch is to run everything."""
        forward = _FallbackPolicy.FALLBACK_FORCE_TORCH_FORWARD
        return bool(self & (forward | _FallbackPolicy.FALLBACK_FORCE_TORCH_BACKWARD))

    def allows(self, error: Error) -> bool:
        """Return whether PyTorch may run a call that failed so in the engine."""
        if self.is_disabled():
            return False
        kinds = _KINDS[next(kind for kind in _KINDS if isinstance(error, kind))]
        return bool(self & kinds)


class _SkipCheck(enum.IntFlag):
    """Which checks a call leaves out: none here, graphs are captured with their conditions."""

    SKIP_CHECK_DISABLED = 1
    SKIP_CHECK_DEVICE = 2
    SKIP_CHECK_BUILD_GRADIENT = 4
    SKIP_CHECK_EXECUTION_AGENT = 8

    def is_set(self, check: _SkipCheck) -> bool:
        """Return whether all of ``check`` is in this one."""
        return check in self

    def is_disabled(self) -> bool:
        """Return whether nothing is left out."""
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

# What an `except` of the old names is to catch is what Steep raises.
ORTModuleFallbackException = Error
ORTModuleInitException = ModelError
ORTModuleDeviceException = ProviderError
ORTModuleTorchModelException = ModelError
ORTModuleONNXModelException = ModelError
ORTModuleIOError = DataError


def wrap_exception(new_exception: type[Exception], raised_exception: Exception) -> Exception:
    """Return an exception of another type that was caused by this one."""
    try:
        raise new_exception(str(raised_exception)) from raised_exception
    except new_exception as error:
        return error
