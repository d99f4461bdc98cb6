"""Futures: what a call returns at once, in the place of its value; and holds on the blocks of values.

Rule     CALL-CANCEL-1, CALL-CANCEL-2, CALL-FUTURE-1, CALL-FUTURE-4, CALL-VALUE-4
"""

from __future__ import annotations

import concurrent.futures
import gc
import os
import threading
import time
from collections.abc import Generator
from typing import Any, NoReturn

from ..engine.memory import PARK_NS, Engine
from ..engine.shared_arrays import InUse
from ..engine.view.blocks import give_back, mark_kept, size_of_block, span_of_part
from ..system.signals import signals_blocked
from ..system.values import limit
from .call_errors import Unretrieved, log
from .tasks import here

_MUCH = 1 << 20
"""Bytes from which on it is looked at once whether a task uses a block."""
_SHARE = 2
"""What fraction of a party's memory for values may be held before garbage is collected."""


class Future(concurrent.futures.Future):  # type: ignore[type-arg]
    """The value of a call, once it has ended.

    It may be the argument of another call, which then runs after this one and gets its value. It works
    with `concurrent.futures.wait` and `as_completed`, and can be awaited.
    """

    __slots__ = ("_slot", "_stream", "_value")  # which quick.c reads and writes, too
    _stream: Any
    """The `Stream` of the call, None once its value is here."""
    _slot: int
    """The call's slot, 0 once its value is here."""
    _value: Any
    _error: BaseException | None = None
    _is_cancelled = False
    _unretrieved: Unretrieved | None = None

    def __init__(self) -> None:
        raise TypeError("a Future comes from a call of a task, or from Worker.submit")

    def __getattr__(self, name: str) -> Any:
        """Become a full future of `concurrent.futures` when something asks for its parts."""
        if name == "_value":
            raise RuntimeError(
                "this future was given up, and its call with it: the garbage collector had found it, and "
                "a finalizer has taken it back; refer to it from elsewhere"
            )
        if name not in _PARTS:
            raise AttributeError(f"a Future has no attribute {name!r}")
        try:
            concurrent.futures.Future.__init__(self)
            stream = self._stream
            if stream is None:
                self.finish()
            else:
                stream.notifier.watch(stream, self)
        except BaseException:  # nobody has to tell of its end: nobody must wait for that
            vars(self).pop("_condition", None)
            vars(self).pop("_state", None)
            raise
        return getattr(self, name)

    def __del__(self) -> None:
        try:
            slot, stream = self._slot, self._stream
        except AttributeError:  # making it was cut short
            return
        if slot and stream is not None:
            stream.drop_later(self)

    # ------------------------------------------------------------ the value
    def result(self, timeout: float | None = None) -> Any:
        """Wait for the call, and return its value.

        Raises
        ------
        Exception
            What the task has raised, or the task of a call that this one needs. Its cause is a
            `RemoteTraceback`, with the traceback in the worker.
        TaskError
            A worker was lost, or what the task has raised would end the program or a loop, or has a type
            that is not known here.
        TaskCancelledError
            The call was cancelled, or one that it needs.
        concurrent.futures.TimeoutError
            The call has not ended within `timeout` seconds.
        TypeError, ValueError
            `timeout` is no number of seconds.
        """
        stream = self._stream
        if timeout is not None:
            timeout = limit("timeout", timeout)
        if stream is not None and not stream.take(self):
            self._wait(timeout)
        if self._error is not None:
            self._ask()
            raise self._error
        return self._value

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the call, and return what `result` would raise, None if it succeeded.

        Raises
        ------
        TaskCancelledError
            The call was cancelled.
        concurrent.futures.TimeoutError
            The call has not ended within `timeout` seconds.
        TypeError, ValueError
            `timeout` is no number of seconds.
        """
        self._wait(limit("timeout", timeout))
        if self._is_cancelled:
            assert self._error is not None
            raise self._error
        self._ask()
        return self._error

    def _ask(self) -> None:
        """Note that somebody sees the error, if there is one."""
        if self._unretrieved is not None:
            self._unretrieved.retrieved = True

    def be_silent(self) -> None:
        """Have nothing logged if the call fails."""
        stream = self._stream
        if self._slot and stream is not None:
            stream.failures.silent.append(stream.number_of(self))
        self._ask()

    def _wait(self, timeout: float | None) -> None:
        """Wait until the value, or the error, is here."""
        stream = self._stream
        if stream is not None:
            deadline = None if timeout is None else time.monotonic() + timeout
            if not stream.wait(self, deadline):
                raise concurrent.futures.TimeoutError(
                    f"{self!r} has not ended within {timeout} s; it goes on"
                )
            stream.fetch(self)

    def done(self) -> bool:
        """Say whether the call has ended."""
        stream, slot = self._stream, self._slot
        if stream is None or not slot or stream.has_settled(slot):
            return True
        stream.see_to_workers()
        return not self._slot

    def running(self) -> bool:
        """Say whether a worker runs the call."""
        stream, slot = self._stream, self._slot
        return stream is not None and slot != 0 and bool(stream.is_running(slot))

    def cancelled(self) -> bool:
        """Say whether the call was cancelled."""
        stream = self._stream
        if stream is not None and self.done():
            stream.fetch(self)
        return self._is_cancelled

    def cancel(self) -> bool:
        """Cancel the call, unless a worker has been given it, and say whether it is cancelled.

        Then `result` raises `TaskCancelledError`. So do the results of calls that need this one's value,
        or what it should have written.
        """
        stream = self._stream
        if stream is not None:
            stream.cancel(self)
        return self._is_cancelled

    # ------------------------------------------------------------ as others use it
    def finish(self) -> None:
        """Hand the value, which is there, to those that wait with `concurrent.futures`."""
        try:
            self._wait(None)
        except Exception as error:  # such as that the Worker was closed before
            self._error = error
        if self._is_cancelled:
            super().cancel()
            super().set_running_or_notify_cancel()
        elif self._error is not None:
            super().set_exception(self._error)
        else:
            super().set_result(self._value)

    def set_result(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse, with an `InvalidStateError`: the outcome comes from the call."""
        raise concurrent.futures.InvalidStateError(
            "the outcome of this future comes from its call, which cancel() ends while it waits: a "
            "concurrent.futures.Future takes values of your own"
        )

    set_exception = set_running_or_notify_cancel = set_result

    def __await__(self) -> Generator[Any, None, Any]:
        import asyncio

        return asyncio.wrap_future(self).__await__()

    def __repr__(self) -> str:
        stream, slot = self._stream, self._slot
        if stream is not None and slot:
            return f"<Future of {stream.describe(slot)}>"
        if self._error is not None:
            return f"<Future: failed with {type(self._error).__name__}>"
        return f"<Future: returned {type(self._value).__name__}>"

    def __reduce__(self) -> Any:
        if here.nested is not None and self._stream is None:  # of a call that a task has made
            return itself, (self.result(),)
        raise TypeError(
            "a Future cannot be pickled: pass it, or its result(), as an argument or within one"
        )


_PARTS = "_condition", "_state", "_waiters", "_result", "_exception", "_done_callbacks"


def ended(
    value: Any,
    error: Exception | None,
    *,
    cause: BaseException | None = None,
    is_logged: bool = False,
) -> Future:
    """Return the future of a call that has ended; an error may get a cause.

    One that `is_logged` is that of another call, with which it is logged if nobody asks.
    """
    made: Future = object.__new__(Future)
    made._stream, made._slot, made._value = None, 0, value
    if error is not None:
        made._error = error
        if cause is not None:
            error.__cause__ = cause
        if not is_logged:
            made._unretrieved = Unretrieved(error, -1, [])
    return made


def itself(value: Any) -> Any:
    """Return a value that was pickled in the place of its future."""
    return value


class Notifier:
    """Notifies futures of a stream that their calls have ended, in a thread, while some want to know."""

    def __init__(self) -> None:
        self._watched: dict[int, Future] = {}
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._has_unseen = False
        """Whether a future is to be notified that the thread has not looked at yet."""

    def watch(self, stream: Any, future: Future) -> None:
        """Have a future notified when its call has ended, which may have been long ago."""
        with self._lock:
            looks_already = self._thread is not None
            if not looks_already:
                name = "simpler_ref-calls"
                thread = threading.Thread(target=self._run, args=(stream,), name=name, daemon=True)
                with signals_blocked():
                    thread.start()
                    self._thread = thread
            self._watched[id(future)] = future
            self._has_unseen = True
        if looks_already and future.done():
            stream.stop_waiting()

    def finish(self) -> None:
        """Wait until all futures whose calls have ended are notified, and callbacks have returned."""
        while (thread := self._thread) not in (None, threading.current_thread()):
            thread.join(PARK_NS / 1e9)

    def _run(self, stream: Any) -> None:
        """Notify futures; should this be cut short, the next one that wants to know has it go on."""
        try:
            while True:
                before = stream.ended
                self._has_unseen = False
                for key, future in list(self._watched.items()):
                    if stream._gone or future.done():
                        self._watched.pop(key, None)
                        try:
                            future.finish()
                        except BaseException:
                            log.exception(
                                "notifying %r of its end, or a callback of it, has failed", future
                            )
                with self._lock:
                    if not self._watched:
                        self._thread = None
                        return
                stream.wait_for_end(before, PARK_NS, lambda: self._has_unseen)
        except BaseException:
            with self._lock:
                self._thread = None
            raise


# ---------------------------------------------------------------- blocks of values
class Leases:
    """The holds of one stream. A dropped block is held until tasks have ended that may use it."""

    def __init__(self, engine: Engine, users: Any) -> None:
        self._engine = engine
        self._in_use = InUse(users)
        start, end = span_of_part(engine.mem, 0)
        self._much = (end - start) // _SHARE
        self._held = self._since = 0
        """Bytes that are held, and bytes of holds that have begun since garbage was collected."""

    def begin(self, offset: int) -> Lease:
        lease = Lease(self, offset)
        lease.begin()
        return lease

    def hold(self, offset: int) -> int:
        """Hold a block; return what `drop` is told."""
        self.look()
        mark_kept(self._engine.mem, offset)
        self._engine.kernels.hold_block(self._engine.mem, offset, 1)
        nbytes = size_of_block(self._engine.mem, offset)
        self._held += nbytes
        self._since += nbytes
        if min(self._held, self._since) > self._much:
            self._since = 0
            gc.collect()  # Python does not know how much memory its garbage holds
        return self._in_use.now()

    def drop(self, offset: int, first: int) -> None:
        """Release a block, once no task uses it."""
        nbytes = size_of_block(self._engine.mem, offset)
        is_free = nbytes >= _MUCH and not self._in_use.has_users(first)
        if is_free or not self._in_use.keep(first, nbytes, offset):
            self._release(offset)

    def look(self) -> None:
        """Release the blocks that no task uses any more."""
        for offset in self._in_use.look() if self._in_use else ():
            self._release(offset)

    def end(self) -> None:
        """Release at once from now on: there are no tasks any more."""
        self._in_use.users = None

    def _release(self, offset: int) -> None:
        self._held -= size_of_block(self._engine.mem, offset)
        give_back(self._engine.mem, offset)
        self._engine.kernels.hold_block(self._engine.mem, offset, -1)


class Lease:
    """A hold on the block of a value, once it has begun, until the last reference to it dies.

    It may be the argument of a call, whose worker then gets the value. Who submits that call keeps the
    lease until it has ended.
    """

    def __init__(self, leases: Leases, offset: int) -> None:
        self._leases, self.offset = leases, offset
        self._first = 0
        self._holder = 0
        """The process that holds the block: one that is forked from it does not."""

    def begin(self) -> None:
        self._first = self._leases.hold(self.offset)
        self._holder = os.getpid()

    def __del__(self) -> None:
        if self._holder == os.getpid():
            self._leases.drop(self.offset, self._first)
