"""Counters of the processor for the calling thread, or the system's own where there are none.

Rule     FLAG-PMU-1, FLAG-PMU-2
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import struct
import time
from typing import NamedTuple


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
    """Begin to count for the calling thread; return the descriptor.

    Raises
    ------
    OSError
        Processor or system do not count this.
    """
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
        """Return what they have counted."""
        if self._fds:
            return [int.from_bytes(os.read(fd, 8), "little") for fd in self._fds]
        used = resource.getrusage(resource.RUSAGE_THREAD)
        cpu = time.thread_time_ns()
        return [cpu, used.ru_minflt, used.ru_majflt, used.ru_nvcsw, used.ru_nivcsw]

    def close(self) -> None:
        """Stop counting."""
        while self._fds:
            os.close(self._fds.pop())
