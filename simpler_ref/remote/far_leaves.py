"""Tasks for the sub workers of an endpoint: as many at a time as there are.

A task starts when none of those before it, which have not ended, is named by its frame or uses memory
that it writes, or writes memory that it uses. So tasks that share memory run in the order in which they
came, and others side by side. What a task reads from another endpoint is fetched on a thread of its own,
in that order, too: a task waits only for earlier ones, here and elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from concurrent.futures import Future as Promise
from typing import Any

from ..callables.runnable import refuse_unrun
from ..calls.futures import Future
from ..calls.signatures import Signature
from ..calls.tasks import Task
from ..jit import layout as L
from ..model.arguments import TaskArgs
from ..model.config import CallConfig
from ..workers.kinds import as_leaf
from .copies import Copies, outcome_of
from .dispatcher import InnerCallable
from .fail_points import fail_point
from .frames import CompletionPayload
from .reports import report_of
from .task_messages import FailedTasks, ReceivedTask, add_scalars, copy_at, read_task


class LeafArgs(TaskArgs):
    """The arguments of a task that a sub worker runs as a call."""

    __slots__ = ()

    def config(self) -> CallConfig:
        """Return the configuration: that of a run without."""
        return CallConfig()


class RunLeaf:
    """What a sub worker is given for a task: it makes the arguments, and calls the function."""

    def __init__(self, target: Callable[..., Any]) -> None:
        self.target = target

    def __call__(
        self, raw: bytes, kinds: bytes, addresses: Sequence[int], layouts: Sequence[str]
    ) -> None:
        """Run a task that a frame has as `raw`, with its copies at some addresses."""
        told, args = read_task(raw).task.args, LeafArgs()
        for address, tensor, layout in zip(addresses, told.tensors, layouts, strict=True):
            args.add_tensor(copy_at(address, tensor, layout))
        add_scalars(args, told.scalars, kinds)
        refuse_unrun(as_leaf(self.target)(args))


class _Use:
    """Which tasks that have not ended use a copy: who wrote it last, and who reads it since then."""

    __slots__ = ("readers", "version", "writer")

    def __init__(self) -> None:
        self.writer = 0
        self.readers: list[int] = []
        self.version = 0
        """That they read."""


class _LeafTask:
    """A task that has not ended."""

    def __init__(self, task: ReceivedTask, callee: Task) -> None:
        self.sequence, self.told, self.callee = task.sequence, task.told, callee
        self.tensors, self.sizes = task.tensors, task.read.sizes
        self.waits_for: set[int] = set()
        self.coming: Promise[list[int]] | None = None
        self.future: Future | None = None


class LeafTasks:
    """The tasks that the sub workers of a session run.

    Parameters
    ----------
    stream_of
        Returns the calls of the inner Worker, whose sub workers run the tasks.
    copies
        The session's copies of tensors.
    failed
        Notes which tasks have failed.
    fetchers
        The threads that fetch tensors.
    ring
        Wakes the main thread if it waits for something else than a call.

    Notes
    -----
    Rule     REMOTE-AHEAD-7, -9; REMOTE-COPY-9
    """

    def __init__(
        self,
        stream_of: Callable[[], Any],
        copies: Copies,
        failed: FailedTasks,
        fetchers: Executor,
        ring: Callable[[], None],
    ) -> None:
        self._stream_of, self._copies, self._failed = stream_of, copies, failed
        self._fetchers, self._ring_bell = fetchers, ring
        self._callees: dict[InnerCallable, Task] = {}
        self._uses: dict[int, _Use] = {}
        self._ends: list[CompletionPayload] = []
        self._under_way: dict[int, _LeafTask] = {}
        """The tasks that have not ended, by the numbers of their frames."""
        self._roomless: list[_LeafTask] = []
        """Those of them that wait until others make room."""

    @staticmethod
    def takes(task: ReceivedTask, target: Any) -> bool:
        """Say whether this runs a task: a plain function's, all of whose tensors are copies."""
        return (
            isinstance(target, InnerCallable)
            and target.is_plain
            and not task.is_configured
            and all(one.key for one in task.tensors)
        )

    @property
    def is_busy(self) -> bool:
        """Whether there are tasks whose end was not told."""
        return bool(self._under_way or self._ends)

    @property
    def has_calls(self) -> bool:
        """Whether sub workers have tasks."""
        return any(one.future is not None for one in list(self._under_way.values()))

    def begin(self, task: ReceivedTask, target: InnerCallable) -> None:
        """Begin a task, as soon as it may start; `ends` tells how it has ended."""
        made = _LeafTask(task, self._callee(target))
        made.waits_for = self._note_uses(made) | (set(task.told.after) & self._under_way.keys())
        self._under_way[task.sequence] = made
        if not made.waits_for:
            self._prepare(made)

    def ends(self) -> Iterator[CompletionPayload]:
        """Return how tasks have ended that are no longer under way."""
        for one in list(self._under_way.values()):
            self._look_at(one)
        while self._ends:
            yield self._ends.pop(0)

    def end(self) -> None:
        """Begin nothing any more.

        Rule     REMOTE-AHEAD-5
        """
        self._fetchers.shutdown(wait=False, cancel_futures=True)
        for one in self._under_way.values():
            if one.future is not None:
                one.future.cancel()

    # ------------------------------------------------------------ order
    def _note_uses(self, made: _LeafTask) -> set[int]:
        """Note which copies a task uses, and return the tasks that it has to wait for."""
        if not self._under_way:
            self._uses.clear()
        waits_for: set[int] = set()
        sequence = made.sequence
        for key in made.told.dropped:
            waits_for |= self._wait_to_write(key, sequence)
        for one in made.tensors:
            use = self._uses.setdefault(one.key, _Use())
            if one.makes or (use.readers and use.version != one.reads):
                waits_for |= self._wait_to_write(one.key, sequence)
            else:
                waits_for.add(use.writer)
                use.readers.append(sequence)
                use.version = one.reads
        return (waits_for & self._under_way.keys()) - {sequence}

    def _wait_to_write(self, key: int, sequence: int) -> set[int]:
        use = self._uses.setdefault(key, _Use())
        waits_for = {use.writer, *use.readers}
        use.writer, use.readers = sequence, []
        return waits_for

    # ------------------------------------------------------------ one task
    def _callee(self, target: InnerCallable) -> Task:
        """Return what runs a function as a call."""
        found = self._callees.get(target)
        if found is None:
            found = Task(RunLeaf(target.target), Signature.any())
            found.__name__ = found.__qualname__ = getattr(
                target.target, "__qualname__", repr(target.target)
            )
            self._callees[target] = found
        return found

    def _prepare(self, one: _LeafTask) -> None:
        """Have what a task reads, and start it; while others are under way it is fetched on a thread."""
        copies, told = self._copies, one.told
        if self._failed.has_any(told.after):
            self._end(one, L.SKIPPED)
            return
        try:
            if told.run:
                copies.begin(told.run)
                copies.drop(told.dropped)
            if len(self._under_way) > 1 and copies.lacks_any(one.tensors):
                one.coming = self._fetchers.submit(copies.take, one.tensors, one.sizes, False)
                one.coming.add_done_callback(self._ring)
                return
            addresses = copies.take(one.tensors, one.sizes, False)
        except MemoryError as error:
            self._wait_for_room(one, error)
            return
        except Exception as error:
            self._end(one, outcome_of(error), error)
            return
        self._start(one, addresses)

    def _wait_for_room(self, one: _LeafTask, error: BaseException) -> None:
        """Prepare a task once another one has ended; if none runs, it never fits.

        Rule     REMOTE-COPY-13
        """
        under_way = self._under_way.values()
        if any(other.future is not None or other.coming is not None for other in under_way):
            self._roomless.append(one)
        else:
            self._end(one, L.TASK_FAILURE, error)

    def has_news(self) -> bool:
        """Say whether tensors have been fetched for a task that has not started."""
        under_way = list(self._under_way.values())
        return any(one.coming is not None and one.coming.done() for one in under_way)

    def _ring(self, _promise: Any) -> None:
        """Wake the main thread, wherever it waits."""
        self._ring_bell()
        if self.has_calls:
            self._stream_of().stop_waiting()

    def _start(self, one: _LeafTask, addresses: Sequence[int]) -> None:
        fail_point("taken")
        layouts = tuple(tensor.layout for tensor in one.tensors)
        args = one.told.task, one.told.kinds, tuple(addresses), layouts
        try:
            one.future = self._stream_of().submit(one.callee, args, {})
        except Exception as error:
            self._copies.settle(one.tensors, False)
            self._end(one, L.TASK_FAILURE, error)

    def _look_at(self, one: _LeafTask) -> None:
        """Start a task whose tensors have come, or end one that has run."""
        if one.future is not None:
            if one.future.done():
                self._settle(one, _error_of(one.future))
        elif one.coming is not None and one.coming.done():
            coming, one.coming = one.coming, None
            error = coming.exception()
            if error is None:
                self._start(one, coming.result())
            elif isinstance(error, MemoryError):
                self._wait_for_room(one, error)
            else:
                self._end(one, outcome_of(error), error)

    def _settle(self, one: _LeafTask, error: BaseException | None) -> None:
        fail_point("ran")
        self._copies.settle(one.tensors, error is None)
        fail_point("settled")
        self._end(one, L.SUCCESS if error is None else L.TASK_FAILURE, error)

    def _end(self, one: _LeafTask, outcome: int, error: BaseException | None = None) -> None:
        """Note how a task has ended, and go on with those that wait for it."""
        sequence = one.sequence
        del self._under_way[sequence]
        self._failed.note(sequence, outcome)
        self._ends.append(
            CompletionPayload(sequence, outcome, "" if error is None else report_of(error))
        )
        for other in list(self._under_way.values()):
            if sequence in other.waits_for:
                other.waits_for.discard(sequence)
                if not other.waits_for:
                    self._prepare(other)
        roomless, self._roomless = self._roomless, []
        for other in roomless:
            self._prepare(other)


def _error_of(future: Future) -> BaseException | None:
    """Return the error of a call that has ended, with a traceback, None if it has succeeded."""
    try:
        future.result()
    except Exception as error:
        return error
    return None
