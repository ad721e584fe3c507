"""Lets Steep serve ``onnxruntime`` and ``torch_ort`` in every process of this environment.

steep-compat.pth imports this when Python starts, so it loads nothing: Steep is imported when one of
the two names is first asked for.
"""

import sys


class _FirstAsked:
    """Installs the names when one of them is asked for; then it is in nobody's way."""

    def find_spec(self, fullname, path=None, target=None):
        """Return the spec that Steep's own hook has; None for other packages."""
        if fullname.partition(".")[0] not in ("onnxruntime", "torch_ort"):
            return None
        sys.meta_path.remove(self)
        from steep.compat.finder import FINDER, install

        install()
        return FINDER.find_spec(fullname, path, target)


sys.meta_path.insert(0, _FirstAsked())
