"""Refuses a file of the user that hides a library which Steep needs.

Python looks for modules beside the script first. A file there that has the name of a library, such
as ``onnx.py``, is imported in its place, and what fails later does not name it.
"""

from __future__ import annotations

from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import find_spec
from pathlib import Path

from steep.errors import InstallationError

# A folder that each library has in all releases.
_FOLDERS = {"numpy": "linalg", "onnx": "reference", "onnxscript": "_internal", "torch": "nn"}


def require_not_hidden(library: str) -> None:
    """Check that ``import library`` finds the library, or nothing; it is not imported.

    Raises:
        InstallationError: another file or folder has its name.
    """
    found = _hiding(library, _spec_of(library))
    if found is None:
        return
    raise InstallationError(
        f"What Python finds as {library} is another module.",
        node=library,
        expected=f"the library {library}",
        received=found,
        remedy=f"rename {found}, which hides {library}; where it hides none: pip install {library}",
    )


def _spec_of(library: str) -> ModuleSpec | None:
    try:
        return find_spec(library)
    except ValueError:  # a module in sys.modules that was not imported from anywhere
        return None


def _hiding(library: str, spec: ModuleSpec | None) -> str | None:
    """Return the path of what is found in place of a library; None for the library, or nothing."""
    if spec is None:
        return None
    folders = list(spec.submodule_search_locations or [])
    if spec.has_location and not isinstance(spec.loader, SourceFileLoader):
        return None  # an archive, or a frozen program
    if any(Path(folder, _FOLDERS[library]).is_dir() for folder in folders):
        return None
    return spec.origin or next(iter(folders), None)
