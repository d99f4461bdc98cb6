"""The loops that run inside a worker process."""

from __future__ import annotations

import inspect
import os
import signal
import struct
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from .engine import Engine
from .jit import layout as L
from .task_interface import Array, ContinuousTensor, TaskArgs, TensorArgType

_COUNTS = struct.Struct("<ii")


class ReceivedArgs(TaskArgs):
    """The arguments of the running task, read where the mailbox has them.

    They are valid during the call: what a callable wants to keep, it copies.
    """

    __slots__ = ("_box",)

    _box: Any

    def _counts(self) -> tuple[int, int]:
        if self._box is None:
            raise RuntimeError(
                "these TaskArgs belong to a task that has ended; copy what you need while it runs"
            )
        tensors, scalars = _COUNTS.unpack_from(self._box, L.MAILBOX_OFF_ARGS)
        used = 8 + tensors * 40 + scalars * 8
        if tensors < 0 or scalars < 0 or used > L.MAILBOX_ARGS_CAPACITY:
            raise RuntimeError(
                f"the mailbox holds {tensors} tensors and {scalars} scalars, {used} bytes, but has "
                f"room for {L.MAILBOX_ARGS_CAPACITY}"
            )
        return tensors, scalars

    def tensor(self, i: int) -> ContinuousTensor:
        """Return tensor `i`."""
        tensors, _ = self._counts()
        if not 0 <= i < tensors:
            raise IndexError(f"tensor index {i} is out of range: there are {tensors}")
        start = L.MAILBOX_OFF_ARGS + 8 + 40 * i
        return ContinuousTensor._from_wire(bytes(self._box[start : start + 40]))

    def _scalar_bytes(self, i: int) -> bytes:
        tensors, scalars = self._counts()
        if not 0 <= i < scalars:
            raise IndexError(f"scalar index {i} is out of range: there are {scalars}")
        start = L.MAILBOX_OFF_ARGS + 8 + 40 * tensors + 8 * i
        return bytes(self._box[start : start + 8])

    def scalar(self, i: int) -> int:
        """Return scalar `i` as an unsigned 64-bit integer."""
        return int.from_bytes(self._scalar_bytes(i), "little")

    def scalar_float(self, i: int) -> float:
        """Return scalar `i`, which was added as a Python float."""
        return float(struct.unpack("<d", self._scalar_bytes(i))[0])

    def tag(self, i: int) -> TensorArgType:
        """Refuse: there are no tags here."""
        raise RuntimeError("tags are read by submit and do not travel to the worker")

    def tensor_count(self) -> int:
        """Return the number of tensors."""
        return self._counts()[0]

    def scalar_count(self) -> int:
        """Return the number of scalars."""
        return self._counts()[1]

    def __len__(self) -> int:
        return sum(self._counts())

    def _refuse(self, *_: Any, **__: Any) -> None:
        raise RuntimeError("the arguments of a running task cannot be changed")

    add_tensor: Any = _refuse
    add_scalar: Any = _refuse
    set_tag: Any = _refuse
    clear: Any = _refuse


def as_leaf(target: Callable[..., Any]) -> Callable[[TaskArgs], Any]:
    """Return `target` in the form the loop calls: one with no parameters is called without any."""
    try:
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):
        return target
    if any(p.kind is not p.KEYWORD_ONLY and p.kind is not p.VAR_KEYWORD for p in parameters):
        return target
    return lambda _args: target()


class LocalCallables:
    """A worker's own table: digest → private slot → callable."""

    def __init__(self, snapshot: dict[bytes, Callable[..., Any]]) -> None:
        self.slots = {digest: slot for slot, digest in enumerate(snapshot)}
        self.leaves = [as_leaf(target) for target in snapshot.values()]


def become_worker(inherited: Sequence[int]) -> None:
    """Make a freshly forked process a worker: no Ctrl-C, no stdin, no descriptors of others."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for fd in inherited:
        os.close(fd)
    null = os.open(os.devnull, os.O_RDONLY)
    if null != 0:
        os.dup2(null, 0)
        os.close(null)


def sub_worker_loop(engine: Engine, worker: int, callables: LocalCallables) -> None:
    """Serve one mailbox until told to stop: decode, resolve the digest, call, answer."""
    mem, kernels = engine.mem, engine.kernels
    start = 8 * (int(mem[L.A_WORKERS]) + worker * L.WORKER_WORDS)
    octets = mem.view(np.uint8)
    box = octets[start + 8 * L.W_MAILBOX : start + 8 * L.W_TRACE].data
    trace = octets[start + 8 * L.W_TRACE : start + 8 * L.WORKER_WORDS].data
    receive = kernels.finish_and_receive
    leaves = callables.leaves
    new = ReceivedArgs.__new__
    kernels.report_ready(mem, worker)
    local = L.PARK
    error = 0
    while True:
        if local < 0:
            local = _next_local(kernels, mem, worker, box, callables, local)
            if local == L.STOP:
                return
        args = new(ReceivedArgs)
        args._box = box
        try:
            if local >= 0:
                leaves[local](args)
            else:
                raise KeyError(f"digest {_digest(box).hex()} is not installed in this worker")
            error = 0
        except BaseException as exception:
            error = 1
            write_error(box, trace, exception)
        args._box = None
        local = receive(mem, worker, error)


def _next_local(
    kernels: Any, mem: Array, worker: int, box: memoryview, callables: LocalCallables, local: int
) -> int:
    """Return the local slot of the next task, STOP, or RESOLVE for a digest nobody knows."""
    if local == L.PARK:
        flush_output()
        local = int(kernels.park_and_receive(mem, worker))
    if local == L.STOP:
        flush_output()
    if local == L.RESOLVE:
        found = callables.slots.get(_digest(box))
        if found is not None:
            kernels.remember(mem, worker, found)
            return found
    return local


def _digest(box: memoryview) -> bytes:
    return bytes(box[L.MAILBOX_OFF_DIGEST : L.MAILBOX_OFF_DIGEST + L.CALLABLE_HASH_DIGEST_BYTES])


def flush_output() -> None:
    """Write out what Python has buffered for the terminal, if there is one."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # closed, absent, or somebody's own object
            stream.flush()


def cut_utf8(text: str, limit: int) -> bytes:
    """Return at most `limit` bytes of UTF-8, cut between characters."""
    raw = text.encode(errors="replace")
    return raw if len(raw) <= limit else raw[:limit].decode(errors="ignore").encode()


def write_error(box: memoryview, trace: memoryview, exception: BaseException) -> None:
    """Put an exception's type and text into the mailbox and its traceback into the side region."""
    try:
        words = f"{type(exception).__name__}: {exception}"
    except BaseException as broken:  # a __str__ that raises
        words = f"{type(exception).__name__}: (its text cannot be shown: {type(broken).__name__})"
    message = cut_utf8(words.replace("\0", "\\0"), L.MAILBOX_ERROR_MSG_SIZE - 1)
    at = L.MAILBOX_OFF_ERROR_MSG
    box[at : at + len(message) + 1] = message + b"\0"
    try:
        lines = "".join(traceback.format_exception(exception))
    except BaseException:
        lines = words
    raw = lines.encode(errors="replace")
    if len(raw) > L.TRACE_CAPACITY:  # the frames stand first, the deepest one and the text last
        half = L.TRACE_CAPACITY // 2 - 16
        raw = cut_utf8(lines, half) + b"\n ... (cut) ...\n" + raw[-half:]
    raw = raw.decode(errors="ignore").encode()
    trace[:8] = len(raw).to_bytes(8, "little")
    trace[8 : 8 + len(raw)] = raw
