"""The file of a trace: a line about it, then notes of 32 bytes, in chunks of one journal each.

    what          operand   NOTE_TASK   NOTE_TIME   NOTE_VALUE   what follows
    NOTED_CHUNK   journal   notes       when        dropped      so many notes of that journal
    NOTED_TEXT    0         notes       when        bytes        JSON, padded to so many notes
    NOTED_CLOCK   ± ns      0           when        ns ahead     nothing: how a session's clock goes

A file whose program was killed ends within a chunk: what is there is read.

Rule     SEE-FILE-1, -2, -4
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from ..jit import layout as L
from ..system.types import Array
from ..system.values import file_path
from .recorder import MAGIC, VERSION

NOTE = np.dtype([("what", "<i8"), ("task", "<i8"), ("time", "<i8"), ("value", "<i8")])
"""One note, as numpy sees it; `what` has the kind in its low byte, an operand above it."""


class TraceFileError(ValueError):
    """Raised for a file that is no trace, or one of a version that is not known here."""


class TraceFile:
    """A trace as it stands in its file.

    Attributes
    ----------
    path : str
    about : dict
        What the program knew of itself and of the Worker: names of functions, workers, lines.
    journals : dict[int, numpy.ndarray]
        The notes of each journal, of dtype `NOTE`.
    dropped : dict[int, int]
        How many notes had no room in each journal.
    clocks : list of tuple
        Of a session: when, by the parent's clock, how far its clock was ahead, plus or minus what; ns.
    is_whole : bool
        Whether the trace was ended, not cut off.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = file_path("path", path)
        self.about: dict[str, Any] = {}
        self.dropped: dict[int, int] = {}
        self.is_whole = False
        self.clocks: list[tuple[int, int, int]] = []
        octets = self._map()
        end = self._read_head(octets)
        notes = octets[end : end + (len(octets) - end) // NOTE.itemsize * NOTE.itemsize].view(NOTE)
        parts: dict[int, list[Array]] = {}
        at = 0
        while at < len(notes):
            what, count, chunk_time, value = notes[at].item()
            chunk = notes[at + 1 : at + 1 + count]
            at += 1 + count
            if what & 0xFF == L.NOTED_CHUNK:
                parts.setdefault(what >> 8, []).append(chunk)
                self.dropped[what >> 8] = value
                self.is_whole = False
            elif what & 0xFF == L.NOTED_CLOCK and count == 0:
                self.clocks.append((chunk_time, value, what >> 8))
            elif what & 0xFF == L.NOTED_TEXT and len(chunk) == count:
                self._merge(json.loads(chunk.tobytes()[:value]))
                self.is_whole = True
            else:
                break
        self.is_whole = bool(self.about.get("ended", self.is_whole))
        self.journals = {journal: _joined(chunks) for journal, chunks in parts.items()}

    def _map(self) -> Array:
        size = Path(self.path).stat().st_size
        if size == 0:
            raise TraceFileError(f"{self.path} is empty: no trace")
        return np.memmap(self.path, np.uint8, "r")

    def _read_head(self, octets: Array) -> int:
        """Read the line about the program; return the bytes of all that precedes the notes."""
        head = octets[: 1 << 16].tobytes()
        end = head.find(b"\n", len(MAGIC))
        if not head.startswith(MAGIC) or end < 0:
            raise TraceFileError(f"{self.path} is no trace: it does not begin as one")
        self.about = json.loads(head[len(MAGIC) : end])
        if self.about.get("version") != VERSION:
            raise TraceFileError(
                f"{self.path} has version {self.about.get('version')} of the format, and simpler_ref "
                f"{self.about.get('by')} wrote it; this one reads version {VERSION}"
            )
        return end + 1

    def _merge(self, news: dict[str, Any]) -> None:
        """Take up what was told later: tables grow, everything else is replaced."""
        for name, value in news.items():
            known = self.about.get(name)
            if isinstance(value, dict) and isinstance(known, dict):
                known.update(value)
            else:
                self.about[name] = value


def _joined(chunks: list[Array]) -> Array:
    joined: Array = chunks[0] if len(chunks) == 1 else np.concatenate(chunks)
    return joined
