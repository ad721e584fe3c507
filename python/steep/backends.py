"""Makes ``torch.compile(module, backend="steep")`` known to PyTorch once Steep is imported.

An installed distribution declares the backend by an entry point. A folder of sources on Python's
path has none, so this module adds one. PyTorch is not imported, and need not be installed.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import os
    from importlib.metadata import Distribution

GROUP, NAME, VALUE = "torch_dynamo_backends", "steep", "steep.module.torch_compile:backend"

_DISTRIBUTION = "steep-sources"  # the installed distribution's name is steep
_REGISTRY = "torch._dynamo.backends.registry"


class _Finder:
    """A finder of one distribution, that of these sources; it finds no modules."""

    def find_spec(self, *_: object) -> None:
        """Return None: other finders find modules."""

    def find_distributions(self, context: object = None) -> list[Distribution]:
        """Return the distribution if all are requested, or this one by its name."""
        if getattr(context, "name", None) not in (None, _DISTRIBUTION):
            return []
        from importlib.metadata import Distribution

        class Sources(Distribution):
            def read_text(self, filename: str) -> str | None:
                return {
                    "METADATA": f"Metadata-Version: 2.1\nName: {_DISTRIBUTION}\nVersion: 0\n",
                    "entry_points.txt": f"[{GROUP}]\n{NAME} = {VALUE}\n",
                }.get(filename)

            def locate_file(self, path: str | os.PathLike[str]) -> Any:
                return path

        return [Sources()]


def announce() -> None:
    """Make PyTorch find the backend by its name, also if it has searched for backends before."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())  # type: ignore[arg-type]
    registry = sys.modules.get(_REGISTRY)
    backends = getattr(registry, "_BACKENDS", None)  # later releases may not have it
    if isinstance(backends, dict) and NAME not in backends:
        from importlib.metadata import EntryPoint

        backends[NAME] = EntryPoint(NAME, VALUE, GROUP)
