"""The parent's tensors in a run: what comes home at its end, and what was lost with an endpoint.

Rule     REMOTE-LINK-12, REMOTE-COPY-5, REMOTE-COPY-8
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from ..errors import ControlError, RemoteError, WorkerLostError, tell
from ..system.types import Array, address_of
from ..workers.life import Life
from .directory import HOME, Directory, Held, Use
from .parent_memory import Brought, Homing
from .recovery import Recovery

log = logging.getLogger("simpler_ref")

LEAST_AT_ONCE = 1 << 20
"""From how many bytes on several endpoints send what they have at the same time."""


class LostTensor(NamedTuple):
    """A span whose newest version went with an endpoint, and a digest of what memory has instead."""

    start: int
    nbytes: int
    text: str
    digest: bytes

    def overlaps(self, start: int, nbytes: int) -> bool:
        """Say whether bytes of it are in a span."""
        return start < self.start + self.nbytes and self.start < start + nbytes


def _digest(start: int, nbytes: int) -> bytes:
    return hashlib.blake2b((ctypes.c_char * nbytes).from_address(start)).digest()


def _name(start: int, nbytes: int) -> str:
    return f"the tensor of {nbytes} bytes at {start:#x}"


class ParentTensors:
    """The tensors of this machine of which endpoints have copies.

    `bring` has an endpoint send some of them, and returns what became of each.

    Attributes
    ----------
    directory : Directory
        Where their versions are; that of the current run.
    run_number : int
        Counts runs, and drains: endpoints forget copies of an earlier one.
    """

    def __init__(self, life: Life, bring: Callable[[int, Sequence[Homing]], bytes]) -> None:
        self._life, self._bring = life, bring
        self.directory = Directory()
        self.run_number = 1
        self.recovery: Recovery | None = None
        """The tasks that may run again."""
        self.owed: list[tuple[int, int]] = []
        """Spans whose newest version is lost unless tasks make it again."""
        self._kept: list[Array] = []
        """Memory that only this run has, beside rings."""
        self.lost: list[LostTensor] = []
        """Those that were not written since."""

    def begin_run(self) -> None:
        """Begin with none, should the end of the last run have been cut short."""
        self.forget()
        self._kept.clear()

    def keep(self, nbytes: int) -> Array:
        """Return memory that stays until the next run."""
        self._kept.append(self._life.live().arena.empty((max(1, nbytes),), np.uint8))
        return self._kept[-1]

    def forget(self) -> None:
        """Forget where tensors are: this machine's memory has them all."""
        self.directory.clear()
        self.run_number += 1
        if self.recovery is not None:
            self.recovery.clear()

    def bring_home(self) -> None:
        """Have this machine's memory be current, once all tasks have ended, and forget all copies."""
        self._bring_current()
        self.forget()
        self.owed.clear()

    def _bring_current(self) -> None:
        wanted: dict[int, list[Held]] = {}
        for held in self.directory:
            if not held.is_home:
                wanted.setdefault(held.maker, []).append(held)
                if self.recovery is not None:
                    self.recovery.save_bytes(*held.span)
        total = sum(one.use.nbytes for several in wanted.values() for one in several)
        homings = [
            [Homing(one.key, 1, one.version, *one.span) for one in several]
            for several in wanted.values()
        ]
        with ThreadPoolExecutor(max(1, len(wanted)), "simpler-bring") as pool:
            asks = map if total < LEAST_AT_ONCE else pool.map
            answers = asks(self._bring, wanted, homings)
            for several, answer in zip(wanted.values(), answers, strict=True):
                for one, status in zip(several, answer, strict=True):
                    if status != Brought.IS_HOME:
                        raise RemoteError(
                            f"{_name(*one.span)} is lost: only endpoint {one.maker} had it"
                        )
                    one.holders.add(HOME)

    def end_run(
        self, failure: BaseException | None, failed: Collection[int] = ()
    ) -> BaseException | None:
        """Bring home what endpoints have written in a run; return the run's failure.

        After a failed run, the newest version that was made comes home if it still exists: `failed` are
        the tasks that have made none. What was lost is noted, and the failure tells it.
        """
        self._forget_own()
        waiting, known = list(self.directory), len(self.lost)
        try:
            if failure is None:
                try:
                    self._bring_current()
                    waiting.clear()
                except (RemoteError, WorkerLostError, ControlError) as error:
                    failure = error  # all tasks have ended, also those that have brought some home
                    waiting = [held for held in waiting if not held.is_home]
            while waiting:
                if not self._bring_newest(waiting[-1], failed):
                    self._note_lost(waiting[-1].span, waiting[-1].maker)
                waiting.pop()
        finally:  # a signal may have come
            for held in waiting:
                self._note_lost(held.span, held.maker)
            for span in dict.fromkeys(self.owed) if failure is not None else ():
                self._note_lost(span)
            self.owed.clear()
            self.forget()
        if failure is not None:
            for lost in self.lost[known:]:
                tell(failure, f"  {lost.text}: {self._remedy}")
        return failure

    @property
    def _remedy(self) -> str:
        """What messages say that the program can do about a lost tensor."""
        again = (
            "; with Worker(retries=…) the tasks that made it run again when its endpoint is lost"
        )
        return (
            "write it before it is read, in the program or by a task that has it as OUTPUT_EXISTING; or, "
            "if what it has is right, call Worker.renew(array)"
            f"{'' if self._life.options.retries else again}"
        )

    def _note_lost(self, span: tuple[int, int], maker: int = HOME) -> None:
        """Note that a tensor is lost, of which `maker` alone had the newest version.

        A child Worker's parent may use the memory for something else.
        """
        if not self._life.parent_level:
            manager = self._life.live().manager
            where = "an endpoint" if maker == HOME else f"endpoint {maker}"
            if manager is not None and maker in manager.dead:
                where += ", which was lost"
            text = f"the newest version of {_name(*span)} was only at {where}"
            self.lost.append(LostTensor(*span, text, _digest(*span)))
        log.warning("%s is lost: its newest version was only at an endpoint", _name(*span))

    def _forget_own(self) -> None:
        """Forget tensors in memory of rings, and of the run: nobody can use them after it."""
        heap = self._life.live().engine.heap
        for start, nbytes in [(address_of(one), one.nbytes) for one in (heap, *self._kept)]:
            for held in self.directory.overlapping(start, nbytes):
                self.directory.forget(held)
            self.owed = [one for one in self.owed if not start <= one[0] < start + nbytes]

    def _bring_newest(self, held: Held, failed: Collection[int]) -> bool:
        """Bring home the newest version that was made; return False if it is lost.

        What was written here after an endpoint stays, if that had come home for it. If nothing had to
        come home for it, nobody knows whether it was written.
        """
        manager = self._life.live().manager
        is_blind = False
        for made in reversed(held.makers):
            if made.maker == HOME:
                is_blind = is_blind or made.is_blind
                continue
            found = Brought.NEVER_MADE if made.task in failed else Brought.IS_LOST
            if manager is not None and made.maker not in manager.dead:
                one = Homing(held.key, made.first, made.last, *held.span)
                with suppress(WorkerLostError, ControlError):
                    found = Brought(self._bring(made.maker, [one])[0])
            if found == Brought.IS_HOME:
                return not is_blind
            if found == Brought.IS_LOST:
                return False
        return True

    def require_not_lost(self, uses: Sequence[Use]) -> None:
        """Refuse to read a tensor that was lost, unless the program has written it since."""
        for use in uses if self.lost else ():
            for lost in self.lost[:]:
                if not lost.overlaps(*use.span):
                    continue
                if use.reads and _digest(lost.start, lost.nbytes) == lost.digest:
                    raise RemoteError(f"tensor {use.index} is lost: {lost.text}; {self._remedy}")
                self.lost.remove(lost)

    def forget_lost(self, address: int, nbytes: int) -> None:
        """Forget what was lost in memory that is given out anew."""
        self.lost = [lost for lost in self.lost if not lost.overlaps(address, nbytes)]
