"""`concurrent.futures.Executor` and `multiprocessing.pool.Pool` over a Worker.

Rule     CALL-ADAPT-1
"""

from __future__ import annotations

import concurrent.futures
import multiprocessing.pool
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from multiprocessing.pool import starmapstar  # type: ignore[attr-defined]
from typing import Any

from ..calls import mapping
from ..calls.futures import Future
from ..calls.stream import Stream
from ..errors import RemoteTraceback
from ..system.values import flag, integer
from ..worker import Worker, worker_apart


def _until_given_up(made: Iterator[Any]) -> Iterator[Any]:
    """Yield results; after an error or an interrupt, which end that, what has not begun is cancelled."""
    try:
        yield from made
    finally:
        if isinstance(made, mapping.Results):
            made.be_silent()
            made.close()


class Executor(concurrent.futures.Executor):
    """Runs calls in sub workers, for programs that use `ProcessPoolExecutor`.

    Arguments and values are copied, but for arrays in shared memory. A worker that dies is replaced: the
    calls that it had fail with a `BrokenProcessPool`, the others go on.

    Parameters
    ----------
    max_workers : int | None
        How many workers; None: one for each core.
    mp_context : multiprocessing context | None
        Its start method is used, "spawn" for "forkserver"; None: as `Worker` chooses.
    initializer : callable | None
        Called in each worker as it starts.
    initargs : tuple
        Its arguments.
    max_tasks_per_child : None
        There for programs that say so: workers are replaced only when they have died.
    worker : Worker | None
        An open Worker whose sub workers make the calls, in the place of the other parameters. `shutdown`
        leaves it open.

    Raises
    ------
    TypeError, ValueError
        A parameter is wrong.
    """

    def __init__(
        self,
        max_workers: int | None = None,
        mp_context: Any = None,
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
        *,
        max_tasks_per_child: None = None,
        worker: Worker | None = None,
    ) -> None:
        if max_workers is not None and integer("max_workers", max_workers) <= 0:
            raise ValueError(f"max_workers must be greater than 0, not {max_workers}")
        if max_tasks_per_child is not None:
            raise ValueError(
                f"max_tasks_per_child={max_tasks_per_child!r}: workers are replaced only when they have "
                "died; leave it out"
            )
        self._made: weakref.WeakSet[Any] = weakref.WeakSet()
        """The futures, and results of `map`, that somebody still has."""
        self._is_shut = self._is_closing = False
        self._owned: Worker | None = None
        if worker is None:
            method = mp_context and mp_context.get_start_method()
            worker = self._owned = worker_apart(
                num_sub_workers=max_workers,
                initializer=initializer,
                initargs=initargs,
                start_method="spawn" if method == "forkserver" else method,
            )
        self._worker = worker
        stream = worker._stream()
        self._max_workers = stream.workers if isinstance(stream, Stream) else 1

    def submit(
        self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> concurrent.futures.Future[Any]:
        """Submit a call; see `Worker.submit`. What cannot be sent is the error of its future.

        Raises
        ------
        RuntimeError
            The executor was shut down.
        """
        self._require_open()
        made: concurrent.futures.Future[Any]
        try:
            made = self._worker.submit(fn, *args, **kwargs)
        except Exception as error:
            if self._worker._life.closed:
                raise
            made = concurrent.futures.Future()
            made.set_exception(error.__cause__ or error)
        self._made.add(made)
        return made

    def map(
        self,
        fn: Callable[..., Any],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int | None = None,
    ) -> Iterator[Any]:
        """Call a function for each item, all of which are submitted at once; see `Worker.map`.

        Parameters
        ----------
        timeout : float | None
            In seconds from now, for results that are asked for.
        chunksize : int | None
            Items that are one call; None: a quarter of what each worker will have.

        Raises
        ------
        RuntimeError
            The executor was shut down.
        """
        return _until_given_up(
            self.map_rows(
                fn, list(zip(*iterables, strict=False)), chunksize, timeout, chunksize is not None
            )
        )

    def map_rows(
        self,
        fn: Callable[..., Any],
        rows: list[tuple[Any, ...]],
        chunksize: int | None = None,
        timeout: float | None = None,
        by_chunks: bool = True,
    ) -> Iterator[Any]:
        """Do so, for arguments that are tuples; see `mapping.Options` for `by_chunks`."""
        self._require_open()
        if chunksize is None:
            chunksize = max(1, -(-len(rows) // (4 * self._max_workers)))
        how: Any = {"chunksize": chunksize, "timeout": timeout, "by_chunks": by_chunks}
        return self._results(fn, rows, star=True, eager=True, **how)

    def lazily(
        self, fn: Callable[[Any], Any], items: Iterable[Any], chunksize: int | None, ordered: bool
    ) -> Iterator[Any]:
        """Return results as `Worker.map` does, and `Worker.map_unordered`."""
        self._require_open()
        how: Any = {"chunksize": chunksize, "by_chunks": chunksize is not None}
        return self._results(fn, items, ordered=ordered, **how)

    def _results(self, fn: Callable[..., Any], items: Iterable[Any], **how: Any) -> Iterator[Any]:
        made = mapping.results(self._worker._stream(), fn, (items,), **how)
        if isinstance(made, mapping.Results):
            self._made.add(made)
        return made

    def finish_maps(self) -> None:
        """Call the functions for all items of its maps, also those that nobody has asked for."""
        for one in list(self._made):
            if isinstance(one, mapping.Results):
                one.finish(to_the_end=True)

    def terminate(self) -> None:
        """Shut down: cancel what has not begun, and terminate workers of its own that are at work."""
        self._is_shut = True
        for one in list(self._made):
            one.cancel()
            if isinstance(one, (Future, mapping.Results)):
                one.be_silent()
        if self._owned is not None and (stream := self._owned._life.stream) is not None:
            stream.dropped_maps.clear()
            stream.end(2)
            self.shutdown()

    def _require_open(self) -> None:
        if self._is_shut:
            raise RuntimeError("cannot schedule new futures after shutdown")
        if self._worker._life.closed:
            raise RuntimeError("cannot schedule new futures: the Worker of this executor is closed")

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Submit nothing more; wait for the calls, and close the workers that it has made.

        Parameters
        ----------
        wait : bool
            Whether to wait for the calls now; otherwise a thread does, at the latest at the end of the
            program.
        cancel_futures : bool
            Whether to cancel those that have not begun.
        """
        self._is_shut = True
        if flag("cancel_futures", cancel_futures):
            for one in list(self._made):
                one.cancel()
        stream = self._worker._life.stream
        if not wait:
            self._close_later()
        elif self._owned is not None:
            self._owned.close()
        elif not self._worker._life.closed:
            self._worker.wait()
        if wait and stream is not None:
            stream.notifier.finish()  # programs count on callbacks now

    def _close_later(self) -> None:
        """Close its workers once their calls have ended, in a thread, which the program waits for."""
        if self._owned is not None and not self._is_closing and not self._owned._life.closed:
            self._is_closing = True
            with suppress(RuntimeError):  # the program ends, which closes them as well
                threading.Thread(target=self._owned.close, name="simpler_ref-executor").start()

    def __del__(self) -> None:
        owned = getattr(self, "_owned", None)
        stream = None if owned is None else owned._life.stream
        if stream is not None and not stream.is_gone and stream.has_calls:
            self._close_later()


# ---------------------------------------------------------------- pools
_calling_back = threading.local()
"""Has an attribute in a thread that runs a callback: it waits for no others, which come after it."""


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
        _calling_back.it = self
        try:
            if error is None and callback is not None:
                callback(value)
            elif error is not None and error_callback is not None:
                error_callback(error)
        finally:
            vars(_calling_back).clear()
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
        if not vars(_calling_back):
            self._has_told.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))

    def ready(self) -> bool:
        """Say whether it is there, and callbacks have returned."""
        has_told = self._has_told.is_set() or bool(vars(_calling_back))
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
        if timeout is None or not isinstance(results, mapping.Results):
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
        first = processes, context, initializer, initargs
        self._executor = Executor(*first, max_tasks_per_child=maxtasksperchild, worker=worker)
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
        futures = made.futures if isinstance(made, mapping.Results) else []  # over, in a task
        return AsyncResult(futures, lambda: list(made), callback, error_callback)

    def imap(  # type: ignore[override]
        self, func: Callable[[Any], Any], iterable: Iterable[Any], chunksize: int | None = None
    ) -> _Iterator:
        """Return the values for all items, in an iterator; see `Worker.map`."""
        self._require_open()
        return _Iterator(self._executor.lazily(func, iterable, chunksize, ordered=True))

    def imap_unordered(  # type: ignore[override]
        self, func: Callable[[Any], Any], iterable: Iterable[Any], chunksize: int | None = None
    ) -> _Iterator:
        """Return the values for all items as the calls end, in an iterator."""
        self._require_open()
        return _Iterator(self._executor.lazily(func, iterable, chunksize, ordered=False))

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
        self._executor.finish_maps()
        self._executor.shutdown()
