"""The providers on which sessions run: the CPU, and the devices that plug-ins add."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any

from steep import _steep
from steep.errors import ProviderError

log = logging.getLogger("steep")

Providers = Sequence[str | tuple[str, Mapping[str, Any]]]
"""Names, or (name, options) pairs; a node runs on the first one that has a kernel for it."""

_GROUP = "steep.providers"


def register_provider(path: str | os.PathLike[str]) -> str:
    """Load a plug-in for the rest of the process.

    A plug-in is code that runs in this process: load only plug-ins that you trust. A plug-in that
    is installed as a package does not need this call: an entry point of the group
    ``steep.providers`` names its library.

    >>> register_provider("libmirror.so")
    'MirrorExecutionProvider'

    Args:
        path: path of the shared library (docs/providers.md shows how to write one).

    Returns:
        The name of its provider, for ``providers=[...]``.

    Raises:
        ProviderError: the file is not a library or not a plug-in, or is for another version; it
            threw an exception, or reports that it cannot work on this machine. Nothing is loaded.
    """
    return _steep.register_provider(os.fspath(path))


def get_available_providers() -> list[str]:
    """Name the providers that have a device here; "CPUExecutionProvider" is the last.

    The first call loads the plug-ins of installed packages (entry points of the group
    ``steep.providers``). If one cannot be loaded, the logger ``steep`` warns.
    """
    _load_installed()
    return _steep.available_providers()


@functools.cache
def _load_installed() -> None:
    for point in entry_points(group=_GROUP):
        try:
            provider = point.load()
            register_provider(provider() if callable(provider) else provider)
        except Exception as e:  # noqa: BLE001 - foreign code must not break calls
            name = f"{point.name} ({point.value})"
            log.warning("the provider %s cannot be loaded: %s: %s", name, type(e).__name__, e)


def choices_of(providers: Providers | None) -> list[_steep.ProviderChoice]:
    """Return the providers as the engine's options; empty for None.

    As in ONNX Runtime, a provider that is not available is left out with a warning, if another is
    available.

    Raises:
        ProviderError: none of them is available.
        TypeError: an entry is neither a name nor a name with a mapping of options.
    """
    if providers is None:
        return []
    if isinstance(providers, (str, bytes)):
        raise TypeError(f"providers takes a list, such as [{providers!r}], not one name")
    pairs = []
    for entry in providers:
        name, options = (entry, {}) if isinstance(entry, str) else entry
        if not isinstance(name, str) or not isinstance(options, Mapping):
            raise TypeError(f"a provider is a name, or a name and its options, not {entry!r}")
        whole = name if name.endswith("ExecutionProvider") else f"{name}ExecutionProvider"
        pairs.append((whole, {str(key): _text(value) for key, value in options.items()}))
    there = get_available_providers()
    missing = [name for name, _ in pairs if name not in there]
    if len(missing) == len(pairs):
        raise ProviderError(
            "None of the requested providers is available.",
            expected=", ".join(there),
            received=", ".join(missing) or "an empty list",
            remedy="Load its plug-in, steep.register_provider(path), or leave `providers` out.",
        )
    for name in missing:
        log.warning("the provider %s is not available here, only %s", name, ", ".join(there))
    # The CPU has no options: those given for it are meant for other runtimes.
    return [
        _steep.ProviderChoice(name, {} if name == there[-1] else options)
        for name, options in pairs
        if name in there
    ]


def _text(value: object) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)
