"""Tasks that wait for others of the same session: how a frame names those, and what becomes of it.

A session runs its tasks in the order in which they come, so a task may be sent before those that it waits
for have ended. If one of them fails, it is skipped.

Rule     REMOTE-AHEAD-7; REMOTE-TASK-11
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from ..jit import layout as L
from .copies import COPIES_FIELDS, TaskCopies
from .fields import POSITIVE, Many, Message

MOST_AFTER = 64
"""Tasks that one may wait for, and that a session has at once: the frames of a link."""


@dataclass(frozen=True)
class TaskAfter(TaskCopies):
    """A task as in TASK_COPIES, and the numbers of the frames of those that it waits for.

    `run` is 0 if none of its tensors is a copy.
    """

    after: Sequence[int] = ()


TASK_AFTER = Message("TASK_AFTER", TaskAfter, **COPIES_FIELDS, after=Many(POSITIVE, MOST_AFTER))


class FailedTasks:
    """The frames of a session's last tasks that have failed, or were skipped."""

    def __init__(self) -> None:
        self._numbers: deque[int] = deque(maxlen=MOST_AFTER)

    def note(self, number: int, outcome: int) -> None:
        """Note how a task has ended."""
        if outcome != L.SUCCESS:
            self._numbers.append(number)

    def has_any(self, numbers: Sequence[int]) -> bool:
        """Say whether one of some tasks has not succeeded."""
        return bool(numbers) and any(one in self._numbers for one in numbers)
