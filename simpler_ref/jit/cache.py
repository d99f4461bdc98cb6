"""Compiled kernels on disk: a file each, checked before any of it is unpickled or run.

A file has the SHA-256 of its key and its contents, then the contents. The key is all that the machine
code depends on: sources, versions, processor, function and signature. A file that is truncated, altered
or of another key is ignored: the kernel is compiled and written again. A kernel that cannot be written
is used from memory.

The files are in a folder of the user, not in the package. They are machine code that this process will
run, so a folder or a file that others can write is not used.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import pickle
import stat
import sys
import tempfile
import time
from pathlib import Path

from llvmlite import binding
from numba.core.compiler import CompileResult
from numba.core.registry import cpu_target
from numba.core.runtime import rtsys
from numba.core.serialize import dumps

ROOM = 256 << 20
"""Most bytes in the folder, some thirty versions of all kernels; the least recently used are removed."""
_DIGEST = hashlib.sha256().digest_size
_DAY_S = 86400.0

log = logging.getLogger("simpler_ref")
_told: set[str] = set()


def _tell(what, text):
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


def _read(name):
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


def _write(name, contents):
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


def _without_ir(library, fndesc, *others):
    """Return the parts of a compiled function with the names of its symbols instead of their IR.

    LLVM's IR is twice as long as the machine code, would be read at each start and stay in memory, and
    would serve only to inline the function into callers compiled later. They call its address.
    """
    name, kind, (code, _) = library
    symbols = (
        fndesc.llvm_func_name,
        fndesc.llvm_cpython_wrapper_name,
        fndesc.llvm_cfunc_wrapper_name,
    )
    lines = [f'@"{symbol}" = available_externally global i8 0' for symbol in symbols]
    named = binding.parse_assembly("\n".join(lines)).as_bitcode()
    return (name, kind, (code, named)), fndesc, *others


class KernelCache:
    """The place on disk of a function compiled for one signature.

    Rule     SPEED-KEEP-1, -2, -7
    """

    def __init__(self, function, signature, stamp):
        """Keep `function` as long as `stamp`, the digest of its sources, is the same."""
        self._function = function
        self._signature = signature
        self._stamp = stamp
        self._found = None

    def file(self):
        """Return the name of the file and its key."""
        function = self._function
        name = f"{function.__module__.rpartition('.')[2]}.{function.__qualname__}"
        parts = (
            self._stamp,
            sys.implementation.cache_tag,
            cpu_target.target_context.codegen().magic_tuple(),
            function.__module__,
            function.__qualname__,
            function.__code__.co_code,
            self._signature,
        )
        key = hashlib.sha256(repr(parts).encode()).digest()
        return f"{name[:100]}-{key.hex()[:20]}.nbc", key

    def holds(self):
        """Read the file; say whether it exists and is intact."""
        if self._found is None:
            name, key = self.file()
            with contextlib.suppress(OSError):
                contents = _read(name)
                digest, payload = contents[:_DIGEST], contents[_DIGEST:]
                if digest == hashlib.sha256(key + payload).digest():
                    self._found = payload
                else:
                    self._tell_damage()
        return self._found is not None

    def _tell_damage(self):
        _tell(
            "damaged", f"{folder() / self.file()[0]} is damaged; what is damaged is compiled again"
        )

    def load(self):
        """Return the compiled function, None if there is none that can be used."""
        if not self.holds():
            return None
        payload, self._found = self._found, None
        context = cpu_target.target_context
        rtsys.initialize(context)  # the functions that wrappers call
        try:
            return CompileResult._rebuild(context, *pickle.loads(payload))
        except Exception:
            self._tell_damage()
            return None

    def save(self, compiled):
        """Write the compiled function, if possible."""
        if compiled.library.has_dynamic_globals:  # addresses of this process
            return
        name, key = self.file()
        try:
            payload = dumps(_without_ir(*compiled._reduce()))
            _write(name, hashlib.sha256(key + payload).digest() + payload)
        except (OSError, MemoryError) as error:
            reason = f"{type(error).__name__}: {error}"
            _tell(
                "not kept",
                f"compiled kernels cannot be kept, so every start compiles them again ({reason}); "
                "name a folder of your own in XDG_CACHE_HOME",
            )
