"""What a Worker has for calls: methods of `Worker`.

Rule     CALL-FAR-1, CALL-MAP-1, CALL-MAP-2, CALL-MAP-4, CALL-STREAM-1, CALL-STREAM-5, CALL-STREAM-9,
         CALL-TILES-1
"""

from __future__ import annotations

import concurrent.futures
import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..callables.pickling import is_plain
from ..system.types import Array
from ..system.values import integer, limit
from . import actors, mapping
from .futures import Future
from .inside import NESTED, NestedStream
from .mapping import Results
from .signatures import InOut
from .stream import Stream
from .tasks import Task, here, is_own, task

if TYPE_CHECKING:
    from ..workers.life import Life
    from ..workers.session import Session


@task
def _nothing(*arrays: InOut) -> None:
    """Run once nobody else uses the arrays."""


class CallMethods:
    """The methods of a Worker with sub workers."""

    _life: Life
    _has_only_level = False
    register: Any
    _make_far_stream: Any
    zeros: Any

    def submit(self, function: Any, /, *args: Any, **kwargs: Any) -> Future:
        """Call a function in a worker, and return its future; see `task`.

        A function that is no task gets the default of one: arrays are read, and nothing else is shared.

        Raises
        ------
        TypeError, ValueError
            The arguments do not fit the function's parameters; an array that it writes is not shared.
        RuntimeError
            Not open; in an orchestration function; inside a task.
        """
        usual = self._life.stream
        if usual is not None and not kwargs and here.nested is None:
            future: Future | None = usual.call_quickly(usual, function, args)
            if future is not None:
                return future
        stream = self._stream()
        if type(function) is functools.partial and isinstance(stream, Stream):
            first, named = function.args, function.keywords
            if (
                stream.sends_functions
                and not vars(function)
                and is_plain((*first, *named.values()))
            ):
                # as arguments: the partial would be sent for each call, if each has its own
                return self.submit(function.func, *first, *args, **{**named, **kwargs})
        made = function if isinstance(function, Task) else stream.task_of(function)
        return stream.submit(made, args, kwargs)

    def map(
        self,
        function: Any,
        /,
        *iterables: Iterable[Any],
        chunksize: int | None = None,
        timeout: float | None = None,
    ) -> Results | Iterator[Any]:
        """Call a function for each item, and return the results in order, in an iterator.

        It begins at once, and reads items as results are asked for: only some calls are in flight. But if
        an item has a shared array, all are submitted, unless their iterable has no length. Items
        that are values travel in chunks, each of which is one call; an item with an array, or for a task
        that writes arrays, is a call of its own. An error of an item is raised when its result is asked
        for; the iterator then goes on with the next item.

        Parameters
        ----------
        function : Task or callable
            Called with an item of each iterable.
        *iterables : Iterable
            The items, until the shortest ends.
        chunksize : int | None
            Items per chunk; None: as many as take a few milliseconds, fewer towards the end.
        timeout : float | None
            In seconds, from this call on: a result that is not there by then, when it is asked for, is a
            `TimeoutError`.

        Raises
        ------
        TypeError, ValueError
            The function takes another number of arguments; a parameter is wrong.
        RuntimeError
            Not open; inside a task.
        """
        return mapping.results(
            self._stream(), function, iterables, chunksize=chunksize, timeout=timeout
        )

    def starmap(
        self,
        function: Any,
        iterable: Iterable[Iterable[Any]],
        /,
        *,
        chunksize: int | None = None,
        timeout: float | None = None,
    ) -> Results | Iterator[Any]:
        """Call a function with the arguments in each item, ``function(*item)``; see `map`."""
        return mapping.results(
            self._stream(), function, (iterable,), star=True, chunksize=chunksize, timeout=timeout
        )

    def map_unordered(
        self,
        function: Any,
        /,
        *iterables: Iterable[Any],
        chunksize: int | None = None,
        timeout: float | None = None,
    ) -> Results | Iterator[Any]:
        """Call a function for each item, and return the results as the calls end; see `map`."""
        return mapping.results(
            self._stream(), function, iterables, chunksize=chunksize, timeout=timeout, ordered=False
        )

    def wait(self, *arrays: Array, timeout: float | None = None) -> None:
        """Wait until no call is under way; given arrays, none of those submitted so far that use them.

        Parameters
        ----------
        *arrays : ndarray
            Shared arrays, or views of them: afterwards no call reads or writes any of their bytes.
        timeout : float | None
            In seconds.

        Raises
        ------
        Exception
            What a call has raised that should have written one of the arrays; see `Future.result`.
        TimeoutError
            The calls have not ended in time.
        TypeError, ValueError
            An array is not shared; `timeout` is no number of seconds.
        RuntimeError
            Not open; in an orchestration function; inside a task.
        """
        limit_s = limit("timeout", timeout)
        stream = self._stream()
        if not isinstance(stream, Stream):
            return
        if arrays:
            behind = stream.submit(_nothing, arrays, {})
            has_ended = stream.wait_for_turn(behind, limit_s)
            if has_ended and behind.done():  # it fails with who should have written them
                behind.result()
        else:
            has_ended = stream.wait_for_submitted(limit_s, later=True)
        if not has_ended:
            raise concurrent.futures.TimeoutError(
                f"calls have not ended within {timeout} s; they go on"
            )

    def actor(self, kind: type, /, *args: Any, **kwargs: Any) -> Any:
        """Make an object in one of the workers, and return an actor, whose methods are calls there.

        ``counter = w.actor(Counter, 0)``, then ``counter.add(1)`` returns a future. The calls of one
        actor run in order, one after another, and find what those before have left; arrays and
        annotations of parameters are those of calls. Actors are spread over the workers.

        Parameters
        ----------
        kind : type
            The class.
        *args, **kwargs
            For its object.

        Raises
        ------
        Exception
            What making the object has raised.
        TypeError
            `kind` is no class.
        RuntimeError
            Not open; inside a task. A call raises `WorkerLostError` if the worker has died: the object is
            gone then.

        Notes
        -----
        Tasks call the methods of an actor that is their argument at once, in whatever worker they run.
        ``with w.actor(…) as x:`` ends it, as ``x.end()`` does, and so does dropping one that was no
        argument.
        """
        return actors.Actor(self._stream(), self.zeros, kind, args, kwargs)

    def _stream(self) -> Stream | NestedStream:
        """Return the stream of calls; in a task that has not opened the Worker, what is in its place."""
        if here.nested is not None and not is_own(self._life):
            return NESTED
        self._life.live()
        stream: Stream | None = self._life.stream
        if stream is None:
            self._life.live()  # it may have been closed meanwhile
            raise self._nobody_for_calls()
        return stream

    def _nobody_for_calls(self) -> RuntimeError:
        return RuntimeError(self._life.endpoints.why_no_calls(self._life.options.level))

    def _make_stream(self, session: Session) -> Stream | None:
        """Return the stream of a Worker that is opened: to its own sub workers if it has any."""
        life = self._life
        if life.parent_level or not life.takes_calls:
            return None
        if self._life.subs:
            return Stream(life, session, self.register)
        stream: Stream = self._make_far_stream(session)
        return stream

    def _stream_for_calls(self) -> Stream | None:
        """Return the stream of a Worker that was entered, opening it, if it can have one.

        RuntimeError: it was made to run the program at endpoints, and these have no sub workers; or by
        ``Worker(4)``, which is no Worker with four workers.
        """
        life = self._life
        if life.closed or life.parent_level:
            return None
        if not life.takes_calls:
            if life.endpoints.take_functions or self._has_only_level:
                raise self._nobody_for_calls()
            return None
        life.live()
        stream: Stream | None = life.stream
        return stream

    def tiles(
        self,
        array: Array,
        shape: int | Sequence[int | None],
        halo: int | Sequence[int | None] = 0,
    ) -> Tiles:
        """Return the tiles of an array: views of it, in C order, for calls that work on one each.

        Parameters
        ----------
        array : ndarray
            Any numpy array; tasks write those of `share` and the like.
        shape : int | Sequence[int | None]
            Elements of a tile along each axis, an int: along the first one. None, or no number: the
            whole axis. The last tiles are smaller where the array ends.
        halo : int | Sequence[int]
            How many more elements a tile has on each side of the axes that are cut, as far as the array
            goes.

        Raises
        ------
        TypeError, ValueError
            No numpy array; a number is too small, or there are more of them than axes.

        Examples
        --------
        >>> tiles = w.tiles(image, (256, 256), halo=1)
        >>> tiles[0, 1]                        # a view: the second tile of the first row
        >>> sums = list(w.map(total, tiles))
        """
        return Tiles(array, shape, halo)


# ---------------------------------------------------------------- tiles
Index = tuple[slice, ...]


class Tiles(Sequence[Array]):
    """The tiles of an array, in C order; see `Worker.tiles`.

    ``tiles[3]`` is the fourth one, ``tiles[i, j]`` that of a row and a column of the grid.

    Attributes
    ----------
    array : ndarray
        What they are views of.
    shape : tuple of int
        Of a whole tile without halo, along each axis that is cut.
    grid : tuple of int
        How many tiles there are, along each of these axes.
    halo : tuple of int
        How many more elements a tile has on each side, as far as the array goes.
    """

    def __init__(self, array: Any, shape: Any, halo: Any = 0) -> None:
        if not isinstance(array, np.ndarray):
            raise TypeError(f"tiles are views of a numpy array, not of {type(array).__name__}")
        sizes = _per_axis("shape", shape, array, 1)
        self.array = array
        self.shape = tuple(
            max(1, whole) if size is None else size
            for size, whole in zip(sizes, array.shape, strict=False)
        )
        self.grid = tuple(
            1 if size is None else -(-whole // size)
            for size, whole in zip(sizes, array.shape, strict=False)
        )
        margins = _per_axis("halo", halo, array, 0)
        if _is_number(halo):
            margins *= len(sizes)
        if len(margins) > len(sizes):
            raise ValueError(
                f"halo={halo!r} has more axes than shape={shape!r}: give None for those"
            )
        self.halo = tuple(
            margin or 0 for margin, _ in itertools.zip_longest(margins, sizes, fillvalue=None)
        )

    def __len__(self) -> int:
        return math.prod(self.grid)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return self._view(self._place(index))

    def __iter__(self) -> Iterator[Array]:
        return map(self._view, itertools.product(*map(range, self.grid)))

    def inner(self, index: int | tuple[int, ...]) -> Index:
        """Return which part of a tile is not halo: ``tiles[i][tiles.inner(i)]``."""
        place = self._place(index)
        both = zip(self._slices(place), self._bounds(place), strict=True)
        return tuple(
            slice(first - outer.start, stop - outer.start) for outer, (first, stop) in both
        )

    def inners(self) -> Iterator[Index]:
        """Yield `inner` of each tile, in their order."""
        return map(self.inner, range(len(self)))

    def __repr__(self) -> str:
        grid = " × ".join(map(str, self.grid))
        halo = f", halo {self.halo}" if any(self.halo) else ""
        of = f"{self.array.dtype} array of shape {self.array.shape}"
        return f"<{grid} tiles of shape {self.shape}{halo}, of a {of}>"

    # ------------------------------------------------------------ places in the grid
    def _place(self, index: Any) -> tuple[int, ...]:
        if not isinstance(index, tuple):
            flat = _within(index, len(self), f"{len(self)} tiles")
            return tuple(map(int, np.unravel_index(flat, self.grid)))
        if len(index) != len(self.grid):
            raise IndexError(f"{index} has {len(index)} numbers, the grid {self.grid} has others")
        return tuple(
            _within(one, count, f"a grid of {self.grid}")
            for one, count in zip(index, self.grid, strict=True)
        )

    def _bounds(self, place: tuple[int, ...]) -> Iterator[tuple[int, int]]:
        for number, size, whole in zip(place, self.shape, self.array.shape, strict=False):
            yield number * size, min((number + 1) * size, whole)

    def _slices(self, place: tuple[int, ...]) -> Index:
        sides = zip(self._bounds(place), self.halo, self.array.shape, strict=False)
        return tuple(
            slice(max(start - margin, 0), min(stop + margin, whole))
            for (start, stop), margin, whole in sides
        )

    def _view(self, place: tuple[int, ...]) -> Array:
        view: Array = self.array[self._slices(place)]
        return view


def _is_number(value: Any) -> bool:
    return hasattr(value, "__index__")


def _per_axis(name: str, value: Any, array: Array, least: int) -> list[int | None]:
    """Return a size for each axis that has one; refuse what is none, or for more axes than there are."""
    values = [value] if _is_number(value) else value
    if not isinstance(values, (tuple, list)):
        raise TypeError(f"{name} is an int or a tuple of them, not {value!r}")
    if len(values) > array.ndim:
        raise ValueError(
            f"{name}={value!r} is for {len(values)} axes, the array has {array.ndim}: {array.shape}"
        )
    sizes = [one if one is None else integer(name, one) for one in values]
    if any(size is not None and size < least for size in sizes):
        raise ValueError(f"{name}={value!r}: each number is at least {least}")
    return sizes


def _within(index: Any, count: int, what: str) -> int:
    """Return an index that may be negative as one from 0."""
    number = integer("index", index)
    if not -count <= number < count:
        raise IndexError(f"tile {number} of {what}")
    return number % count
