"""ONNX Runtime Training's names, for scripts that import them: opt-in.

``python -m steep.compat script.py`` runs a script under them, and ``steep.compat.install()`` this
process. In a checkout, ``pip install ./packaging/steep-compat`` makes every process of an
environment do so. From then on ``onnxruntime`` and ``torch_ort`` are Steep's. An import hook serves
them: no file of another package is touched, and ``steep.compat.stock`` is the ``onnxruntime`` that
is installed, if one is.

docs/migration.md lists every name, and what to write in its place; docs/environment.md the
environment variables.
"""

from __future__ import annotations

from steep.compat.import_hook.finder import install, uninstall
from steep.compat.refusals import NotOffered

__all__ = ["NotOffered", "install", "uninstall"]
