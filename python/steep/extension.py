"""Loads the compiled part, ``steep._steep``, and checks that its version is that of these files.

The import of this module does the check: it raises ``InstallationError`` before anything else of
Steep is imported, or ``DataError`` if a variable such as ``STEEP_MAX_BYTES`` cannot be read.
"""

from __future__ import annotations

import importlib
import sys
import sysconfig
from pathlib import Path

from steep.errors import DataError, InstallationError

VERSION = "0.1.0"

PACKAGE = Path(__file__).resolve().parent
_PYTHON = f"Python {sys.version_info[0]}.{sys.version_info[1]}"


def _remedy() -> str:
    checkout = PACKAGE.parents[1]
    if not (checkout / "CMakeLists.txt").is_file():
        if not PACKAGE.is_dir():
            return "a wheel is not imported as it is: pip install FILE"
        return f"install the wheel for {_PYTHON} again: pip install --force-reinstall FILE"
    from importlib.metadata import distributions

    build = f"make -C {checkout} build"
    for distribution in distributions(name="steep"):
        folder = Path(str(distribution.locate_file("steep")))
        if folder.is_dir() and folder.resolve() != PACKAGE:
            return f"{build}; or take {PACKAGE.parent} from PYTHONPATH, to use {folder}"
    return build


def _not_found() -> InstallationError:
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    others = ", ".join(sorted(path.name for path in PACKAGE.glob("_steep.*.so")))
    return InstallationError(
        "The compiled part of Steep is missing."
        if not others
        else "The compiled part of Steep is for another Python.",
        node=str(PACKAGE),
        expected=f"_steep{suffix} or _steep.abi3.so",
        received=others or "none",
        remedy=_remedy(),
    )


def _not_loaded(reason: str) -> InstallationError:
    what, remedy = "The compiled part of Steep cannot be loaded.", _remedy()
    if "cannot open shared object file" in reason:
        what = "A shared library that Steep needs is missing."
    elif "undefined symbol" in reason:
        what = "A shared library that Steep needs is another version than it was built with."
        if others := _loaded_before():
            remedy = f"import steep first, or do not load {', '.join(others)} in this process"
    elif "version `" in reason:  # GLIBC_2.34, GLIBCXX_3.4.29, …
        what = "A library of this system is older than the one that Steep was built with."
        remedy = "build Steep on this system: pip install . in a checkout"
    return InstallationError(what, node=str(PACKAGE), received=reason, remedy=remedy)


def _loaded_before() -> list[str]:
    """Return the libraries of this process that have the names of ours and lie elsewhere.

    The loader takes a library that is loaded already for another one of the same name.
    """
    ours = PACKAGE.parent / "steep.libs"
    names = {path.name for path in ours.glob("*.so*")}
    try:
        maps = Path("/proc/self/maps").read_text(errors="replace").splitlines()
    except OSError:
        return []
    paths = {Path(line.split(maxsplit=5)[-1]) for line in maps if ".so" in line}
    return sorted(str(p) for p in paths if p.name in names and p.parent != ours)


def _not_read(reason: str) -> DataError:
    """Convert the extension's message about an environment variable to a DataError."""
    what, *lines = reason.splitlines()
    parts = dict(line.strip().split(":", 1) for line in lines if ":" in line)
    words = [parts.get(name, "").strip() for name in ("name", "expected", "received", "remedy")]
    node, expected, received, remedy = words
    return DataError(what, node=node, expected=expected, received=received, remedy=remedy)


def require(version: str) -> None:
    """Load the compiled part and compare its version.

    Args:
        version: the version that it must have.

    Raises:
        DataError: an environment variable that it reads has an invalid value.
        InstallationError: it is missing, for another Python, cannot be loaded, or has another
            version.
    """
    try:
        extension = importlib.import_module("steep._steep")
    except ModuleNotFoundError as error:
        if error.name != "steep._steep":
            raise
        raise _not_found() from None
    except ImportError as error:
        if str(error).startswith("STEEP_"):  # it was found, but this variable is not valid
            raise _not_read(str(error)) from None
        raise _not_loaded(str(error)) from error
    received_version = getattr(extension, "__version__", "one that does not say")
    if received_version != version:
        raise InstallationError(
            "The compiled part of Steep and its Python files are of different versions.",
            node=str(extension.__file__),
            expected=f"version {version}",
            received=f"version {received_version}",
            remedy=_remedy(),
        )


require(VERSION)
