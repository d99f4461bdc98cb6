"""Compiled kernels on disk: a file for each unit, checked before any of it is unpickled or run.

A file has the SHA-256 of its key and its contents, then the contents. The key is all that the machine
code depends on: sources, versions, processor, functions and signatures. A file that is truncated,
altered or of another key is ignored: the kernels are compiled and written again. Those that cannot be
written are used from memory.

The files are in a folder of the user, not in the package. They are machine code that this process will
run, so a folder or a file that others can write is not used.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import tempfile
import time
from pathlib import Path

ROOM = 64 << 20
"""Most bytes in the folder, a hundred versions of all kernels; the least recently used are removed."""
_DAY_S = 86400.0

log = logging.getLogger("simpler_ref")
_told: set[str] = set()


def tell(what, text):
    """Log a warning once in a process and those forked from it afterwards."""
    if what not in _told:
        _told.add(what)
        log.warning(text)


def folder() -> Path:
    """Return the folder of compiled kernels, which need not exist: below ``~/.cache``.

    ``XDG_CACHE_HOME`` names another folder than ``~/.cache``.

    Raises
    ------
    FileNotFoundError
        The user has no home directory.
    """
    root = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not root.is_absolute():
        home = Path(os.path.expanduser("~"))
        if not home.is_absolute() or not home.is_dir():
            raise FileNotFoundError(f"user {os.geteuid()} has no home")
        root = home / ".cache"
    return root / "simpler_ref" / "kernels"


def _require_own(path, found):
    """Refuse a file that another user owns or can write."""
    if found.st_uid != os.geteuid():
        raise PermissionError(f"{path} belongs to user {found.st_uid}, not to {os.geteuid()}")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(f"others can write {path}: run chmod go-w {path}")


def _own_folder():
    """Return the folder, which must exist."""
    found = folder()
    _require_own(found, found.stat())
    return found


def _open_file(path, flags):
    """Open a file without waiting for the other end if it is a pipe."""
    return os.open(path, flags | os.O_NONBLOCK)


def read(name):
    """Return the contents of a file, and note that it was used."""
    path = _own_folder() / name
    with open(path, "rb", opener=_open_file) as file:
        found = os.fstat(file.fileno())
        _require_own(path, found)
        if not stat.S_ISREG(found.st_mode):
            raise FileNotFoundError(f"{path} is no file")
        if time.time() - found.st_mtime > _DAY_S:
            with contextlib.suppress(OSError):
                os.utime(file.fileno())
        return file.read()


def write(name, contents):
    """Put a file into the folder atomically."""
    folder().mkdir(mode=0o700, parents=True, exist_ok=True)
    path = _own_folder() / name
    _make_room(path.parent, len(contents))
    descriptor, new = tempfile.mkstemp(dir=path.parent, prefix=f"{name}.")
    try:
        with open(descriptor, "wb") as file:
            file.write(contents)
        os.replace(new, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(new)
        raise


def _make_room(path, nbytes):
    """Remove the least recently used files until there is room for `nbytes` bytes."""
    files = []
    for entry in os.scandir(path):
        with contextlib.suppress(FileNotFoundError):  # another process does the same
            if entry.is_file(follow_symlinks=False):
                found = entry.stat(follow_symlinks=False)
                files.append((found.st_mtime, found.st_size, entry.path))
    excess = sum(size for _, size, _ in files) + nbytes - ROOM
    for _, size, old in sorted(files):
        if excess <= 0:
            break
        with contextlib.suppress(FileNotFoundError):
            os.unlink(old)
        excess -= size
