"""How a process learns that all processes below another one have ended, after that has been killed.

Each of them has the writing end of a pipe. The kernel kills them one after another, each with its parent,
and meanwhile their tasks may still write to memory that this process takes for its own.
"""

from __future__ import annotations

import os

from ..system.polling import wait_readable

_held: list[int] = []
"""The writing ends that processes below this one are to have."""


def held() -> list[int]:
    """Return the writing ends of this process: a fresh interpreter does not inherit them by itself."""
    return list(_held)


def take_over(held_above: list[int]) -> None:
    """Have, in a fresh interpreter, the writing ends of its parent."""
    for fd in held_above:
        os.set_inheritable(fd, False)
    _held[:] = held_above


class Lifeline:
    """A pipe that is open for writing while the processes below another one live.

    The first of them is made in a block ``with lifeline:``.

    Attributes
    ----------
    reading : int
        The descriptor at whose end of file all have ended.
    writing : int
        The one that they have.

    Notes
    -----
    Rule     SCHED-DEATH-5
    """

    def __init__(self) -> None:
        self.reading, self.writing = os.pipe()

    def hold(self) -> None:
        """Be one of the processes below."""
        self.close()
        _held.append(self.writing)

    def __enter__(self) -> Lifeline:
        return self

    def __exit__(self, *_: object) -> None:
        """Be the one that waits, now that the first process below has been made."""
        os.close(self.writing)

    def wait(self, limit_s: float) -> None:
        """Wait until all have ended; somebody may have made a process that outlives them."""
        wait_readable([self.reading], limit_s)

    def close(self) -> None:
        """Close what the one that waits has."""
        if self.reading >= 0:
            fd, self.reading = self.reading, -1
            os.close(fd)
