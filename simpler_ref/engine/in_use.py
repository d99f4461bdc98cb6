"""What the program has dropped and tasks may still use: memory is given out again when these have ended.

Arguments of tasks are addresses, and keep nothing alive. A task can use what was made before it was
submitted, and dropped after that: all others need not be waited for.

Rule     ORCH-ARRAY-4
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")
FEW, FEW_BYTES = 16, 1 << 20
"""So much may be in use before it is looked whether its tasks have ended."""


class Users(Protocol):
    """The tasks of a Worker.

    Attributes
    ----------
    patience_s : float
        How long to wait for room.
    """

    patience_s: float

    @property
    def submitted(self) -> int:
        """How many were ever submitted."""

    def unended(self) -> Sequence[int] | None:
        """Return the numbers of those that have not ended, sorted; None: none of them counts as ended."""

    def wait(self) -> bool:
        """Wait a while until one has ended; return False if that is of no use."""


class InUse(Generic[T]):
    """What was dropped, until the tasks have ended that may use it. Any thread may call its methods.

    Attributes
    ----------
    users : Users or None
        The tasks; None: there are none.
    nbytes : int
        How many bytes are in use.
    """

    def __init__(self, users: Users | None = None) -> None:
        self.users = users
        self._waiting: deque[tuple[int, int, int, T]] = deque()
        """How many tasks came before it, and before it was dropped; its bytes; and it."""
        self.nbytes = 0
        self._look_at = FEW, FEW_BYTES

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def __iter__(self) -> Iterator[T]:
        return iter([what for *_, what in list(self._waiting)])

    def now(self) -> int:
        """Return what `keep` is told of something that is made now."""
        return 0 if self.users is None else self.users.submitted

    def keep(self, first: int, nbytes: int, what: T) -> bool:
        """Keep what was dropped if a task was submitted with it; return False if it is free at once."""
        end = self.now()
        if end == first or self.users is None:
            return False
        self.nbytes += nbytes
        self._waiting.append((first, end, nbytes, what))
        return True

    def has_users(self, first: int) -> bool:
        """Say whether tasks may use something that was made when `now` was `first`."""
        if self.users is None or self.users.submitted == first:
            return False
        unended = self.users.unended()
        return unended is None or bisect_left(unended, first) < len(unended)

    def has_many(self) -> bool:
        """Say whether it is time to look; there is twice as much as the last look has left."""
        count, nbytes = self._look_at
        return len(self._waiting) >= count or self.nbytes >= nbytes

    def look(self) -> Iterator[T]:
        """Go through what no task uses any more."""
        unended = () if self.users is None else self.users.unended()
        for _ in range(len(self._waiting)):
            if unended is None:
                break
            try:
                first, end, nbytes, what = self._waiting.popleft()
            except IndexError:  # another thread was faster
                break
            if bisect_left(unended, first) < bisect_left(unended, end):
                self._waiting.append((first, end, nbytes, what))
            else:
                self.nbytes -= nbytes
                yield what
        self._look_at = max(FEW, 2 * len(self._waiting)), max(FEW_BYTES, 2 * self.nbytes)
