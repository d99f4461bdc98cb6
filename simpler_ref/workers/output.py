"""What worker processes print where the program's streams are no files, as in a notebook.

A process that is forked from the program writes to the same files. But an object that sends messages to a
browser, say, does so from the program's own process, and a copy of it leads nowhere. Such a stream has a
pipe, and a thread of the program writes to the stream what workers write into the pipe.

Rule     CALL-WORKER-5
"""

from __future__ import annotations

import codecs
import io
import os
import select
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from .containment import flush_output

_MOST = 1 << 16
"""In bytes: what a pipe holds."""


_is_relayed = False
"""Whether a stream of this process is a pipe to the program's."""


def relay() -> Relay | None:
    """Return a relay for those of the program's streams that are no files; None if they all are."""
    names = [name for name in ("stdout", "stderr") if not _is_file(getattr(sys, name))]
    return Relay(names) if names else None


def _is_file(stream: Any) -> bool:
    """Say whether forked processes write where a stream of this one does."""
    if stream is None:
        return True
    try:
        return isinstance(stream, io.TextIOWrapper) and stream.fileno() >= 0
    except io.UnsupportedOperation:
        return False
    except ValueError:  # it is closed
        return True


def take_over(pipes: Mapping[str, int]) -> None:
    """Let what this process prints go into pipes, line by line."""
    global _is_relayed
    for name, fd in pipes.items():
        stream = open(fd, "w", 1, encoding="utf-8", errors="backslashreplace")  # noqa: SIM115
        former: Any = getattr(sys, name)
        setattr(sys, name, stream)
        with suppress(AttributeError, TypeError):  # handlers of `logging` refer to the object
            former.write, former.flush = stream.write, stream.flush
        _is_relayed = True


def then_flush(leaf: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return what runs a task and, if its output goes through the program, leaves none of it behind."""
    if not _is_relayed:
        return leaf

    def run(args: Any) -> Any:
        try:
            return leaf(args)
        finally:
            flush_output()

    return run


class Relay(threading.Thread):
    """Writes to the program's streams what workers print.

    It is a class of its own since ipykernel 6 has all others that are started in a cell print there,
    whatever cell is running.

    Attributes
    ----------
    pipes : dict[str, int]
        Where workers write, for each stream.
    """

    def __init__(self, names: list[str]) -> None:
        super().__init__(name="simpler-output", daemon=True)
        self._lock = threading.RLock()
        self._end = os.eventfd(0)
        self._decoders: dict[int, Any] = {}
        self._names: dict[int, str] = {}
        self.pipes: dict[str, int] = {}
        for name in names:
            out, self.pipes[name] = os.pipe()
            os.set_blocking(out, False)
            self._names[out] = name
            self._decoders[out] = codecs.getincrementaldecoder("utf-8")("replace")

    def run(self) -> None:
        """Wait for output."""
        poll = select.poll()
        for fd in (self._end, *self._names):
            poll.register(fd, select.POLLIN)
        while True:
            for fd, _ in poll.poll():
                if fd == self._end:
                    return
                if not self._pass_on(fd):
                    poll.unregister(fd)

    def pass_on(self) -> None:
        """Write what workers have printed so far."""
        for fd in list(self._names):
            self._pass_on(fd)

    def _pass_on(self, fd: int) -> bool:
        """Write what is in a pipe; say whether there may be more."""
        with self._lock:
            try:
                data = os.read(fd, _MOST)
            except BlockingIOError:
                return True
            text = self._decoders[fd].decode(data, final=not data)
            if text:
                _write(self._names[fd], text)
        return bool(data)

    def close_writing(self) -> None:
        """Leave the pipes to the workers."""
        while self.pipes:
            os.close(self.pipes.popitem()[1])

    def close(self) -> None:
        """Write what is left, once the workers have ended."""
        if self.is_alive() and self is not threading.current_thread():
            os.eventfd_write(self._end, 1)
            self.join()
        self.close_writing()
        self.pass_on()
        self.abandon()

    def abandon(self) -> None:
        """Close the descriptors for reading, in a process that was forked from the program, too."""
        if self._names:
            os.close(self._end)
        while self._names:
            os.close(self._names.popitem()[0])


def _write(name: str, text: str) -> None:
    """Write to a stream as it is now; if that is impossible, to the file behind it."""
    for stream in (getattr(sys, name), getattr(sys, f"__{name}__")):
        with suppress(Exception):  # closed, absent, or a user's own object
            stream.write(text)
            return
