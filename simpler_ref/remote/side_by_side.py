"""What an endpoint runs: calls, and tasks of runs, side by side where that can be.

`Work` says what is to be run, and how its end is told. Calls, and tasks for sub workers if there are
several, are calls of the inner Worker: so each has there what it has on the parent's machine, its sub
worker, its time limit, its value, its error. Other tasks are runs of it, and run alone.

Work starts when none of that before it, which has not ended, runs alone, is named by its frame, uses
memory that it writes, or writes memory that it uses. So what shares memory runs in the order in which it
came, and all else side by side. What is read from another endpoint is fetched on a thread for that, in
that order, too: work waits only for earlier work, here and elsewhere. If its tensors do not fit beside
those of others, it waits until one of these has ended.

Rule     REMOTE-AHEAD-5, REMOTE-AHEAD-7, REMOTE-AHEAD-9, REMOTE-COPY-9, REMOTE-COPY-13
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from concurrent.futures import Future as Promise
from typing import Any

from ..calls.futures import Future
from ..engine.memory import PARK_NS
from ..jit import layout as L
from ..system.polling import WaitingThread
from .copies import CopiedTensor, Copies, outcome_of
from .task_messages import MOST_BEFORE, Done, Run, failure_of

_CHANGED = -1
"""In place of a version: work writes the copy, or has it forgotten."""
Start = Callable[[Sequence[int]], Future | None]
SOON_NS = 1_000_000
"""How long a session waits for the end of a call before it also looks out for frames."""


class Work:
    """A task or a call that has not ended: the number of its RUN, what that says, copies, their bytes.

    `start` gives it to a sub worker, with its copies at some addresses. What runs alone has ended then.
    """

    def __init__(
        self,
        sequence: int,
        told: Run,
        tensors: Sequence[CopiedTensor],
        sizes: Sequence[int],
        start: Start,
        is_alone: bool = False,
    ) -> None:
        self.sequence, self.told, self.is_alone = sequence, told, is_alone
        self.tensors, self.sizes, self.start = tensors, sizes, start
        self.uses = dict.fromkeys(told.dropped, _CHANGED)
        """The keys of copies, with the versions that it reads."""
        for one in tensors:
            if one.key:
                changes = one.makes or self.uses.get(one.key) == _CHANGED
                self.uses[one.key] = _CHANGED if changes else one.reads
        self.waits_for: set[int] = set()
        self.coming: list[Promise[None]] = []
        """What fetches its tensors, from each endpoint that has some."""
        self.future: Future | None = None

    def comes_after(self, other: Work) -> bool:
        """Say whether it waits for other work that has begun before.

        Work that only reads waits for whoever reads another version: a session has one at a time.
        """
        if self.is_alone or other.is_alone or other.sequence in self.told.after:
            return True
        uses = other.uses
        return any(
            key in uses and (version == _CHANGED or uses[key] != version)
            for key, version in self.uses.items()
        )

    def end_of(self, future: Future) -> Done:
        """Return how it has ended, before its copies are settled."""
        try:
            future.result()
        except Exception as error:
            return failure_of(error, self.sequence)
        return Done(self.sequence)


def _are_done(several: Sequence[Promise[None]]) -> bool:
    return all(one.done() for one in several)


class SideBySide:
    """The work of a session.

    `stream_of` returns the calls of the inner Worker, `new_fetcher` a thread that fetches tensors: there
    is one for each endpoint that has had some. `ring` wakes the main thread if it waits for no call.
    """

    def __init__(
        self,
        stream_of: Callable[[], Any],
        copies: Copies,
        new_fetcher: Callable[[], Executor],
        ring: Callable[[], None],
    ) -> None:
        self._stream_of, self._copies = stream_of, copies
        self._failed: deque[int] = deque(maxlen=MOST_BEFORE)
        """The numbers of the last tasks that have failed, or were skipped."""
        self._fetchers: defaultdict[str, Executor] = defaultdict(new_fetcher)
        self._ring_bell = ring
        self._ends: list[Done] = []
        self._under_way: dict[int, Work] = {}
        """What has not ended, by the numbers of the frames."""
        self._ready: list[Work] = []
        """That of it which waits for nothing any more."""
        self._roomless: list[Work] = []
        """That of it which waits until others make room."""
        self._seen = 0
        """How many calls of the stream had ended when this looked last."""

    @property
    def is_busy(self) -> bool:
        return bool(self._under_way or self._ends)

    @property
    def has_calls(self) -> bool:
        return any(one.future is not None for one in list(self._under_way.values()))

    def begin(self, work: Work) -> None:
        """Begin work, as soon as it may start; `ends` tells how it has ended."""
        work.waits_for = {
            number for number, one in self._under_way.items() if work.comes_after(one)
        }
        self._under_way[work.sequence] = work
        if not work.waits_for:
            self._prepare(work)

    def ends(self) -> Iterator[Done]:
        """Return how work has ended that is no longer under way."""
        if self.has_calls:
            self._seen = self._stream_of().ended
        for one in list(self._under_way.values()):
            self._look_at(one)
        while self._ends or self._ready:
            if self._ends:
                yield self._ends.pop(0)
            else:
                self._prepare(self._ready.pop(0))

    def wait(self, lookout: WaitingThread | None) -> None:
        """Wait until a call may have ended, or tensors have come; see `Stream.wait_for_end`.

        If none ends soon, until a lookout rings, too.
        """
        stream = self._stream_of()
        stream.wait_for_end(self._seen, SOON_NS if lookout else PARK_NS, self.has_news)
        if lookout and stream.ended == self._seen and not self.has_news():
            lookout.arm()
            stream.wait_for_end(self._seen, PARK_NS, lambda: lookout.has_rung() or self.has_news())

    def stop_waiting(self) -> None:
        self._stream_of().stop_waiting()

    def end(self) -> None:
        for fetcher in self._fetchers.values():
            fetcher.shutdown(wait=False, cancel_futures=True)
        for one in self._under_way.values():
            if one.future is not None:
                one.future.cancel()

    # ------------------------------------------------------------ order
    def note(self, end: Done) -> None:
        """Note how a task has ended, for those that wait for it."""
        if end.outcome != L.SUCCESS:
            self._failed.append(end.sequence)

    def skips(self, told: Run) -> bool:
        """Say whether a task is skipped: one that it waits for has not succeeded."""
        return any(one in self._failed for one in told.after)

    # ------------------------------------------------------------ one piece of work
    def _prepare(self, one: Work) -> None:
        """Have what work reads, and start it; while others are under way it is fetched on a thread."""
        copies, told = self._copies, one.told
        if self.skips(told):
            self._end(one, Done(one.sequence, L.SKIPPED))
            return
        try:
            if told.dropped:  # once: they may come anew while this waits for room
                copies.drop(told.dropped)
                one.told = told._replace(dropped=())
            sources = copies.lacking(one.tensors) if len(self._under_way) > 1 else ()
            for source in sources:
                fetcher = self._fetchers[source]
                one.coming.append(fetcher.submit(copies.fetch, source, one.tensors, one.sizes))
                one.coming[-1].add_done_callback(self._ring)
            if sources:
                return
            addresses = copies.take(one.tensors, one.sizes)
        except Exception as error:
            self._refuse(one, error)
            return
        self._start(one, addresses)

    def _refuse(self, one: Work, error: BaseException) -> None:
        """End work that cannot start; if it has no room, prepare it once other work has ended."""
        if isinstance(error, MemoryError):
            if any(it.future is not None or it.coming for it in self._under_way.values()):
                self._roomless.append(one)
                return
            sizes = {it.key: size for it, size in zip(one.tensors, one.sizes, strict=True)}
            error = MemoryError(
                f"the tensors of the task have {sum(sizes.values())} bytes, and do not all fit beside "
                f"what else is in use: {error}"
            )
        self._end(one, failure_of(error, one.sequence, outcome_of(error)))

    def has_news(self) -> bool:
        """Say whether tensors have been fetched for work that has not started."""
        return any(one.coming and _are_done(one.coming) for one in list(self._under_way.values()))

    def _ring(self, _promise: Any) -> None:
        """Wake the main thread, wherever it waits."""
        self._ring_bell()
        if self.has_calls:
            self.stop_waiting()

    def _start(self, one: Work, addresses: Sequence[int]) -> None:
        try:
            one.future = one.start(addresses)
        except BaseException as error:
            self._settle(one, failure_of(error, one.sequence, outcome_of(error)))
            return
        if one.future is None:
            self._settle(one, Done(one.sequence))

    def _look_at(self, one: Work) -> None:
        """Start work whose tensors have come, or end what has run."""
        if one.future is not None:
            if one.future.done():
                self._settle(one, one.end_of(one.future))
        elif one.coming and _are_done(one.coming):
            errors = [error for it in one.coming if (error := it.exception()) is not None]
            one.coming = []
            if errors:
                self._refuse(one, errors[0])
            else:
                self._prepare(one)

    def _settle(self, one: Work, end: Done) -> None:
        self._copies.settle(one.tensors, end.outcome == L.SUCCESS)
        self._end(one, end)

    def _end(self, one: Work, end: Done) -> None:
        """Note how work has ended, and go on with what waits for it."""
        sequence = one.sequence
        del self._under_way[sequence]
        self.note(end)
        self._ends.append(end)
        for other in list(self._under_way.values()):
            if sequence in other.waits_for:
                other.waits_for.discard(sequence)
                if not other.waits_for:
                    self._ready.append(other)
        self._ready += self._roomless
        self._roomless = []
