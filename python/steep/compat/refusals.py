"""The exception for names of ONNX Runtime that Steep does not have."""

from __future__ import annotations

from steep.errors import Error


class NotOffered(Error, ImportError):
    """Steep does not have this name under ``steep.compat``; the remedy names a replacement."""
