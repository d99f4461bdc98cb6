"""The decorator `task`: a function whose calls are tasks; and which Worker a call goes to.

Rule     CALL-COMPILED-1, CALL-COMPILED-6, CALL-LIMIT-1, CALL-LIMIT-3, CALL-SENT-1, CALL-SENT-2,
         CALL-STREAM-1, CALL-WORKER-1, CALL-WORKER-4, ORCH-RUN-2
"""

from __future__ import annotations

import functools
import itertools
import operator
import os
import threading
import types
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

from ..callables.pickling import ByValue, find_imported
from ..callables.runnable import OPTIONS, require_options, require_runnable
from ..jit import layout as L
from ..system.values import flag, positive_seconds, text, whole
from ..workers import loop
from .signatures import Signature

if TYPE_CHECKING:
    from .compiled import Code

_MOST_S = 1e9
_serials = itertools.count()
known: weakref.WeakValueDictionary[int, Task] = weakref.WeakValueDictionary()
"""The tasks of this process, also those that it has inherited."""


class Task:
    """A function, `py_func`, whose calls are tasks of the current Worker; see `task`.

    A worker calls `run`; `code` is what a compiled task is compiled to.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        signature: Signature,
        timeout: float | None = None,
        retries: int = 0,
        code: Code | None = None,
        workers: tuple[int, ...] = (),
        name: str | None = None,
    ) -> None:
        self.py_func, self.code, self.signature = function, code, signature
        self.run = function if code is None else code.run
        self.timeout, self.retries, self.workers = timeout, retries, workers
        self.is_passing = False
        """Whether it was made for one call."""
        # With the process in it: a worker's own serial is never one that the program sends.
        self.serial = os.getpid() << 32 | next(_serials)
        known[self.serial] = self
        functools.update_wrapper(self, function, updated=())  # its attributes have names of ours
        inner = getattr(function, "func", type(function))  # a partial, an object that can be called
        vars(self).setdefault("__qualname__", getattr(inner, "__qualname__", repr(inner)))
        if name is not None:
            self.__name__ = self.__qualname__ = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Submit a call and return its future; without a Worker, or inside a task, just call."""
        stream = current()
        if stream is None:
            if self.code is not None:
                return self.code.run_here(self.signature, args, kwargs)
            return self.py_func(*args, **kwargs)
        return stream.submit(self, args, kwargs)

    def __get__(self, owner: Any, kind: type | None = None) -> Any:
        """Bind to an object, as a function does that is defined in a class."""
        return self if owner is None else types.MethodType(self, owner)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the function."""
        if name.startswith("__") or name == "py_func":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.py_func, name)

    def __reduce__(self) -> str | tuple[Any, ...]:
        name: str = self.__qualname__
        is_there = self.__module__ and find_imported(self.__module__, name) is self
        return name if is_there else self._with_function()

    def _with_function(self) -> tuple[Any, ...]:
        about = self.signature.parameters, self.timeout, self.retries, self._options
        return _remake, (self.py_func, *about, self.__qualname__)

    @property
    def _options(self) -> dict[str, Any] | None:
        """What it is compiled with; None: it is not compiled."""
        return None if self.code is None else self.code.options

    def on(self, workers: tuple[int, ...]) -> Task:
        """Return the same task for some sub workers; none: for all."""
        about = self.signature, self.timeout, self.retries, self.code
        return Task(self.py_func, *about, workers, self.__qualname__)

    def __repr__(self) -> str:
        return f"<task {self.__qualname__}>"


def _remake(
    function: Any, parameters: Any, timeout: Any, retries: Any, options: Any, name: Any
) -> Task:
    """Return a task in a worker, or at an endpoint."""
    code, signature = None, Signature.like(parameters)
    if options is not None:
        from .compiled import Code

        code, signature = Code(function, options), signature.filled_by(function)
    return Task(function, signature, timeout, retries, code, name=name)


# `__main__` of workers may have another one, or none
ByValue.dispatch_table[Task] = lambda task: (
    task._with_function() if task.__module__ == "__main__" else task.__reduce__()
)


def task(
    function: Any = None,
    /,
    *,
    name: str | None = None,
    timeout: float | None = None,
    retries: int = 0,
    workers: int | Iterable[int] | None = None,
    compiled: bool = False,
    **options: Any,
) -> Any:
    """Make calls of a function tasks of the current Worker.

    Parameters are annotated with `In`, `Out` or `InOut` where they are shared arrays (see
    `Worker.share`): the task reads, overwrites, or updates them. The others are values, which are
    copied. A call then submits a task and returns its `Future`; the order of tasks follows from the
    arrays that they have in common. Where no Worker is open, a call is a
    plain call; inside a task it runs at once, and returns a future that has ended.

    Parameters
    ----------
    name : str, optional
        What messages call it; the function's own name by default.
    timeout : float, optional
        How long a call may run, in seconds. One that runs longer is ended, with the process of its
        worker, and fails with a `TaskTimeoutError`; workers that are threads cannot be ended, so such
        tasks are refused there.
    retries : int, optional
        How often a call is run again whose worker was lost, because it died or by the time limit. The
        lost run may have done half of its work: a task that updates arrays in place must be one that
        can be made again.
    workers : int or iterable of int, optional
        The sub workers that may run a call, by their numbers from 0, so that it finds what one of them
        keeps (see `local`), or never runs beside another. Of several, each call is for the next one in
        turn. By default any sub worker runs a call.
    compiled : bool
        Have numba compile the function, for the types of the arguments of each call; workers then run
        it without the interpreter, and without a `timeout`. See :doc:`leaves`.
    **options : Any
        Of a compiled task, for `numba.njit`: `fastmath`, `error_model`, `boundscheck`, `parallel`.

    Raises
    ------
    TypeError
        `function` is not callable, or a call would not run it, such as of a generator function; or it
        is to be compiled and is no plain function; `timeout`, `retries` or `workers` is no number; or
        an option is not known.
    ValueError
        `timeout` is not positive, or that of a compiled task; `retries` or a worker is negative; or a
        worker is there twice, or none.
    """
    if name is not None:
        text("name", name)
    if timeout is not None:
        positive_seconds("timeout", timeout, _MOST_S)
    whole("retries", retries, 0, (1 << L.HALF) - 1)
    chosen = _numbers(workers)
    _require_options(compiled, timeout, options)

    def wrap(target: Callable[..., Any]) -> Task:
        if not callable(target):
            raise TypeError(f"task expects a function, got {type(target).__name__}")
        require_runnable("task", target)
        code = None
        try:
            signature = Signature.of(target, fills_in=compiled)
        except TypeError as error:
            untold = isinstance(error.__cause__, TypeError | ValueError)
            if isinstance(target, types.FunctionType) or not untold:
                raise
            signature = Signature.any()  # of native code that does not tell its parameters
        if compiled:
            from .compiled import Code

            code = Code(target, options)
            signature = code.signature(signature)
        return Task(target, signature, timeout, retries, code, chosen, name)

    return wrap if function is None else wrap(function)


def _numbers(workers: Any) -> tuple[int, ...]:
    """Return the numbers of the workers that may run a call; refuse what is none."""
    if workers is None:
        return ()
    numbers = tuple(workers) if isinstance(workers, Iterable) else (workers,)
    for one in numbers:
        if isinstance(one, (bool, str)) or not hasattr(one, "__index__"):
            raise TypeError(f"workers are numbers of sub workers, got {one!r:.60}")
    chosen = tuple(map(operator.index, numbers))
    if not chosen or min(chosen) < 0 or len(set(chosen)) < len(chosen):
        raise ValueError(
            f"workers are one or more different numbers from 0, got {workers!r:.60}; "
            "leave workers out for any"
        )
    return chosen


def _require_options(compiled: bool, timeout: float | None, options: dict[str, Any]) -> None:
    flag("compiled", compiled)
    unknown = options.keys() - (OPTIONS if compiled else set())
    if unknown:
        known = ", ".join(sorted(OPTIONS))
        raise TypeError(f"task has no option {unknown.pop()!r}; with compiled=True it has {known}")
    require_options(options)
    if compiled and timeout is not None:
        raise ValueError(
            f"a compiled task has no time limit, got timeout={timeout:g}: leave out timeout or compiled"
        )


# ---------------------------------------------------------------- which Worker a call goes to
class _Here(threading.local):
    """What is true of this thread."""

    nested: Any = None
    """In a task: what takes its calls."""
    mailbox: Any = None
    """That of the worker, in a worker."""
    actors: Any = MappingProxyType({})
    """In a worker: the objects of its actors, by their numbers."""
    enclosed: Sequence[Any] = ()
    """What the arguments that are unpickled have within them."""


here = _Here()


def take_calls_of_tasks(stream: Any) -> None:
    """Have a stream take the calls of this worker's tasks, also of the threads that they start."""
    (_Here if loop.in_worker == os.getpid() else here).nested = stream


opened: list[weakref.ref[Any]] = []
"""The Workers that are open, or in whose with blocks the program is, the innermost one last; the first
use of one of these opens it."""
_of_context: ContextVar[tuple[weakref.ref[Any], ...]] = ContextVar("simpler_ref", default=())
"""Those of them that this thread, or this coroutine, has opened; some may be closed."""


def enter(worker: Any) -> None:
    """Make a Worker the one that calls go to, unless the program is in its block."""
    reference = weakref.ref(worker)  # one that is forgotten is closed
    if reference not in opened:
        opened.append(reference)
        _of_context.set((*_of_context.get(), reference))


def leave(worker: Any = None) -> None:
    """Undo `enter`, also for Workers that are closed."""
    for reference in opened[:]:
        entered = reference()
        if entered is None or entered is worker or entered._life.closed:
            with suppress(ValueError):  # another thread was faster
                opened.remove(reference)
    _of_context.set(tuple(_own()))


def current() -> Any:
    """Return the stream of the innermost open Worker, None without one; in a task, what is in its place.

    One that this thread or coroutine has opened comes before those of others. A task has only those.
    """
    nested = here.nested
    if nested is not None:
        return (_first_stream(_own()) if _of_context.get() else None) or nested
    if not opened:
        return None
    innermost = opened[-1]()
    stream = None if innermost is None else innermost._life.stream
    if len(opened) == 1 and stream is not None:
        return stream
    return _first_stream([*opened, *_own()])


def is_own(life: Any) -> bool:
    """Say whether this thread or coroutine has opened the Worker of a life."""
    return any((worker := one()) is not None and worker._life is life for one in _own())


def _own() -> list[weakref.ref[Any]]:
    return [one for one in _of_context.get() if one in opened]


def _first_stream(candidates: Sequence[weakref.ref[Any]]) -> Any:
    """Return the stream of the last one that is not closed, and that has one."""
    for reference in reversed(candidates):
        worker = reference()
        if worker is None or worker._life.closed:  # a signal has come before `leave`
            leave()
        elif (stream := worker._stream_for_calls()) is not None:
            return stream
    return None


os.register_at_fork(after_in_child=opened.clear)


# ---------------------------------------------------------------- what a worker keeps
class _Local(threading.local):
    """Attributes of one worker, which runs all of its tasks in one thread.

    Set them in `Worker(initializer=…)` or in a task; later tasks in the same worker find them. Without a
    Worker they are those of the calling thread.
    """

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"this worker has no local.{name}: set it in Worker(initializer=...), or earlier in the task"
        )

    def __reduce__(self) -> str:
        return "local"


local = _Local()
"""What a worker keeps between its tasks: an object with attributes, for each worker its own."""
