"""Names of onnxscript and of PyTorch's exporter, which are imported when one is first used.

Tracing needs the operators that lowering/ops define, and not their translations: a process that
finds its graphs in the cache imports neither package.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

__all__ = ["evaluator", "exporter", "ir", "opset18"]

if TYPE_CHECKING:
    from onnxscript import evaluator, ir, opset18

    from steep.torch_internals import exporter
else:

    class _Late:
        """An object of another module; reading an attribute of it imports the module."""

        def __init__(self, module: str, name: str) -> None:
            self._module, self._name = module, name

        def __getattr__(self, attribute: str) -> object:
            module = importlib.import_module(self._module)
            return getattr(getattr(module, self._name), attribute)

    evaluator = _Late("onnxscript", "evaluator")
    ir = _Late("onnxscript", "ir")
    opset18 = _Late("onnxscript", "opset18")
    exporter = _Late("steep.torch_internals", "exporter")
