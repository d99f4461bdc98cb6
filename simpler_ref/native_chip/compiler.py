"""Shared objects from C sources and object code, by the system's C compiler."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from .abi import INCLUDE_DIR
from .errors import KernelCompileError

_FLAGS = ("-shared", "-fPIC", "-O2", "-Wl,--no-undefined")


def compile_kernel(c_source: str, *, extra_flags: Sequence[str] = ()) -> bytes:
    """Return the bytes of a shared object, compiled from C.

    A core kernel defines ``int32_t simpler_kernel(const SimplerCoreArgs *args)``, an orchestration
    function ``int32_t any_name(SimplerDevice *device, const SimplerChipStorageTaskArgs *args)``; both
    include ``simpler_kernel.h``.

    Parameters
    ----------
    c_source : str
        The text of the source.
    extra_flags : Sequence[str]
        More flags for the compiler, ``-lm`` say. ``$CC`` names another compiler than ``cc``.

    Raises
    ------
    KernelCompileError
        The compiler's complaints; or there is none.
    """
    if not isinstance(c_source, str):
        raise TypeError(f"c_source must be a str, got {type(c_source).__name__}")
    return build_shared_object({"kernel.c": c_source.encode()}, extra_flags)


def build_shared_object(files: dict[str, bytes], extra_flags: Sequence[str] = ()) -> bytes:
    """Return the bytes of a shared object made of sources and object files, by name."""
    try:
        with tempfile.TemporaryDirectory(prefix="simpler-kernel-") as folder:
            for name, content in files.items():
                Path(folder, name).write_bytes(content)
            _run_compiler(folder, [*files, *extra_flags])
            return Path(folder, "kernel.so").read_bytes()
    except OSError as error:
        raise KernelCompileError(
            f"the compiler's files cannot be written ({error}): name a folder with room for them in "
            "the environment variable TMPDIR"
        ) from None


def _run_compiler(folder: str, arguments: Sequence[str]) -> None:
    compiler = shlex.split(os.environ.get("CC") or "cc")
    command = [*compiler, *_FLAGS, f"-I{INCLUDE_DIR}", "-o", "kernel.so", *arguments]
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL
        )
    except OSError as error:
        raise KernelCompileError(
            f"the C compiler {compiler[0]!r} cannot be run ({error.strerror}): install one, or "
            "name it in the environment variable CC"
        ) from None
    if done.returncode != 0:
        raise KernelCompileError(
            f"{shlex.join(command)} failed:\n{(done.stderr or done.stdout).strip()}"
        )
