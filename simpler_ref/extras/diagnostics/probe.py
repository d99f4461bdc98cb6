"""Probes: what a worker does around each task while a run's flags ask for it.

It writes the task's tensors into a file, reads counters, and notes both in its journal. A control request
sets a probe before the run and removes it afterwards; without one, tasks run as ever.

Rule     FLAG-DUMP-1, FLAG-DUMP-2, FLAG-DUMP-3, FLAG-PMU-1, FLAG-RUN-6
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ...engine.view.layouts import Layouts
from ...engine.view.mailbox import MailboxView, ReceivedArgs
from ...jit import layout as L
from ...model.wire import bytes_of, has_layout, layout_number, span_of
from .counters import Counters

Leaf = Callable[[ReceivedArgs], Any]
CHUNK = 1 << 24
"""Bytes that are copied at once."""


class Probe:
    """What one worker does around its tasks.

    Parameters
    ----------
    mailbox : MailboxView
        The worker's words.
    asked : dict
        ``dump``: the file for arguments, or None; ``scalars``: whether these are noted, too; ``pmu``: the
        type of events, 0 for none; ``hardware``: whether the processor counts them.
    """

    def __init__(self, mailbox: MailboxView, asked: dict[str, Any]) -> None:
        self._mailbox = mailbox
        self._layouts = Layouts(mailbox.engine.mem)
        self._scalars = asked["scalars"]
        self._counters = Counters(asked["pmu"], asked["hardware"]) if asked["pmu"] else None
        self._file = self._memory = -1
        if asked["dump"] is not None:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
            self._file = os.open(os.fsencode(asked["dump"]), flags)
            self._memory = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        """Give everything back."""
        for fd in (self._file, self._memory):
            if fd >= 0:
                os.close(fd)
        self._file = self._memory = -1
        if self._counters is not None:
            self._counters.close()

    def around(self, leaf: Leaf) -> Leaf:
        """Return a leaf that does all this, too."""

        def probed(args: ReceivedArgs) -> Any:
            number = self._mailbox.task_number
            marks = self._mailbox.take_dump_marks()
            self._dump(number, marks, L.DUMP_BEFORE)
            if self._scalars:
                self._note_scalars(number, args)
            with self._counted(number):
                result = leaf(args)
            self._dump(number, marks, L.DUMP_AFTER)
            return result

        return probed

    # ------------------------------------------------------------ counters
    @contextmanager
    def _counted(self, number: int) -> Iterator[None]:
        if self._counters is None:
            yield
            return
        before = self._counters.read()
        try:
            yield
        finally:
            counted = [b - a for a, b in zip(before, self._counters.read(), strict=True)]
            for first in range(0, len(counted), 2):
                pair = [*counted[first : first + 2], 0]
                self._note(L.NOTED_COUNTED, first, number, pair[0], pair[1])

    # ------------------------------------------------------------ arguments
    def _dump(self, number: int, marks: list[tuple[int, int, bytes]], stage: int) -> None:
        """Write the tensors that are due at a stage."""
        for index, stages, wire in marks:
            if stages & stage:
                at, nbytes = self._write(wire)
                operand = index | (L.DUMPED_AFTER if stage == L.DUMP_AFTER else 0)
                self._note(L.NOTED_DUMPED, operand, number, at, nbytes)

    def _note_scalars(self, number: int, args: ReceivedArgs) -> None:
        """Note the scalars."""
        own = L.DUMPED_SCALAR | self._mailbox.member << L.DUMPED_MEMBER
        for i, (raw, kind) in enumerate(args._all_scalars()):
            value = int.from_bytes(raw, "little", signed=True)
            self._note(L.NOTED_DUMPED, i | own, number, value, kind)

    def _note(self, what: int, operand: int, number: int, first: int, second: int) -> None:
        self._mailbox.note(what | operand << 8, number, first, second)

    def _write(self, wire: bytes) -> tuple[int, int]:
        """Append a tensor's elements, row by row; return where they are, and how many bytes.

        What is no memory of this process has no bytes. Several workers append to the file: each locks it.
        """
        address = int.from_bytes(wire[: L.WORD], "little")
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            at = os.lseek(self._file, 0, os.SEEK_END)
            if has_layout(wire):
                dtype, shape, strides = self._layouts.read(layout_number(wire))
                below, extent = span_of((dtype, shape, strides))
                raw = b"".join(self._read(address - below, extent))
                if len(raw) == extent > 0:
                    array = np.ndarray(shape, dtype, raw, below, strides)
                    self._append(array.tobytes())
            else:
                for part in self._read(address, bytes_of(wire)):
                    self._append(part)
            return at, os.lseek(self._file, 0, os.SEEK_END) - at
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def _read(self, address: int, nbytes: int) -> Iterator[bytes]:
        """Yield memory of this process in parts, as far as it is mapped."""
        end = address + nbytes
        while address < end:
            try:
                part = os.pread(self._memory, min(CHUNK, end - address), address)
            except (OSError, OverflowError) as error:
                if getattr(error, "errno", errno.EIO) == errno.EIO:
                    return
                raise
            if not part:
                return
            yield part
            address += len(part)

    def _append(self, octets: bytes) -> None:
        view = memoryview(octets)
        while view:
            view = view[os.write(self._file, view) :]
