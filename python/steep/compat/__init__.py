"""ONNX Runtime Training's names, for scripts that import them; they are opt-in.

``python -m steep.compat script.py`` runs a script with these names, and ``steep.compat.install()``
makes them available in this process. In a checkout, ``pip install ./packaging/steep-compat`` does
so for every process of an environment. From then on imports of ``onnxruntime`` and ``torch_ort``
get Steep's modules, by an import hook: no file of another package is changed, and
``steep.compat.stock`` is the ``onnxruntime`` that is installed, if there is one.

docs/migration.md lists every name, and what to write in its place; docs/environment.md the
environment variables.
"""

from __future__ import annotations

from steep.compat.import_hook.finder import install, uninstall
from steep.compat.refusals import NotOffered

__all__ = ["NotOffered", "install", "uninstall"]
