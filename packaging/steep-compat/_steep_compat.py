"""Lets Steep serve ``onnxruntime`` and ``torch_ort`` in every process of this environment.

steep-compat.pth imports this module when Python starts, so it loads nothing. Steep is imported at
the first use of a name of the two packages. Programs that only check whether a package exists, or
import it without use, pay nothing. Where Steep was uninstalled, it has no effect.
"""

import sys
from importlib.machinery import ModuleSpec

_ROOTS = ("onnxruntime", "torch_ort")


def _is_installed(package):
    from importlib.util import find_spec

    spec = find_spec(package)
    return spec is not None and spec.origin is not None  # None: a folder of that name


class _FirstAsked:
    """Finds the two packages; the first use of one installs Steep's import hook."""

    def find_spec(self, fullname, path=None, target=None):
        """Return the spec of one of the packages, or that of a submodule from Steep's hook."""
        if fullname.partition(".")[0] not in _ROOTS or self not in sys.meta_path:
            return None
        if not _is_installed("steep"):
            return None  # `pip uninstall steep` leaves this module behind
        served = sys.modules.get("steep.compat.import_hook.finder")
        if served is not None and served.FINDER in sys.meta_path:
            return None  # Steep's hook comes first and chose the installed package
        if fullname in _ROOTS:
            return ModuleSpec(fullname, self, origin="steep.compat", is_package=True)
        return self._hook().find_spec(fullname, path, target)

    def create_module(self, spec):
        """Let Python create the module."""

    def exec_module(self, module):
        """Give the package a `__getattr__` that loads Steep."""

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
