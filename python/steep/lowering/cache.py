"""A cache of lowered graphs on disk, for later processes.

An entry is bytes under a key, a digest of everything that the bytes depend on. An entry is read
whole and checked before use: a file that is damaged, truncated, of another format or not a regular
file counts as absent, and is written anew. Files appear under their names complete or not at all,
so any number of processes may share a folder. Disk errors never end the run. A file that another
user owns or may write is not used, since a graph decides what is computed.

``STEEP_CACHE`` names the folder, or switches the cache off ("off"); by default it is ``steep`` in
``$XDG_CACHE_HOME`` or ``~/.cache``. ``STEEP_CACHE_MIB`` limits its size (256); the least recently
used entries are deleted first. The folder may be deleted at any time. An invalid value of either
variable is logged once, and the run continues: without a cache, or with the default size.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import logging
import math
import os
import stat
import sys
import tempfile
import time
from pathlib import Path

log = logging.getLogger("steep")

_MAGIC = b"steep cache 1\n"
_SUFFIX = ".entry"
_TEMPORARY = ".writing"
_DEFAULT_MIB = 256
_ABANDONED_SECONDS = 3600


_PACKAGES = ("torch", "onnx", "onnxscript", "onnx_ir", "sympy", "numpy")


@functools.cache
def versions() -> str:
    """Return the versions that entries depend on: packages, Python, and this package's files."""
    package = Path(__file__).parents[1]
    own = b"".join(path.read_bytes() for path in sorted(package.rglob("*.py")))
    packages = [f"{n} {importlib.metadata.version(n)}" for n in _PACKAGES]
    return f"{packages} {sys.version_info[:2]} {sys.byteorder} {hashlib.sha256(own).hexdigest()}"


def folder() -> Path | None:
    """Return the folder of the entries; None if the cache is off or there is no home."""
    setting = os.environ.get("STEEP_CACHE")
    try:
        if setting is not None:
            return None if setting.lower() in ("", "0", "off") else Path(setting).expanduser()
        base = os.environ.get("XDG_CACHE_HOME")
        if base and Path(base).is_absolute():  # the XDG specification ignores others
            return Path(base) / "steep"
        return Path.home() / ".cache" / "steep"
    except RuntimeError as e:  # the user is unknown or has no home
        _say_once(f"there is no cache: {e}")
        return None


def load(key: str) -> bytes | None:
    """Return the bytes stored under a key (hexadecimal digits), or None."""
    path = _path(key)
    if path is None:
        return None
    content = _read(path)
    if content is None:
        return None
    digest, payload = content[len(_MAGIC) :][:32], content[len(_MAGIC) + 32 :]
    if not content.startswith(_MAGIC) or hashlib.sha256(payload).digest() != digest:
        log.warning("ignoring a damaged file of the cache: %s", path)
        return None
    with contextlib.suppress(OSError):
        os.utime(path, follow_symlinks=False)  # the time of use decides what is deleted first
    return payload


def store(key: str, payload: bytes) -> bool:
    """Store bytes under a key; return False if the folder cannot be written."""
    path = _path(key)
    if path is None:
        return False
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _ours(path.parent, path.parent.stat()):
            return False
        handle, temporary = tempfile.mkstemp(_TEMPORARY, dir=path.parent)
        try:
            with open(handle, "wb") as file:
                file.write(_MAGIC + hashlib.sha256(payload).digest() + payload)
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        _evict(path)
    except (OSError, ValueError) as e:  # ValueError: a name with a zero byte
        log.info("nothing was cached: %s", e)
        return False
    return True


def _path(key: str) -> Path | None:
    base = folder()
    return None if base is None else base / (key + _SUFFIX)


def _read(path: Path) -> bytes | None:
    """Return the content of a regular file in a folder of this user; None otherwise."""
    try:
        base = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            if not _ours(path.parent, os.fstat(base)):
                return None
            # O_NONBLOCK: opening a FIFO must not wait for its other end.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
            handle = os.open(path.name, flags, dir_fd=base)
        finally:
            os.close(base)
        with open(handle, "rb") as file:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode) or status.st_size > _limit():
                log.warning("ignoring a path that is not a file of the cache: %s", path)
                return None
            return file.read(status.st_size) if _ours(path, status) else None
    except (OSError, ValueError):
        return None


def _ours(path: Path, status: os.stat_result) -> bool:
    """Return whether a path belongs to this user, and nobody else may write to it."""
    if status.st_uid != os.geteuid():
        _say_once(f"the cache does not use {path}: it belongs to user {status.st_uid}")
    elif status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        _say_once(
            f"the cache does not use {path}: other users may write to it; chmod go-w corrects that"
        )
    else:
        return True
    return False


@functools.cache
def _say_once(what: str) -> None:
    log.warning("%s", what)


def _limit() -> float:
    """Return the most bytes of all entries together; inf for no limit."""
    setting = os.environ.get("STEEP_CACHE_MIB", "")
    try:
        mib = float(setting or _DEFAULT_MIB)
    except ValueError:
        mib = math.nan
    if not mib >= 0:
        _say_once(
            f"STEEP_CACHE_MIB is not a number of MiB: {setting!r}; {_DEFAULT_MIB} are taken. "
            "Correct the variable, or unset it"
        )
        mib = _DEFAULT_MIB
    return mib * 2**20


def _evict(newest: Path) -> None:
    """Delete the least recently used entries above the limit, and leftovers of dead processes."""
    entries = []
    for path in newest.parent.iterdir():
        with contextlib.suppress(OSError):  # another process may delete it too
            status = path.lstat()
            if path.suffix == _SUFFIX:
                entries.append((path == newest, status.st_mtime, status.st_size, path))
            elif path.suffix == _TEMPORARY and time.time() - status.st_mtime > _ABANDONED_SECONDS:
                path.unlink()
    excess = sum(size for _, _, size, _ in entries) - _limit()
    for _, _, size, path in sorted(entries):
        if excess <= 0:
            return
        with contextlib.suppress(OSError):
            path.unlink()
        excess -= size
