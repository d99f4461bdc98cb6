"""What Python calls of the kernels, compiled or interpreted, with a cache that cannot go stale.

An *entry* is a kernel that Python calls. What it calls, and what that calls, is compiled with it: nothing
else says which functions are kernels. A kernel inlines constants and callees from other files of this
package (every offset in `layout`), so compiled kernels are stamped with a digest of all sources in
`simpler_ref/jit`: a change in any of them has all kernels compiled again, together (`compiler`).

What is compiled is object code for any processor of this kind of machine: functions that take the address
of words and return a word. They refer to the C library and to nothing of Python or numba, so one file
serves all versions of both. `src/entry.c` calls them.

           decorators here         compiler                 cache, package            here
    source ───────────────▶ entry ──────────▶ object code ─────────────────▶ loaded ──────▶ bound entry
                                  numba, LLVM               checked by key   llvmlite       entry.c

A file has the SHA-256 of its key and its contents, then the contents. The key is all that the machine
code depends on. A file that is truncated, altered or of another key is ignored: the kernels are compiled
and written again. Those that cannot be written are used from memory. The files are in a folder of the
user, not in the package. They are machine code that this process will run, so a folder or a file that
others can write is not used.

Who finds all kernels compiled does not import numba. With ``NUMBA_DISABLE_JIT=1`` an entry is the
function itself.

Rule     SPEED-KEEP-1, SPEED-KEEP-2, SPEED-KEEP-7
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import logging
import os
import pickle
import platform
import stat
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

FAIL_POINTS: bool = os.environ.get("SIMPLER_REF_FAIL_POINTS", "") == "1"
"""True in tests that let processes die at fail points; see `fail_points`."""
INTERPRETED: bool = os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")
"""True when ``NUMBA_DISABLE_JIT=1``: the kernels then run as plain Python."""

WORDS, BYTES, INT = "w", "b", "i"
"""What an entry takes: an array of words; bytes, which it reads as words, at the end; an integer."""

SHARED: list[Entry] = []
"""Kernels of the first part that the second one calls by their symbols; see `compiler`."""
LONGEST_S = 600.0
"""How long a process may compile."""
_FIRST_PART = ("journal", "mailbox", "schedule", "serve")
"""Modules whose entries, about half of all code, are the first part."""
_HERE = Path(__file__).parent
_LIBRARY = _HERE / "_entry.so"
_DIGEST = hashlib.sha256().digest_size
_HEAD_SIZE = object.__basicsize__
_engines: list[Any] = []  # which the loaded code belongs to
ROOM = 64 << 20
"""Most bytes in the folder, a hundred versions of all kernels; the least recently used are removed."""
_DAY_S = 86400.0

log = logging.getLogger("simpler_ref")
_told: set[str] = set()


def source_digest() -> str:
    """Return the digest of every source file in this folder, and of what else kernels depend on."""
    h = hashlib.sha256()
    for path in sorted(_HERE.glob("*.py")):
        h.update(path.name.encode())
        h.update(path.read_bytes())
    h.update(f"{platform.machine()} {FAIL_POINTS}".encode())
    return h.hexdigest()


STAMP = "" if INTERPRETED else source_digest()


def shared(func: Any) -> Any:
    """Let kernels of the second part call `func`, of the first one, which takes the memory alone."""
    if not INTERPRETED:
        SHARED.append(Entry(func, (WORDS,), STAMP, nogil=False))
    return func


class Entry:
    """A kernel that Python calls."""

    def __init__(
        self, func: Callable[..., Any], signature: tuple[str, ...], stamp: str, nogil: bool
    ) -> None:
        self.py_func = func
        self.entry_signature = signature
        self.symbol = f"{func.__module__}.{func.__qualname__}.{''.join(signature)}"
        self.address = 0
        """Of its code, once it is bound: a function that takes the address of words, for C."""
        self.stamp = stamp
        self._nogil = nogil

    def bind(self, address: int) -> Any:
        self.address = address
        kinds = "".join(self.entry_signature).encode() + b"\0"
        words = address, self._nogil, _HEAD_SIZE, id(np.ndarray), id(np.dtype(np.int64))
        return _library().simpler_ref_entry(struct.pack("<5q", *words) + kinds)


@functools.cache
def _library() -> ctypes.PyDLL:
    library = ctypes.PyDLL(str(_LIBRARY))
    library.simpler_ref_entry.restype = ctypes.py_object
    library.simpler_ref_entry.argtypes = [ctypes.py_object]
    _require_numpy()
    return library


def _require_numpy() -> None:
    """Raise RuntimeError unless entry.c reads this numpy's arrays."""
    array = np.arange(6)[::2]
    found = struct.unpack("<qixxxxqqqq", ctypes.string_at(id(array) + _HEAD_SIZE, 48))
    data, dims, shape, strides, _, dtype = found
    first = [ctypes.c_ssize_t.from_address(where).value for where in (shape, strides)]
    wanted = array.ctypes.data, 1, [3, 16], id(np.dtype(np.int64)), id(np.ndarray)
    kind = ctypes.c_ssize_t.from_address(id(array) + _HEAD_SIZE - 8).value
    if (data, dims, first, dtype, kind) != wanted:
        raise RuntimeError(f"numpy {np.__version__} has other arrays than simpler_ref knows")


# ---------------------------------------------------------------- files
def _tell(what: str, text: str) -> None:
    """Log a warning once in a process and those forked from it afterwards."""
    if what not in _told:
        _told.add(what)
        log.warning(text)


def cache_folder() -> Path:
    """Return the folder of compiled kernels, which need not exist: below ``~/.cache``.

    ``XDG_CACHE_HOME`` names another folder than ``~/.cache``. FileNotFoundError: the user has no home.
    """
    root = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not root.is_absolute():
        home = Path(os.path.expanduser("~"))
        if not home.is_absolute() or not home.is_dir():
            raise FileNotFoundError(f"user {os.geteuid()} has no home")
        root = home / ".cache"
    return root / "simpler_ref" / "kernels"


def _require_own(path: Path, found: os.stat_result) -> None:
    """Refuse a file that another user owns or can write."""
    if found.st_uid != os.geteuid():
        raise PermissionError(f"{path} belongs to user {found.st_uid}, not to {os.geteuid()}")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(f"others can write {path}: run chmod go-w {path}")


def _own_folder() -> Path:
    found = cache_folder()
    _require_own(found, found.stat())
    return found


def _open_file(path: str, flags: int) -> int:
    """Open a file without waiting for the other end if it is a pipe."""
    return os.open(path, flags | os.O_NONBLOCK)


def read_cached(name: str) -> bytes:
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


def write_cached(name: str, contents: bytes) -> None:
    cache_folder().mkdir(mode=0o700, parents=True, exist_ok=True)
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


def _make_room(path: Path, nbytes: int) -> None:
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


# ---------------------------------------------------------------- entries that are compiled together
class Compiled:
    """Entries that are compiled together, and kept on disk in one file.

    What LLVM does with a kernel, it does once, although many entries call it.
    """

    def __init__(self, entries: Sequence[Entry], in_two: bool = False) -> None:
        self._entries = entries
        self._in_two = in_two
        self._key = hashlib.sha256(repr([(e.symbol, e.stamp) for e in entries]).encode()).digest()
        self.name = f"kernels-{self._key.hex()[:20]}.nbc"

    def read(self) -> bytes | None:
        """Return the code that came with the package or is on disk; None if there is none."""
        with contextlib.suppress(OSError):
            path = _HERE / self.name
            if code := self._checked(path, path.read_bytes()):
                return code
        with contextlib.suppress(OSError):
            return self._checked(cache_folder() / self.name, read_cached(self.name))
        return None

    def _checked(self, path: Path, contents: bytes) -> bytes | None:
        digest, code = contents[:_DIGEST], contents[_DIGEST:]
        if digest == hashlib.sha256(self._key + code).digest():
            return code
        _tell("damaged", f"{path} is damaged; what is damaged is compiled again")
        return None

    def compile(self) -> bytes:
        parts = compile_apart() if self._in_two and len(os.sched_getaffinity(0)) > 1 else None
        if parts is None:
            from . import compiler

            parts = [compiler.compile_part(self._entries)]
        code = pickle.dumps(parts)
        try:
            write_cached(self.name, self._file(code))
        except (OSError, MemoryError) as error:
            reason = f"{type(error).__name__}: {error}"
            _tell(
                "not kept",
                f"compiled kernels cannot be kept, so every start compiles them again ({reason}); "
                "name a folder of your own in XDG_CACHE_HOME",
            )
        return code

    def pack(self) -> Path:
        """Put the code into the package, where `bind` finds it first; return the file."""
        contents = self._file(self.read() or self.compile())
        for old in _HERE.glob("kernels-*.nbc"):
            old.unlink()
        path = _HERE / self.name
        path.write_bytes(contents)
        return path

    def _file(self, code: bytes) -> bytes:
        return hashlib.sha256(self._key + code).digest() + code

    def bind(self, code: bytes) -> list[Any]:
        from llvmlite import binding

        binding.initialize_native_target()
        binding.initialize_native_asmprinter()
        machine = binding.Target.from_default_triple().create_target_machine(jit=True)
        engine = binding.create_mcjit_compiler(binding.parse_assembly(""), machine)
        for part in pickle.loads(code):
            engine.add_object_file(binding.ObjectFileRef.from_data(part))
        engine.finalize_object()
        _engines.append(engine)
        addresses = [engine.get_function_address(one.symbol) for one in self._entries]
        assert all(addresses), "each entry is in the code"
        return [one.bind(address) for one, address in zip(self._entries, addresses, strict=True)]


def compile_apart() -> list[bytes] | None:
    """Have two processes compile the parts of all entries; return their code, None if one has failed."""
    import subprocess

    path = os.pathsep.join([str(_HERE.parents[1]), *sys.path])
    processes = []
    try:
        for number in range(2):
            program = "from simpler_ref.jit import entries, kernel; kernel.print_entries"
            one = subprocess.Popen(
                [sys.executable, "-c", f"{program}(entries.found().values(), {number})"],
                env={**os.environ, "PYTHONPATH": path},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            processes.append(one)
        found = [one.communicate(timeout=LONGEST_S)[0] for one in processes]
        return None if any(one.returncode for one in processes) else found
    except (OSError, subprocess.TimeoutExpired):
        return None
    finally:
        for one in processes:
            one.kill()
            one.communicate()


def print_entries(entries: Iterable[Entry], number: int) -> None:
    """Compile a part of some entries, and print the code; see `compile_apart`."""
    from . import compiler

    parts: list[list[Entry]] = [list(SHARED), []]
    for one in entries:
        parts[one.py_func.__module__.rpartition(".")[2] not in _FIRST_PART].append(one)
    code = compiler.compile_part(parts[number], SHARED if number else ())
    sys.stdout.buffer.write(code)


def entry(*signature: str, nogil: bool, stamp: str = STAMP) -> Callable[[Any], Any]:
    """Make a kernel that Python calls: compiled for `signature` only, cached on disk.

    `nogil=False` is for short, non-blocking entries, where releasing the GIL would cost more than the
    work; entries that may wait have `nogil=True`. `bind` compiles, not the import. `stamp` is the digest
    of the sources.
    """

    def wrap(func: Any) -> Any:
        if not INTERPRETED:
            return Entry(func, signature, stamp, nogil)

        @functools.wraps(func)
        def call(*args: Any) -> Any:
            return func(*args[:-1], np.frombuffer(args[-1], np.int64, len(args[-1]) // 8))

        made: Any = call if BYTES in signature else func
        made.entry_signature = signature
        return made

    return wrap


def entry_of(func: Any, *signature: str, nogil: bool) -> Any:
    return entry(*signature, nogil=nogil)(func)


def bind(
    functions: Sequence[Any], announce: Callable[[], None] = lambda: None, in_two: bool = False
) -> list[Any]:
    """Return what Python calls for some entries, compiled `in_two` parts if they are those of `entries`.

    They are read from disk, or compiled together, after `announce` was called. Arguments of other types
    than declared are refused with a TypeError.
    """
    if INTERPRETED:
        return list(functions)
    compiled = Compiled(functions, in_two)
    code = compiled.read()
    if code is None:
        announce()
        code = compiled.compile()
    return compiled.bind(code)
