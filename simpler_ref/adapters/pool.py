"""`multiprocessing.pool.Pool` over a Worker.

Rule     CALL-ADAPT-1
"""

from __future__ import annotations

import concurrent.futures
import multiprocessing.pool
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from multiprocessing.pool import starmapstar  # type: ignore[attr-defined]
from typing import Any

from ..calls.mapping import Results
from ..errors import RemoteTraceback
from ..worker import Worker
from .executor import Executor, futures_of


class _CallingBack(threading.local):
    """Whether this thread runs a callback: it waits for no others, which come after it."""

    is_so = False


_calling_back = _CallingBack()


class AsyncResult:
    """What `Pool.apply_async` and `Pool.map_async` return: a value that comes.

    `futures` are those of its calls, and ``take()`` returns the value once they have ended.
    """

    def __init__(
        self,
        futures: list[Any],
        take: Callable[[], Any],
        callback: Callable[[Any], object] | None,
        error_callback: Callable[[BaseException], object] | None,
    ) -> None:
        self._futures, self._take = futures, take
        self._outcome: tuple[Any, BaseException | None] | None = None
        self._callbacks = callback, error_callback
        self._left = len(futures)
        self._lock = threading.RLock()
        """Of the thread that takes the value, or counts: the program's, or the one that notifies."""
        self._has_told = threading.Event()
        if callback is None and error_callback is None:
            self._has_told.set()
        else:
            for one in futures:
                one.add_done_callback(self._note)
            if not futures:
                self._tell()

    def _note(self, _: object) -> None:
        with self._lock:
            self._left -= 1
            is_last = not self._left
        if is_last:
            self._tell()

    def _tell(self) -> None:
        value, error = self._fetch()
        callback, error_callback = self._callbacks
        _calling_back.is_so = True
        try:
            if error is None and callback is not None:
                callback(value)
            elif error is not None and error_callback is not None:
                error_callback(error)
        finally:
            _calling_back.is_so = False
            self._has_told.set()

    def _fetch(self) -> tuple[Any, BaseException | None]:
        with self._lock:
            if self._outcome is None:
                try:
                    self._outcome = self._take(), None
                except Exception as error:
                    self._outcome = None, error
            return self._outcome

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the value, or the error, is there, for at most `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        for one in self._futures:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                one.exception(left)
            except concurrent.futures.CancelledError:
                pass
            except concurrent.futures.TimeoutError:
                return
        if not _calling_back.is_so:
            self._has_told.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))

    def ready(self) -> bool:
        """Say whether it is there, and callbacks have returned."""
        has_told = self._has_told.is_set() or _calling_back.is_so
        return has_told and all(one.done() for one in self._futures)

    def successful(self) -> bool:
        """Say whether there is a value.

        Raises
        ------
        ValueError
            Neither is there yet.
        """
        if not self.ready():
            raise ValueError(f"{self!r} not ready")
        return self._fetch()[1] is None

    def get(self, timeout: float | None = None) -> Any:
        """Wait for the value, and return it.

        Raises
        ------
        multiprocessing.TimeoutError
            It is not there within `timeout` seconds.
        Exception
            What the function has raised.
        """
        self.wait(timeout)
        if not self.ready():
            raise multiprocessing.TimeoutError(f"no result within {timeout} s")
        value, error = self._fetch()
        if error is not None:
            raise error
        return value


class _Iterator:
    """What `Pool.imap` returns: the values, one after another; also within a time."""

    def __init__(self, results: Iterator[Any]) -> None:
        self._results = results

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._results)

    def next(self, timeout: float | None = None) -> Any:
        """Return the next value, and wait for it for at most `timeout` seconds."""
        results = self._results
        if timeout is None or not isinstance(results, Results):
            return next(results)
        results.deadline = time.monotonic() + timeout
        try:
            return next(results)
        except concurrent.futures.TimeoutError as error:
            if not isinstance(error.__cause__, RemoteTraceback):
                raise multiprocessing.TimeoutError(f"no result within {timeout} s") from None
            raise
        finally:
            results.deadline = None


class Pool(multiprocessing.pool.Pool):
    """Runs calls in sub workers, for programs that use `multiprocessing.Pool`.

    Methods that are not here are its own: they call these.

    Parameters
    ----------
    processes : int | None
        How many workers; None: one for each core.
    initializer : callable | None
        Called in each worker as it starts.
    initargs : tuple
        Its arguments.
    maxtasksperchild : None
        There for programs that say so: workers are replaced only when they have died.
    context : multiprocessing context | None
        Its start method is used; see `Executor`.
    worker : Worker | None
        An open Worker to use in the place of workers of its own; it stays open.
    """

    def __init__(
        self,
        processes: int | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
        maxtasksperchild: None = None,
        context: Any = None,
        *,
        worker: Worker | None = None,
    ) -> None:
        self._executor = Executor(
            processes,
            context,
            initializer,
            initargs,
            max_tasks_per_child=maxtasksperchild,
            worker=worker,
        )
        self._state = multiprocessing.pool.RUN
        self._pool = range(self._executor._max_workers)  # of which there is the length in its text

    def __del__(self) -> None:
        """Leave its workers to the end of the executor."""

    def apply_async(  # type: ignore[override]
        self,
        func: Callable[..., Any],
        args: Iterable[Any] = (),
        kwds: Mapping[str, Any] | None = None,
        callback: Callable[[Any], object] | None = None,
        error_callback: Callable[[BaseException], object] | None = None,
    ) -> AsyncResult:
        """Call a function in a worker; a thread calls `callback` with its value, or the other."""
        self._require_open()
        future = self._executor.submit(func, *args, **(kwds or {}))
        return AsyncResult([future], future.result, callback, error_callback)

    def _map_async(
        self,
        func: Callable[..., Any],
        iterable: Iterable[Any],
        mapper: Any,
        chunksize: int | None = None,
        callback: Callable[[list[Any]], object] | None = None,
        error_callback: Callable[[BaseException], object] | None = None,
    ) -> AsyncResult:
        """Call a function for each item, as `map` and `starmap` do and those that do not wait."""
        self._require_open()
        is_star = mapper is starmapstar
        rows = [tuple(one) if is_star else (one,) for one in iterable]
        made = self._executor.map_rows(func, rows, chunksize)
        return AsyncResult(futures_of(made), lambda: list(made), callback, error_callback)

    def imap(  # type: ignore[override]
        self, func: Callable[[Any], Any], iterable: Iterable[Any], chunksize: int | None = None
    ) -> _Iterator:
        """Return the values for all items, in an iterator; see `Worker.map`."""
        self._require_open()
        return _Iterator(self._executor.lazily("map", func, iterable, chunksize))

    def imap_unordered(  # type: ignore[override]
        self, func: Callable[[Any], Any], iterable: Iterable[Any], chunksize: int | None = None
    ) -> _Iterator:
        """Return the values for all items as the calls end, in an iterator."""
        self._require_open()
        return _Iterator(self._executor.lazily("map_unordered", func, iterable, chunksize))

    # ------------------------------------------------------------ its end
    def _require_open(self) -> None:
        if self._state != multiprocessing.pool.RUN:
            raise ValueError("Pool not running")

    def close(self) -> None:
        """Take no more calls."""
        self._state = multiprocessing.pool.CLOSE

    def terminate(self) -> None:
        """Cancel what has not begun, terminate the workers that are the pool's own, and end."""
        self._state = multiprocessing.pool.CLOSE
        self._executor.terminate()

    def join(self) -> None:
        """Wait for the calls, and for the end of the workers that are the pool's own.

        Raises
        ------
        ValueError
            Neither `close` nor `terminate` came before.
        """
        if self._state == multiprocessing.pool.RUN:
            raise ValueError("Pool is still running")
        self._executor.shutdown()
