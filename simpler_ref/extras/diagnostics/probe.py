"""Probes: what a worker does around each task while a run's flags ask for it.

It writes the task's tensors into a file, reads counters, and notes both in its journal. A control request
sets a probe before the run and removes it afterwards; without one, tasks run as ever.

Rule     FLAG-DUMP-1, FLAG-DUMP-2, FLAG-DUMP-3, FLAG-PMU-1, FLAG-RUN-6, FLAG-PMU-2
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform
import resource
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from ...engine.view.layouts import Layouts
from ...engine.view.mailbox import MailboxView, ReceivedArgs
from ...jit import layout as L
from ...model.wire import bytes_of, has_layout, layout_number, span_of
from ...trace.recorder import write_all


# ---------------------------------------------------------------- counters
class PerfEvent(NamedTuple):
    """A counter of the processor, by the numbers of ``perf_event_open``."""

    name: str
    kind: int
    config: int


CYCLES = PerfEvent("cycles", 0, 0)
_INSTRUCTIONS = PerfEvent("instructions", 0, 1)
_BRANCHES, _BRANCH_MISSES = PerfEvent("branches", 0, 4), PerfEvent("branch_misses", 0, 5)
_REFERENCES, _MISSES = PerfEvent("cache_references", 0, 2), PerfEvent("cache_misses", 0, 3)
_FRONTEND, _BACKEND = PerfEvent("stalled_frontend", 0, 7), PerfEvent("stalled_backend", 0, 8)
HARDWARE = {
    1: (_INSTRUCTIONS, _BRANCHES, _BRANCH_MISSES),
    2: (_INSTRUCTIONS, _FRONTEND, _BACKEND),
    4: (_REFERENCES, _MISSES, PerfEvent("bus_cycles", 0, 6)),
    5: (PerfEvent("l1d_reads", 3, 0), PerfEvent("l1d_read_misses", 3, 1 << 16)),
    6: (_BRANCH_MISSES, _BACKEND, PerfEvent("context_switches", 1, 3)),
    7: (PerfEvent("dtlb_reads", 3, 3), PerfEvent("dtlb_read_misses", 3, 3 | 1 << 16)),
    8: (PerfEvent("llc_reads", 3, 2), PerfEvent("llc_read_misses", 3, 2 | 1 << 16)),
}
SOFTWARE = (
    *("sw_minor_faults", "sw_major_faults"),
    *("sw_voluntary_switches", "sw_involuntary_switches"),
)
_CALLS = {"x86_64": 298, "aarch64": 241}
_ATTRIBUTES = struct.Struct("<IIQQQQQ")
_SIZE = 112
_USER_ONLY = 1 << 5 | 1 << 6
"""Neither the kernel nor a hypervisor is counted: that needs no rights."""


def _open(event: PerfEvent) -> int:
    """Begin to count for the calling thread; return the descriptor."""
    number = _CALLS.get(platform.machine())
    if number is None:
        raise OSError(f"no counters are known of {platform.machine()}")
    raw = _ATTRIBUTES.pack(event.kind, _SIZE, event.config, 0, 0, 0, _USER_ONLY).ljust(_SIZE, b"\0")
    library = ctypes.CDLL(None, use_errno=True)
    fd = int(library.syscall(number, ctypes.create_string_buffer(raw, _SIZE), 0, -1, -1, 8))
    if fd < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{event.name}: {os.strerror(code)}")
    return fd


def has_hardware(event_type: int) -> bool:
    """Say whether the processor's counters of a type can be read here."""
    try:
        Counters(event_type, True).close()
    except OSError:
        return False
    return True


def names_of(event_type: int, hardware: bool) -> tuple[str, ...]:
    """Return the names of the counters of a type, after the cycles."""
    return tuple(one.name for one in HARDWARE[event_type]) if hardware else SOFTWARE


class Counters:
    """Some counters of the calling thread.

    The first is the cycles; without those of the processor the CPU time, in ns.
    """

    def __init__(self, event_type: int, hardware: bool) -> None:
        self._fds: list[int] = []
        if hardware:
            try:
                for event in (CYCLES, *HARDWARE[event_type]):
                    self._fds.append(_open(event))
            except OSError:
                self.close()
                raise

    def read(self) -> list[int]:
        if self._fds:
            return [int.from_bytes(os.read(fd, 8), "little") for fd in self._fds]
        used = resource.getrusage(resource.RUSAGE_THREAD)
        cpu = time.thread_time_ns()
        return [cpu, used.ru_minflt, used.ru_majflt, used.ru_nvcsw, used.ru_nivcsw]

    def close(self) -> None:
        while self._fds:
            os.close(self._fds.pop())


Leaf = Callable[[ReceivedArgs], Any]
CHUNK = 1 << 24
"""Bytes that are copied at once."""


class Probe:
    """What one worker does around its tasks.

    `asked` has ``dump``: the file for arguments, or None; ``scalars``: whether these are noted, too;
    ``pmu``: the type of events, 0 for none; ``hardware``: whether the processor counts them.
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
                own = L.DUMPED_SCALAR | self._mailbox.member << L.DUMPED_MEMBER
                for i, (raw, kind) in enumerate(args._all_scalars()):
                    value = int.from_bytes(raw, "little", signed=True)
                    self._note(L.NOTED_DUMPED, i | own, number, value, kind)
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
        for index, stages, wire in marks:
            if stages & stage:
                at, nbytes = self._write(wire)
                operand = index | (L.DUMPED_AFTER if stage == L.DUMP_AFTER else 0)
                self._note(L.NOTED_DUMPED, operand, number, at, nbytes)

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
                    write_all(self._file, array.tobytes())
            else:
                for part in self._read(address, bytes_of(wire)):
                    write_all(self._file, part)
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
