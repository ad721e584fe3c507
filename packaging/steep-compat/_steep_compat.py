"""Lets Steep serve ``onnxruntime`` and ``torch_ort`` in every process of this environment.

steep-compat.pth imports this when Python starts, so it loads nothing: Steep is imported when
something of the two packages is first used. Programs that only look whether there is one, or import
it and go on without, pay nothing.
"""

import sys
from importlib.machinery import ModuleSpec

_ROOTS = ("onnxruntime", "torch_ort")


class _FirstAsked:
    """Finds the two packages; the first use of one installs the hook that has their names."""

    def find_spec(self, fullname, path=None, target=None):
        """Return the spec of one of the packages, or what Steep's own hook has for a part of it."""
        if fullname.partition(".")[0] not in _ROOTS or self not in sys.meta_path:
            return None
        served = sys.modules.get("steep.compat.import_hook.finder")
        if served is not None and served.FINDER in sys.meta_path:
            return None  # it comes first, and was told to let the installed package be found
        if fullname in _ROOTS:
            return ModuleSpec(fullname, self, origin="steep.compat", is_package=True)
        return self._hook().find_spec(fullname, path, target)

    def create_module(self, spec):
        """Leave it to Python."""

    def exec_module(self, module):
        """Give the package a way to its names that loads Steep."""

        def get(name):
            if name.startswith("__") and name not in ("__all__", "__version__"):
                raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
            self._hook()
            return getattr(module, name)

        module.__getattr__ = get

    def _hook(self):
        from steep.compat.import_hook.finder import FINDER, install

        if self in sys.meta_path:
            sys.meta_path.remove(self)
        install()
        return FINDER


sys.meta_path.insert(0, _FirstAsked())
