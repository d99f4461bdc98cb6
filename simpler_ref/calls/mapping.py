"""Many calls of one function: `Worker.map` and its results.

Items that are values travel in chunks, each of which is one call. An item with an array or a future in it
is a call of its own: the stream has to see what it reads and writes.

Rule     CALL-MAP-2, CALL-MAP-4, CALL-MAP-10, CALL-MAP-11, SEE-STORY-1
"""

from __future__ import annotations

import concurrent.futures
import copy
import functools
import logging
import operator
import pickle
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np

from ..callables.runnable import refuse_unrun
from ..engine.memory import PARK_NS
from ..errors import TaskError, tell
from ..orch.checked import caller
from ..system.regions import is_private
from ..system.values import integer, limit
from . import outcomes
from .futures import Future
from .inside import NestedStream, final
from .packing import CallPlan
from .sending import How, Payload, Unchanging, received
from .signatures import Mode
from .stream import Stream
from .tasks import Task, here, is_own

log = logging.getLogger("simpler_ref")

_CHUNK_S = 3e-3
"""How long a worker should take for a chunk."""
_GROWTH = 4
"""How many times as large as a chunk that one may be which is made after that was seen."""
_AHEAD_S = 1e-3
"""For how long calls that take no time should be in flight."""
_MOST_AHEAD = 64
"""How many calls are in flight at most, beyond those that keep the workers busy."""
_NUMPY = {np.bool_, np.int64, np.float64}
_PLAIN = {type(None), bool, int, float, complex, str, bytes, *_NUMPY}
"""Values that cannot be changed: to share one between two items is as good as a copy."""

_OWN_CALL = {np.ndarray, Future}
"""Values for which the stream has to look at a call itself."""
_SMALL = 1 << 14
"""In bytes: a larger array is not copied twice, into a chunk and with it."""


def _is_copied(value: Any) -> bool:
    """Say whether an argument is as good in a chunk as in a call of its own."""
    if type(value) is np.ndarray:
        return value.nbytes < _SMALL and not value.dtype.hasobject and is_private(value)
    return type(value) is not Future


class Options(NamedTuple):
    """How a function is called for many items; see `Worker.map`."""

    chunksize: int | None = None
    timeout: float | None = None
    star: bool = False
    """An item is a tuple of arguments."""
    eager: bool = False
    """Everything is submitted at once."""
    ordered: bool = True
    """Results come in the order of the items, otherwise in that in which their calls end."""
    by_chunks: bool = False
    """The items of a chunk share a copy of the function, as they do elsewhere."""


# ---------------------------------------------------------------- in a worker
class _Chunks(Unchanging):
    """Calls a function for the items of a chunk; `name` is what messages call it.

    The function is made from its payload for each item anew, unless no call changes it: so results do not
    depend on what is a chunk. With `by_chunks` it is made once.
    """

    def __init__(self, payload: Payload, star: bool, by_chunks: bool, name: str) -> None:
        self._payload = payload
        self._star, self._by_chunks = star, by_chunks
        self.__name__ = self.__qualname__ = name

    def __reduce__(self) -> Any:
        return _Chunks, (self._payload, self._star, self._by_chunks, self.__name__)

    @functools.cached_property
    def _kept(self) -> Callable[..., Any] | None:
        """The function, if no call changes it."""
        return received(self._payload).function if self._payload.how & How.KEPT else None

    def __call__(self, items: list[Any], pickled: bool) -> tuple[Any, ...]:
        """Return what `_Call` reads.

        That is the values of all items: a list, an array of the same, or `Several`; the errors of those
        that fail, by their places, whose values are None; the worker; and how long it took, in seconds.
        """
        start = time.perf_counter()
        values: list[Any] = []
        errors: dict[int, bytes] = {}
        function = None
        for item in items:
            try:
                if pickled:
                    item = pickle.loads(item)
                if function is None or not self._by_chunks:
                    function = self._kept or received(self._payload).function
                values.append(final(function(*item) if self._star else function(item)))
            except (Exception, SystemExit) as error:
                errors[len(values)] = outcomes.error_block(error)
                values.append(None)
        kinds = set(map(type, values))
        found: Any = values if kinds <= _PLAIN else _each(values, errors)
        if len(kinds) == 1 and kinds <= _NUMPY:
            found = np.array(values)
        return found, errors, here.mailbox.worker, time.perf_counter() - start


def _each(values: list[Any], errors: dict[int, bytes]) -> outcomes.Several:
    """Return values as those of single calls: no two of them have anything in common."""
    several = outcomes.Several()
    for place, value in enumerate(values):
        try:
            refuse_unrun(value)
            several.add(value)
        except Exception as error:
            errors[place] = outcomes.error_block(error)
            several.add(None)
    return several


# ---------------------------------------------------------------- calls in flight
class _Call:
    """A call of which the results are ahead: of one item, of a chunk, or an error instead of a call.

    For the story of an error `of` says what was called, and where; `chunk` has the maker of errors, what
    messages call the function, and the number of the call. `first` is the number of its first item.
    """

    seconds = 0.0
    """How long a chunk took in the worker."""
    opened: Iterator[Any] | None = None
    """Its values, once they are asked for: one after another, an error is raised in its place."""

    def __init__(
        self,
        future: concurrent.futures.Future[Any],
        of: str,
        first: int,
        count: int = 1,
        chunk: tuple[Any, str, int] | None = None,
    ) -> None:
        self.future, self.count, self.chunk = future, count, chunk
        self._of, self._first, last = of, first, first + count - 1
        self._items = f"items {first} to {last}" if count > 1 else f"item {last}"

    def open(self, timeout: float | None) -> Iterator[Any]:
        """Wait for the call, for so many seconds or else there is a TimeoutError; return its values."""
        if self.opened is not None:  # by the end of the Worker, and nobody has asked
            return self.opened
        try:
            error = self.future.exception(timeout)
        except concurrent.futures.CancelledError as cancelled:
            error = cancelled
        if error is not None:
            tell(error, f"  {self._items} of {self._of}")
            self.opened = map(functools.partial(_raise_own, error), range(self.count))
        elif self.chunk is None:
            self.opened = iter((self.future.result(),))
        else:
            self.opened = self._values(*self.future.result())
        return self.opened

    def _values(
        self, values: Any, failed: dict[int, bytes], worker: int, seconds: float
    ) -> Iterator[Any]:
        self.seconds = seconds
        if not failed and type(values) is not outcomes.Several:
            return iter(values)
        assert self.chunk is not None, "it is one"
        (errors, name, number), of, items, first = self.chunk, self._of, self._items, self._first

        def take(place: int) -> Any:  # it does not refer to the call, which refers to it
            try:
                if place not in failed:
                    return values[place]
                problem = None
            except pickle.UnpicklingError as error:
                problem = error
            item = first + place
            story = f"  item {item} of {of}\n  its call had {items}"
            if problem is None:
                raise errors.of_item(failed[place], worker, number, name, item, story)
            what = f"call {number} ({name}), item {item}"
            lost = TaskError(f"{what}: {problem}", task=number, callable_name=name)
            tell(lost, story)
            raise lost from problem.__cause__

        return map(take, range(self.count))

    def be_silent(self) -> None:
        if isinstance(self.future, Future):
            self.future.be_silent()


def _raise_own(error: BaseException, place: int) -> Any:
    """Raise the error of a call for one of its items, each of which has its own."""
    made = error
    if place:
        with suppress(Exception):  # of one that cannot be copied
            made = copy.copy(error)
            made.__cause__ = error.__cause__
    raise made


# ---------------------------------------------------------------- the results
class Results:
    """The results of `Worker.map`, in the order of the items; an iterator.

    When it has raised the error of an item, it goes on with the next one. What it has not submitted
    when it is closed or dropped is not submitted any more.
    """

    def __init__(
        self,
        stream: Stream,
        task: Task,
        rows: Iterator[Any],
        how: Options,
        of: str,
        total: int | None,
    ) -> None:
        self._stream, self._task, self._how, self._of, self._total = stream, task, how, of, total
        self._alone_payload, self._payload, self._lasts = stream.function_for_items(task)
        """What is sent of the function: for an item that is a call of its own, and for a chunk."""
        chunks = _Chunks(
            self._payload._replace(reads=()), how.star, how.by_chunks, task.__qualname__
        )
        self._chunks = stream.task_of(chunks, task.workers)
        self._workers = len(task.workers) or stream.workers
        are_values = all(one.mode is Mode.VALUE for one in task.signature.parameters)
        has_limits = task.timeout is not None or task.retries > 0
        self._alone = not are_values or has_limits or not stream.takes_pickles
        self.deadline = None if how.timeout is None else time.monotonic() + how.timeout
        # ---- submitted next
        self._input: Iterator[Any] | None = rows
        self._taken = 0
        """Items that have been read."""
        self._unsent: list[Any] = []
        self._apart = self._pickled = False
        """Whether each item that is read and not yet submitted is a call of its own, or is pickled."""
        self._size = how.chunksize or 1
        self._input_s = 0.0
        """How long it took to read the last chunk, per item."""
        self._slow = False
        """Whether that took so long that results which are there come first."""
        self._window = self._least = sys.maxsize if how.eager else 2 * self._workers + 2
        self._filled = time.monotonic()
        self._since = 0
        """Calls opened since then."""
        # ---- asked for next
        self._ahead: deque[_Call] = deque()
        self._ready: Iterator[Any] = iter(())
        """Values of the first call ahead, once it is open."""
        self._given = 0
        """Items of the calls that have been opened."""
        self._end: BaseException | None = None
        """What is raised when all that was submitted has been returned."""
        self._asking = False
        """Whether somebody waits for the next values."""
        self._was_retrieved = self._has_raised = False
        """Whether anybody has asked for a result, or closed it; has got an error."""
        self._lock = threading.RLock()
        """Of the thread that submits, or that closes the results."""
        with self._lock:
            stream.maps.add(self)
            self._fill()

    def __iter__(self) -> Results:
        return self

    def __next__(self) -> Any:
        self._was_retrieved = True
        while True:
            try:
                for value in self._ready:  # no call before it is returned: an interrupt loses it
                    return value
            except Exception:
                self.be_silent()
                raise
            if self._asking:
                raise ValueError(
                    "another thread, or the iterable itself, is asking for the next result"
                )
            try:
                self._asking = True
                with self._lock:
                    self._advance()
            finally:
                self._asking = False

    def __repr__(self) -> str:
        name = self._task.__qualname__
        total = "" if self._total is None else f" of {self._total}"
        return f"<results of {name}: {self._given}{total} returned, {len(self._ahead)} calls ahead>"

    def __reduce__(self) -> Any:
        raise TypeError("results cannot be pickled: pass list(results)")

    @property
    def futures(self) -> list[concurrent.futures.Future[Any]]:
        """Those of the calls whose results nobody has got yet."""
        return [call.future for call in self._ahead]

    # ------------------------------------------------------------ before their end
    def cancel(self) -> None:
        """Submit nothing more, and cancel what has not started: its results are errors."""
        with self._lock:
            self._input, self._unsent = None, []
            for call in self._ahead:
                call.future.cancel()

    def close(self) -> None:
        """Submit nothing more, cancel what has not started, and end."""
        self._was_retrieved = True
        with self._lock:
            self.cancel()
            self._ready, self._end = iter(()), None
            self._ahead.clear()

    def __del__(self) -> None:
        if not getattr(self, "_was_retrieved", True) and not self._stream.is_gone:
            self._stream.dropped_maps.append(self)

    def be_silent(self) -> None:
        """Log no more errors of calls: who got one either ends there, or asks for the others."""
        self._was_retrieved = True
        if not self._has_raised:
            self._has_raised = True
            for call in self._ahead:
                call.be_silent()

    @property
    def _has_uncalled(self) -> bool:
        """Whether there are items that are not submitted, as far as that is known."""
        return self._input is not None or bool(self._unsent)

    def finish(self, *, to_the_end: bool = False) -> None:
        """Call the function for all items if nobody has asked for results; the values stay.

        Items of an iterable that has no length, and may be endless, are left, unless it is `to_the_end`;
        so are those that another thread submits.
        """
        try:
            if self._lock.acquire(blocking=False):
                self._finish(to_the_end)
        finally:
            try:  # noqa: SIM105 (a signal could be handled on the way into a function of Python)
                self._lock.release()
            except RuntimeError:  # another thread has it
                pass

    def _finish(self, to_the_end: bool) -> None:
        ended = 0
        while self._has_uncalled and (
            to_the_end or (not self._was_retrieved and self._total is not None)
        ):
            self._window = ended + self._least
            self._slow = False  # results that are there are asked for by nobody
            self._fill()
            if ended < len(self._ahead):
                call = self._ahead[ended]
                with suppress(Exception):  # which comes when somebody asks
                    call.open(None)
                self._learn(call)
                ended += 1

    def log_errors(self) -> None:
        """Log what has failed: these results were dropped, and nobody can ask for them."""
        failed, first = 0, None
        for call in self._ahead:
            values = call.open(None)
            for _ in range(call.count):
                try:
                    next(values)
                except Exception as error:
                    failed, first = failed + 1, first or error
        if first is not None:
            log.error(
                "%s: %d items failed, and nobody asked for results: %s", self._of, failed, first
            )

    def warn_of_uncalled(self) -> None:
        """Log how many items are not called, because nobody has asked for their results."""
        if not self._has_uncalled or self._has_raised:
            return
        if self._total is not None:
            number = self._total - self._taken + len(self._unsent)
            if not number:  # somebody goes through them just now
                return
            left = f"{number} items were not called"
        elif not self._was_retrieved:
            left = "not all items were called, the iterable has no length"
        else:
            return
        log.warning(
            "%s: %s, and nobody asked for their results: go through all results, or close() them",
            self._of,
            left,
        )

    # ------------------------------------------------------------ ask
    def _advance(self) -> None:
        if here.nested is not None and not is_own(self._stream._life):
            raise RuntimeError("a task cannot wait for the results of others: ask in the program")
        if self._ahead and self._ahead[0].opened is self._ready:
            self._ahead.popleft()
        if len(self._ahead) <= self._window // 2:
            self._fill()
        if not self._ahead:
            end, self._end = self._end, None
            raise StopIteration if end is None else end
        if not self._how.ordered:
            self._put_ended_first()
        call, left = self._ahead[0], self._left()
        try:
            self._ready = call.open(left)
        except concurrent.futures.TimeoutError:
            raise concurrent.futures.TimeoutError(
                f"item {self._given} of {self!r} has no result {self._how.timeout} s after the call of "
                "map; it goes on"
            ) from None
        self._given += call.count
        self._since += 1
        self._learn(call)

    def _left(self) -> float | None:
        """Return how many seconds there are until the deadline."""
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    def _put_ended_first(self) -> None:
        """Wait until one of the calls has ended, or for too long, and put it before the others."""
        while not self._stream.is_gone:  # or else to open one says why
            ended = self._stream.ended
            for place, call in enumerate(self._ahead):
                if call.future.done():
                    self._ahead.rotate(-place)
                    return
            left = self._left()
            if left == 0.0:
                return
            rest_ns = PARK_NS if left is None else min(PARK_NS, int(left * 1e9))
            self._stream.wait_for_end(ended, rest_ns)

    def _learn(self, call: _Call) -> None:
        """Choose the size of chunks from what one took to be run or read; it grows in steps."""
        if self._how.chunksize is not None or call.chunk is None:
            return
        each = max(call.seconds / call.count, self._input_s)
        fitting = int(_CHUNK_S / each) if each else _GROWTH * call.count
        self._size = max(1, min(fitting, max(_GROWTH * call.count, self._size)))

    # ------------------------------------------------------------ submit
    def _fill(self) -> None:
        """Submit calls until the window is full; no more if that takes long and there are results."""
        now = time.monotonic()
        if self._since:
            a_call = (now - self._filled) / self._since
            more = int(_AHEAD_S / a_call) if a_call > _AHEAD_S / _MOST_AHEAD else _MOST_AHEAD
            self._window = self._least + more
        self._filled, self._since = now, 0
        try:
            while len(self._ahead) < self._window:
                is_all = self._least == sys.maxsize
                if self._slow and not is_all and self._ahead and self._ahead[0].future.done():
                    return
                if not self._unsent:
                    self._read()
                if not self._unsent or not self._send():
                    return
        except BaseException:
            self._input, self._unsent = None, []
            self._end = RuntimeError(
                "these results end here: an interrupt came while their next items were submitted"
            )
            raise

    def _read(self) -> None:
        """Read the items of the next chunk.

        They are read in steps, each as large as all before: if the iterable gets slow, a chunk ends.
        """
        if self._input is None:
            return
        count, is_chosen = self._size, self._how.chunksize is not None
        if not is_chosen and self._total is not None:
            left = -(-(self._total - self._taken) // (2 * self._workers))
            count = min(count, max(left, count // 16, 1))
        start = time.perf_counter()
        items = self._unsent
        self._slow = False
        try:
            while len(items) < count and (is_chosen or not self._slow):
                step = min(count - len(items), max(1, len(items)))
                end = len(items) + step
                items.extend(islice(self._input, step))
                self._slow = time.perf_counter() - start > _CHUNK_S
                if len(items) < end:
                    self._input = None
                    break
        except Exception as error:
            self._input, self._end = None, error
        self._taken += len(items)
        self._input_s = (time.perf_counter() - start) / max(1, len(items))
        values = list(chain.from_iterable(items)) if self._how.star else items
        kinds = set(map(type, values))
        self._apart = self._alone or (
            not kinds.isdisjoint(_OWN_CALL) and not all(map(_is_copied, values))
        )
        self._pickled = not kinds <= _PLAIN
        if any(type(one) is np.ndarray and not is_private(one) for one in values):
            self._submit_all()

    def _submit_all(self) -> None:
        """Submit all from now on, if they have an end: calls that the program makes after this one may
        write what these read, or read what they write.
        """
        if self._total is not None:
            self._window = self._least = sys.maxsize

    def _send(self) -> bool:
        """Submit what was read; return whether it is on its way.

        If it cannot be submitted, others may make room: so its place comes first.
        """
        while self._unsent:
            try:
                call = self._submit()
            except Exception as error:
                if any(call.opened is None for call in self._ahead):
                    return False
                count = 1 if self._apart else len(self._unsent)
                failed: concurrent.futures.Future[Any] = concurrent.futures.Future()
                failed.set_exception(error)
                call = _Call(failed, self._of, self._taken - len(self._unsent), count)
            self._ahead.append(call)
            if self._has_raised:
                call.be_silent()
            del self._unsent[: call.count]
        return True

    def _submit(self) -> _Call:
        stream, items, first = self._stream, self._unsent, self._taken - len(self._unsent)
        if stream.is_gone:
            raise RuntimeError("the Worker of these results was closed before their end")
        if not self._apart:
            try:
                sent = stream.pickle_each(items) if self._pickled else items
            except Exception:  # of one item, which gets it when it is alone
                sent = None
            if sent is not None:
                bound = self._chunks.signature.bind((sent, self._pickled), {})
                future = stream.submit_bound(lambda: self._plan_of_chunks, bound)
                chunk = stream.errors, self._chunks.__qualname__, stream.number_of(future)
                return _Call(future, self._of, first, len(items), chunk)
            self._apart = True
            self._submit_all()
        args = items[0] if self._how.star else (items[0],)
        if self._lasts:
            future = stream.submit(self._task, args, {})
        else:
            bound = self._task.signature.bind(args, {})
            future = stream.submit_bound(lambda: self._plan_of_single, bound)
        return _Call(future, self._of, first)

    @functools.cached_property
    def _plan_of_chunks(self) -> CallPlan:
        payload, _ = self._stream.sent(self._chunks)
        payload = payload._replace(reads=self._payload.reads)
        return self._stream.functions.plan(self._chunks, payload, lasts=False)

    @functools.cached_property
    def _plan_of_single(self) -> CallPlan:
        """What is known of the calls that have one item, of the function as it was."""
        return self._stream.functions.plan(self._task, self._alone_payload, lasts=False)


# ---------------------------------------------------------------- what Worker has
def results(
    stream: Stream | NestedStream, function: Any, iterables: Sequence[Iterable[Any]], **options: Any
) -> Results | Iterator[Any]:
    """Return the results of a function for many items, with some `Options`."""
    how = Options(**options)
    what = "starmap" if how.star else "map"
    task = function if isinstance(function, Task) else stream.task_of(function)
    if not iterables:
        raise TypeError("map needs an iterable: map(function, items)")
    for number, one in enumerate(iterables, 1):
        if not isinstance(one, Iterable) and not hasattr(one, "__getitem__"):
            raise TypeError(f"{what} goes through iterables, and number {number} is {one!r:.60}")
    if how.chunksize is not None and integer("chunksize", how.chunksize) < 1:
        raise ValueError(f"chunksize is at least 1, not {how.chunksize}")
    how = how._replace(timeout=limit("timeout", how.timeout))
    rows: Iterable[Any] = iterables[0] if len(iterables) == 1 else zip(*iterables, strict=False)
    if not how.star:
        task.signature.require(len(iterables))
        how = how._replace(star=len(iterables) > 1)
    elif isinstance(stream, Stream):
        rows = map(_arguments_in, rows)
    if not isinstance(stream, Stream):
        return stream.results(task, rows, star=how.star, timeout=how.timeout)
    hints = [operator.length_hint(one, -1) for one in iterables]
    total = min((hint for hint in hints if hint >= 0), default=None)
    of = f"{what} of {task.__qualname__}, called at {caller()}"
    return Results(stream, task, iter(rows), how, of, total)


def _arguments_in(item: Any) -> tuple[Any, ...]:
    try:
        found = iter(item)
    except TypeError:
        raise TypeError(
            f"an item of starmap has the arguments of a call, as (1, 2) has; this one is {item!r:.60}: "
            "map takes single arguments"
        ) from None
    return tuple(found)
