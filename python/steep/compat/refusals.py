"""What is raised for a name of ONNX Runtime that Steep does not have."""

from __future__ import annotations

from steep.errors import Error


class NotOffered(Error, ImportError):
    """A name that Steep does not have under ``steep.compat``; the remedy says what it has."""
