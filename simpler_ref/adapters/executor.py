"""`concurrent.futures.Executor` over a Worker.

Rule     CALL-ADAPT-1
"""

from __future__ import annotations

import concurrent.futures
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

from ..apart import worker_apart
from ..calls import mapping
from ..calls.futures import Future
from ..calls.stream import Stream
from ..system.values import flag, integer
from ..worker import Worker


def futures_of(results: Iterator[Any]) -> list[concurrent.futures.Future[Any]]:
    """Return the futures of the calls behind results; a task has none, whose calls are over."""
    return results.futures if isinstance(results, mapping.Results) else []


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
        return self.map_rows(fn, list(zip(*iterables, strict=False)), chunksize, timeout)

    def map_rows(
        self,
        fn: Callable[..., Any],
        rows: list[tuple[Any, ...]],
        chunksize: int | None = None,
        timeout: float | None = None,
    ) -> Iterator[Any]:
        """Do so, for arguments that are tuples."""
        self._require_open()
        if chunksize is None:
            chunksize = max(1, -(-len(rows) // (4 * self._max_workers)))
        made = mapping.results(
            self._worker._stream(),
            fn,
            (rows,),
            star=True,
            chunksize=chunksize,
            timeout=timeout,
            eager=True,
        )
        return self._noted(made)

    def lazily(
        self, method: str, fn: Callable[[Any], Any], items: Iterable[Any], chunksize: int | None
    ) -> Iterator[Any]:
        """Return the results of `Worker.map` or `Worker.map_unordered`."""
        self._require_open()
        return self._noted(getattr(self._worker, method)(fn, items, chunksize=chunksize))

    def _noted(self, made: Iterator[Any]) -> Iterator[Any]:
        if isinstance(made, mapping.Results):
            self._made.add(made)
        return made

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
            stream.finish_notifying()  # programs count on callbacks now

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
