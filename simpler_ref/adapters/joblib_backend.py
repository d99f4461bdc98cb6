"""The backend of joblib: `Parallel`, and `n_jobs` of scikit-learn, on the workers of a Worker.

    Parallel      cuts items into batches ──▶ submit    pickles a batch, in which large arrays are shared
                                                │
                                                ▼
    a call        `_run`, in a sub worker, with the pickle
                                                │
    the watcher   ◀── the future has ended ─────┘       (the thread that notifies futures)
                  hands the values to Parallel, which submits the next batch
    the program   sleeps in `retrieval_context`, or goes through a generator

An array that is not in shared memory, and not small, is copied there once in each call of `Parallel`, and
forgotten at its end: the program may write it between two calls. Batches have its address, since no task
writes there: such an array is read-only.

Batches run in the innermost open Worker if it has as many sub workers as there are jobs. Else the
backend makes a Worker, to which the program's own calls do not go, and keeps it for the next `Parallel`
that wants the same; one that is not wanted any more is closed as soon as nothing refers to it.

Rule     CALL-JOBLIB-1
"""

from __future__ import annotations

import concurrent.futures
import os
import pickle
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from joblib import cpu_count, register_parallel_backend
from joblib._memmapping_reducer import _get_backing_memmap, _reduce_memmap_backed
from joblib._parallel_backends import (
    AutoBatchingMixin,
    FallbackToBackend,
    ParallelBackendBase,
    SequentialBackend,
    mp,
)
from joblib._utils import _retrieve_traceback_capturing_wrapped_call
from joblib.externals.loky.process_executor import TerminatedWorkerError, _ExceptionWithTraceback

from ..callables.pickling import SharedArrays
from ..calls.futures import Future
from ..calls.tasks import current, here
from ..errors import WorkerLostError
from ..system import forks
from ..worker import Kept, Worker

NAME = "simpler_ref"
_LOOK_AGAIN_S = 10.0
"""How long to wait for the end of a batch before it is looked at whether all have ended."""
_GRACE_S = 2.0
"""How long to wait for the end of workers that are killed."""


def register() -> None:
    """Make the backend known to joblib."""
    register_parallel_backend(NAME, SimplerRefBackend)


class LostError(WorkerLostError, TerminatedWorkerError):  # type: ignore[misc]
    """A `WorkerLostError` that programs for loky expect."""


# ---------------------------------------------------------------- in a worker
def _run(data: bytes) -> Any:
    """Call the functions of a batch, and return their values.

    What would end a program, and is a `TaskError` elsewhere, comes to the user as it is, as with loky.
    """
    try:
        return pickle.loads(data)()
    except Exception:
        raise
    except BaseException as error:
        return _ExceptionWithTraceback(error)


def _begin(env: Mapping[str, str], initializer: Callable[..., Any] | None, args: Any) -> None:
    """Begin as a worker: with so many threads of libraries, and what the user wants to be called."""
    os.environ.update(env)
    forks.users_variables.update({name: env[name] for name in forks.VARIABLES})
    forks.limiter()()
    if initializer is not None:
        initializer(*args)


# ---------------------------------------------------------------- arrays within batches
class _Shared(SharedArrays):
    """The arrays of one call of `Parallel`: those of mapped files are mapped by workers, too."""

    def __init__(self, stream: Any, max_nbytes: int | None, mode: str | None) -> None:
        least = float("inf") if max_nbytes is None or mode is None else max_nbytes
        super().__init__(stream, least, mode or "r")

    def reduce(self, array: Any) -> Any:
        file = _get_backing_memmap(array)
        if isinstance(file, np.memmap):
            return _reduce_memmap_backed(array, file)
        return super().reduce(array)


# ---------------------------------------------------------------- Workers
def _kill(stream: Any, futures: Iterable[Any]) -> None:
    """End calls together with their workers, which are replaced.

    What a worker was given, and had not begun, another one gets: so it is cancelled, too.
    """
    view, manager = stream._session.engine.view, stream._session.manager
    if manager is None:
        return
    killed: set[int] = set()
    deadline = time.monotonic() + _GRACE_S
    while left := [one for one in futures if not one.done() and not one.cancel()]:
        for worker in {view.call(slot).worker for one in left if (slot := one._slot)} - {-1}:
            if (pid := manager.pids.get(worker, 0)) not in killed:
                killed.add(pid)
                manager.kill_busy([worker])
        if time.monotonic() > deadline:
            break
        time.sleep(0.001)


_kept = Kept()
"""The Worker of the backend, if the program has none."""
close = _kept.close


def _open_workers() -> int:
    """Return how many sub workers the innermost open Worker has; 0 without one."""
    stream = current()
    if stream is None:
        return 0
    options = stream._life.options
    return options.num_sub_workers if options.child_mode == "process" else 0


# ---------------------------------------------------------------- the backend
class SimplerRefBackend(AutoBatchingMixin, ParallelBackendBase):  # type: ignore[misc]
    """What `Parallel` runs its batches with; joblib says what each method is for."""

    supports_retrieve_callback = True
    supports_inner_max_num_threads = True
    MIN_IDEAL_BATCH_DURATION = 0.02
    """In seconds: a batch takes some tens of microseconds more than its items."""

    _effective_batch_size: int
    _stream: Any = None
    _owned: Worker | None = None
    """The Worker that the stream is of, if only joblib uses it."""

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """Return how many jobs run at the same time."""
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")
        if mp is None or n_jobs is None or here.nested is not None:
            return 1
        below = None
        if mp.current_process().daemon:
            below = "a process of multiprocessing"
        elif not (self.in_main_thread() or self.nesting_level == 0):
            below = "threads"
        if below is not None:
            if n_jobs != 1:
                text = (
                    f"{NAME}-backed parallel loops cannot be nested below {below}, setting n_jobs=1"
                )
                warnings.warn(text, stacklevel=3)
            return 1
        return int(max((_open_workers() or cpu_count()) + 1 + n_jobs, 1) if n_jobs < 0 else n_jobs)

    def configure(
        self,
        n_jobs: int = 1,
        parallel: Any = None,
        prefer: Any = None,
        require: Any = None,
        max_nbytes: int | None = None,
        mmap_mode: str | None = "r",
        **options: Any,
    ) -> int:
        """Choose a Worker, and return how many jobs run at the same time."""
        n_jobs = self.effective_n_jobs(n_jobs)
        if n_jobs == 1:
            raise FallbackToBackend(SequentialBackend(nesting_level=self.nesting_level))
        options = {**self.backend_kwargs, **options}
        is_usual = self.inner_max_num_threads is None and options.get("initializer") is None
        if is_usual and _open_workers() == n_jobs:
            self._stream, self._owned = current(), None
        else:
            first = self._prepare_worker_env(n_jobs), options.get("initializer")
            args = *first, tuple(options.get("initargs", ()))
            self._owned = _kept.get(num_sub_workers=n_jobs, initializer=_begin, initargs=args)
            self._stream = self._owned._life.stream
        self.parallel = parallel
        self._arrays = max_nbytes, mmap_mode
        self._under_way: set[Any] = set()
        self._changed = threading.Event()
        """Set whenever a batch has ended."""
        self.start_call()
        return n_jobs

    def compute_batch_size(self) -> int:
        """Return how many items the next batch has: where joblib doubles that, up to eight times as many.

        As long as it should take a quarter of what a batch is to take: the first items tell little of the
        others.
        """
        before: int = self._effective_batch_size
        seconds: float = self._smoothed_batch_duration
        size: int = super().compute_batch_size()
        if size > before:
            fitting = int(before * self.MIN_IDEAL_BATCH_DURATION / seconds)
            self._effective_batch_size = size = max(size, min(8 * before, fitting // 4))
        return size

    def _prepare_worker_env(self, n_jobs: int) -> dict[str, str]:
        """Return the variables for the libraries' threads, without those that this package has set."""
        env: dict[str, str] = super()._prepare_worker_env(n_jobs)
        if self.inner_max_num_threads is None:
            threads = str(max(cpu_count() // n_jobs, 1))
            for name in forks.VARIABLES:
                if env[name] == "1" and name not in forks.users_variables:
                    env[name] = threads
        return env

    def start_call(self) -> None:
        """Begin a call of `Parallel`, which copies arrays as they are now."""
        self._shared = _Shared(self._stream, *self._arrays)

    def stop_call(self) -> None:
        """Forget the copies of arrays; tasks that still run keep them."""
        self.start_call()

    def submit(self, func: Any, callback: Callable[[Any], Any] | None = None) -> Any:
        """Submit a batch; what goes wrong is the outcome of its future."""
        future: concurrent.futures.Future[Any]
        stream = self._stream
        try:
            try:
                data = self._shared.pickle(func)
            except Exception as error:
                raise pickle.PicklingError(
                    "Could not pickle the task to send it to the workers."
                ) from error
            future = stream.submit(stream.task_of(_run), (data,), {})
        except Exception as error:
            future = concurrent.futures.Future()
            future.set_exception(error)
        self._under_way.add(future)

        def ended(future: Any) -> None:
            self._under_way.discard(future)
            if isinstance(future, Future):
                future.be_silent()  # of several errors `Parallel` raises one
            try:
                if callback is not None:
                    callback(future)
            finally:
                self._changed.set()

        future.add_done_callback(ended)
        return future

    def retrieve_result_callback(self, out: Any) -> Any:
        """Return the values of a batch, or raise what it has raised."""
        try:
            return _retrieve_traceback_capturing_wrapped_call(out.result())
        except WorkerLostError as error:
            if type(error) is WorkerLostError:
                error.__class__ = LostError
            raise

    @contextmanager
    def retrieval_context(self) -> Iterator[None]:
        """Sleep until all batches have ended, if nobody wants values before: `Parallel` would poll."""
        parallel = self.parallel
        if not parallel.return_generator and parallel.timeout is None:
            while True:
                self._changed.clear()
                if parallel._aborting or not parallel._wait_retrieval():
                    break
                self._changed.wait(_LOOK_AGAIN_S)
        yield

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """Cancel the batches that have not begun; end the others, if the Worker is its own."""
        begun = [future for future in tuple(self._under_way) if not future.cancel()]
        for future in begun:
            if isinstance(future, Future):
                future.be_silent()
        if self._owned is not None:
            _kill(self._stream, begun)

    def terminate(self) -> None:
        """Leave the Worker, for the next call of `Parallel`."""
        self._stream = self._owned = None
        self.reset_batch_stats()
