"""The stream of calls of a Worker: from the first call to the next run, or to the end.

The way of one call, and the module of each step:

    program                                                      worker
    tasks             the task of the innermost open Worker
    quick             usual calls: native code does all of this
    signatures        values in the order of the parameters
    sending           the block of the function as it is now
    packing           tensors, words, one pickle; `arguments` has their codes
    stream, orch_lock with the lock, no dead worker, a block for a long pickle
    engine            whom it waits for; the Scheduler ────────▶ inside     function, arguments, call
                                                                 outcomes   a word, or a block
    futures, stream   wait: one helps the Scheduler, others sleep ◀───┘
    outcomes          the value, whose arrays hold the block
    call_errors       or the error, with its story; those that nobody asks for

Any thread may call at any moment, in a signal handler or a finalizer, too. So what is found out without
the lock (the plan, the packed arguments) is looked at again with it, and a call begins anew if its
arrays' epoch is over, a future among its arguments was fetched, or there are other workers. Who waits
with the lock helps the Scheduler, and leaves as soon as another thread wants the lock. A future that
dies only notes that its call is to be dropped: who has the lock next does so.

Before a run the stream ends, since calls and the tasks of a run do not wait for each other: all calls
have ended then, futures have their values, and numbers of layouts mean nothing any more. The next call
begins it again.

Rule     CALL-ARRAY-1, CALL-FAIL-1, CALL-FAIL-4, CALL-HAZARD-4, CALL-STREAM-1, CALL-STREAM-2,
         CALL-STREAM-4, CALL-STREAM-5, CALL-STREAM-8
"""

from __future__ import annotations

import os
import signal
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from ..engine.memory import PARK_NS
from ..engine.view.blocks import Blocks, data_of
from ..errors import RingFullError, TaskError
from ..jit import layout as L
from ..model.scalars import INTEGER
from ..orch.checked import caller
from ..system.signals import signals_blocked
from ..workers.life import NO_WAIT, Life
from ..workers.reports import without_own_frames
from ..workers.session import OF_CALLS, Session
from . import outcomes, quick, tasks
from .arguments import SentArrays, key_of
from .call_errors import CallErrors, FailureLogger, Failures
from .checked import Sums
from .futures import Future, Lease, Leases, Notifier, ended
from .inside import Caller
from .orch_lock import OrchLock
from .packing import CallPlan, NeededError, Packer
from .sending import Guards, Payload, SentFunctions, payload_of
from .tasks import Task

_integer = INTEGER.pack
_SOON_S = 1.0
"""How long the end of a Worker waits for calls that run, before it tells of them."""
_new_future = object.__new__


class Stream:
    """The calls of one open Worker, which any thread may make.

    One thread at a time acts as the Orch thread of the engine: it submits, or it waits and meanwhile runs
    the Scheduler's passes.
    """

    def __init__(self, life: Life, session: Session, register: Any) -> None:
        self._life, self._session, self._engine = life, session, session.engine
        self._register = weakref.WeakMethod(register)  # a Worker that is forgotten is closed
        self._mem, self._kernels = session.engine.mem, session.engine.kernels
        self._blocks = Blocks(self._mem, 0)
        self.leases = Leases(session.engine, session.arena.in_use.users)
        self._fetching: set[int] = set()
        """Slots of calls whose outcome some thread, or a signal handler, is about to fetch."""
        self.mutex = self._new_lock()
        tasks: dict[Any, Task] = {}
        self._quick: quick.Quick | quick.Slow = (
            quick.Quick(session, self.mutex, self._fetching, tasks)
            if quick.is_possible()
            else quick.Slow(session.engine)
        )
        self.call_quickly = self._quick.call
        self.take, self.drop_later = self._quick.take, self._quick.drop_later
        me = weakref.proxy(self)  # what it has must not keep it, and all memory, when it is closed
        self._arrays = SentArrays(me)
        self._packer = Packer(me)
        self._pack = self._packer.pack
        self.errors = CallErrors(session)
        self.functions = SentFunctions(me, self._blocks, tasks)
        self.task_of = self.functions.task_of
        self._inherited = session.inherited
        self._sums: Sums | None = None
        if life.options.check:
            self._sums = Sums(session.engine, None if session.in_threads else session.arena)
        self._word = -1
        self.failures = Failures()
        self._failure_logger: FailureLogger | None = None
        self.notifier = Notifier()
        self.maps: weakref.WeakSet[Any] = weakref.WeakSet()
        """The results of `map` that are alive."""
        self.dropped_maps: list[Any] = []
        """Those that were dropped before anybody asked for one."""
        self._open = self._gone = False
        self._full_since = 0.0

    def _new_lock(self) -> OrchLock:
        me = weakref.proxy(self)
        return OrchLock(
            self._engine, lambda: me._prepare_to_help(), lambda: me._session.look(remedy=OF_CALLS)
        )

    @property
    def workers(self) -> int:
        return len(self._life.subs) or int(self._life.endpoints.sub_workers)

    @property
    def sends_functions(self) -> bool:
        """Whether workers are processes: threads call the very function."""
        return not self._session.in_threads

    @property
    def takes_pickles(self) -> bool:
        """Whether calls may have arguments that are pickled."""
        return True

    # ------------------------------------------------------------ submit
    def submit(self, task: Task, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Future:
        """Submit a call; a TypeError or ValueError says what is wrong with its arguments."""
        if not kwargs:
            future: Future | None = self.call_quickly(self, task, args)
            if future is None:
                future = self._quick.call_with_values(self, task, args)
            if future is not None:
                return future
        bound = task.signature.bind(args, kwargs)
        return self.submit_bound(partial(self.functions.plan_of, task), bound)

    def forward(self, task: Task, arrays: Any, words: Any, kinds: Any, data: Any) -> Future:
        """Submit a call whose arguments another Worker has packed, as they are here; see `arguments`.

        Each array has the tag of its tensor. Values of calls are in blocks of this Worker, whose leases
        the caller keeps. `data` has what is pickled as bytes, unless the words have it.
        """
        call = arrays, words, kinds, data
        return self.submit_bound(partial(self.functions.plan_of, task), call, self._packer.forward)

    def submit_bound(
        self, plan_now: Callable[[], CallPlan], bound: Any, pack: Callable[..., Any] | None = None
    ) -> Future:
        """Submit a call whose arguments are in the order of the parameters, or as `pack` takes them.

        It is packed again whenever what that has found out may be over.
        """
        pack = pack or self._pack
        has_waited = False
        while True:
            if not self._open and self._come_in():
                continue
            try:
                plan = plan_now()
                counts, wire, data, futures, epoch = pack(plan, bound)
            except NeededError as needed:
                return ended(None, needed.error, is_logged=True)
            except MemoryError:  # no room for the function, or for one more layout
                if has_waited:
                    raise
                has_waited = True
                self.finish()
                continue
            with self.mutex.queue, self.mutex.lock:
                if not self._open:  # another thread's run has come before
                    continue
                if self._lacks_workers():
                    known = self._session.inherited
                    self._replace_dead()  # which may fetch the values of arguments
                    if known is not self._session.inherited:
                        continue
                if epoch != self._arrays.now[0] or any(one._slot != at for one, at in futures):
                    continue  # what it has was forgotten, or fetched
                word = self._word
                if plan.workers is not None:
                    word |= next(plan.workers)
                if self._sums is not None:
                    counts, wire = self._sums.add(counts, wire, plan.key)
                slot = self._submit(word, counts, wire, data)
                if slot != L.WOULD_BLOCK:
                    future = _new_future(Future)
                    future._stream, future._slot = self, 0
                    self._quick.enter(slot, future)
                    if self._sums is not None:
                        self.errors.places[slot] = place = caller()
                        self._sums.note(slot, place)
                    return future
            self._make_room()

    def function_for_items(self, task: Task) -> tuple[Payload, Payload, bool]:
        """Return a task as it is now, to be called for one item and for many, and whether it stays so."""
        if not self._open:
            self._come_in()
        payload, guards = self.sent(task)
        return payload, payload, guards is not None and not guards

    def pickle_each(self, items: Iterable[Any]) -> list[bytes] | None:
        """Return arguments as bytes, one by one, once it is known what the workers have.

        None: they have shared arrays or futures within, which need calls of their own.
        """
        if not self._open:
            self._come_in()
        return self._packer.pickle_each(items)

    def sent(self, task: Task) -> tuple[Payload, Guards | None]:
        """Return what workers make a task from, and what must hold for that to stay right."""
        session = self._session
        return payload_of(task, session.inherited, to_threads=session.in_threads)

    def why_invisible(self, array: Any, address: int, nbytes: int) -> str | None:
        """Say why the workers cannot see the bytes that an array spans; None if they can.

        RuntimeError: they are of another open Worker, for whose calls those of this one would not wait.
        """
        for reference in tuple(tasks.opened) if len(tasks.opened) > 1 else ():
            worker = reference()
            other = None if worker is None else worker._life.stream
            if (
                other is not None
                and other is not self
                and any(start <= address < end for start, end in other._session.own_memory)
            ):
                raise RuntimeError(
                    f"this array of shape {array.shape} belongs to another open Worker, and calls of "
                    "two Workers do not wait for each other: make both calls by that Worker's submit, "
                    "or pass a copy, Worker.share(array), once its calls have ended"
                )
        return self._session.method.why_array_is_invisible(array, address, nbytes)

    def require_workers(self, task: Task) -> tuple[int, ...]:
        there = self._engine.view.pool(L.SUB)
        for one in task.workers:
            if one >= len(there):
                raise ValueError(
                    f"{task!r} is for sub worker {one}, and this Worker's are 0 to {len(there) - 1}: "
                    f"give Worker(num_sub_workers={one + 1}), or name another in workers="
                )
        return tuple(there[one] for one in task.workers)

    def _submit(self, word: int, counts: int, wire: bytes, data: bytes) -> int:
        """Submit a call; return its slot, or WOULD_BLOCK if there is no room yet.

        RingFullError: there was none for `alloc_timeout_s`.
        """
        block = None
        if data:
            block = self._blocks.take(len(data))
            block.data[:] = data
            wire += _integer(block.offset, L.PAYLOAD)
            counts += 1 << L.HALF
        self._quick.drop_all()
        kernels = self._engine.kernels  # while it is traced, those that note lines
        slot: int = kernels.call_and_pass(self._mem, word, counts, wire)
        if slot >= 0:
            self._full_since = 0.0
            return slot
        if block is not None:
            self._kernels.hold_block(self._mem, block.offset, -1)
        if slot != L.WOULD_BLOCK:
            raise ValueError(
                f"the arguments of the call take {len(wire)} bytes, and a mailbox holds "
                f"{L.MAILBOX_ARGS_CAPACITY}; pass fewer arrays"
            )
        timeout_s, now = self._life.options.alloc_timeout_s, time.monotonic()
        self._full_since = self._full_since or now
        if now - self._full_since > timeout_s:
            self._full_since = 0.0
            raise RingFullError(f"no room for a call within {timeout_s} s")
        return L.WOULD_BLOCK

    def _make_room(self) -> None:
        """Wait until there may be room for a call; futures whose calls have ended make room.

        It leaves the queue meanwhile, so that others come before it takes the lock again.
        """
        mutex, lock, view = self.mutex, self.mutex.rlock, self._engine.view
        try:
            self._engine.lacks = "room for another call"
            with mutex.queue:
                mutex.lock.acquire()
            before = view.live
            if self._open:
                self._clear()
                if view.live == before:
                    mutex.help(ended=min(view.ended + 1 + before // 4, view.next_task_id))
                    self._clear()
                if view.live < before:
                    self._full_since = 0.0
        finally:
            try:  # noqa: SIM105 (a signal could be handled on the way into a function of Python)
                lock.release()
            except RuntimeError:  # an exception came before it had the lock
                pass
            self._engine.lacks = ""
        mutex.let_others_first()

    def _clear(self) -> None:
        """Drop the calls of futures that are gone, and fetch the values of those that have ended."""
        self._quick.drop_all()
        self.keep_values()
        self.failures.look(self)

    # ------------------------------------------------------------ its own life
    def _come_in(self) -> bool:
        """Begin, after another thread's run; say whether workers have inherited something else.

        The lock is taken after that: others may need it meanwhile.
        """
        self._life.refuse_in_own_run()
        known = self._session.inherited
        with self._life.turnstile:
            self._life.let_run_end()
            with self.mutex.queue, self.mutex.lock:
                if not self._open:
                    try:
                        self._begin()
                    except BaseException as error:
                        raise without_own_frames(error)  # noqa: B904 (the same one)
        return known is not self._session.inherited

    def _begin(self) -> None:
        if self._word < 0:
            self._word = self._word_of_calls()
            self._session.caller = self._word & L.CALLABLE_MASK
            self._failure_logger = FailureLogger(self)
        with self._life.lock:
            self._life.prepare(self._life.live())
            with signals_blocked():
                self._life.streaming = True
                self._engine.view.forget_unordered()
                self._kernels.begin_stream(self._mem)
                self._open = True
                self._start_quick()

    def _word_of_calls(self) -> int:
        """Register what runs calls, and return the callable word of a call."""
        register = self._register()
        assert register is not None, "its Worker is open"
        handle = self._handle = register(Caller())
        return self._session.words[1][handle]

    def _start_quick(self) -> None:
        """Let usual calls be quick, unless what tasks print has to come first, or lines are noted."""
        session, manager = self._session, self._session.manager
        if self._inherited is not session.inherited:  # others have taken the places of all workers
            self._inherited = session.inherited
            self._quick.know_none()
            self.functions.begin_anew()
        noted = session.recorder.notes_lines or self._sums is not None
        if manager is not None and manager.relay is None and not noted:
            self._quick.start(self._word, manager.dead)

    def finish(self) -> None:
        """Wait until all calls have ended, and let their futures keep the values.

        Meanwhile other threads get the values of those that have ended. They may submit others, which are
        kept out in the end, or this might go on forever.
        """
        self.wait_for_submitted()
        if self._open:
            with self.mutex.queue, self.mutex.lock:
                if self._open:
                    self._finish()

    def _finish(self) -> None:
        """End the stream; what a signal has cut short may have left a call that no future refers to."""
        view = self._engine.view
        while view.ended < view.next_task_id:
            self._prepare_to_help()
            shared = self.mutex.hear_others()
            self.mutex.help(ended=view.ended + 1 if shared else view.next_task_id)
            self.mutex.notify()
        for future in self._quick.futures():
            # a worker may still have to answer for one that failed
            while future._slot and not self.has_settled(future._slot):
                self.mutex.help(slot=future._slot)
        self.keep_values()
        self.leases.look()
        self._quick.drop_all()
        self.failures.look(self)
        self._kernels.end_stream(self._mem)
        deadline = time.monotonic_ns() + PARK_NS
        while view.live and (rest := deadline - time.monotonic_ns()) > 0:
            self.mutex.help(live=0, rest_ns=rest)
            self._quick.drop_all()
        if view.live:
            self._kernels.drop_forgotten(self._mem)
        unnoted = view.not_noted
        with signals_blocked():
            self._kernels.reset_stream(self._mem)
            self._arrays.forget()
            self._open = False
            self._quick.stop()
            self._life.streaming = False
        if self._sums is not None:
            self._sums.open_ended()
        self._session.forget_watch()
        self.failures.forget(unnoted)

    def end(self, urgency: int) -> None:
        """Wait until all calls have ended.

        `urgency` 0: make them all. 1: cancel those that no worker has been given. 2: terminate the
        workers that run others. More: do not wait.
        """
        manager = self._session.manager
        if urgency == 0 and not self._gone:
            for one in set(self.maps).union(self.dropped_maps):
                one.finish()
                one.warn_of_uncalled()
            while self.dropped_maps:
                self.dropped_maps.pop().log_errors()
        if urgency and not self._gone:
            with self.mutex.queue, self.mutex.lock:
                if self._open:
                    self._kernels.cancel_calls(self._mem)
        if urgency == 1 and not self.wait_for_submitted(_SOON_S):
            self._session.tell_running_calls()
        if urgency == 2 and manager is not None:
            manager.kill_busy()
        if urgency < NO_WAIT:
            self.finish()

    @property
    def is_gone(self) -> bool:
        """Whether the Worker was closed, or never opened, or this is another process."""
        return self._gone or self._life.stream is not self

    def close(self) -> None:
        """Let calls go elsewhere: the Worker is being closed."""
        self._quick.stop()
        self.leases.end()
        self._gone = True
        if self._failure_logger is not None:
            self._failure_logger.end()

    def disown(self) -> None:
        """Leave the calls to the process that this one was forked from."""
        self.close()
        self.mutex = self._new_lock()  # another thread may have had the lock
        self.notifier = Notifier()

    # ------------------------------------------------------------ workers that have died
    def _lacks_workers(self) -> bool:
        manager = self._session.manager
        if manager is None or (manager.starting and manager.has_started()):
            return True
        return bool(manager.dead) and bool(manager.known_dead())

    def _replace_dead(self) -> None:
        """Make successors for dead workers, once the calls that these ran are known to be lost.

        A session of an endpoint takes a second, or all of its time where the host is gone: calls of other
        endpoints go on meanwhile, and it is looked at again as long as anybody waits. If they cannot be
        made, all calls that had not ended have failed. The error is raised; the next call
        tries again.
        """
        self._quick.stop()
        session, manager = self._session, self._session.manager
        if manager is None or manager.lost or self._life.needs_start:
            dead = self._end_all_workers()
        else:
            dead = manager.known_dead()
            self._lose_calls_of(dead)
        try:
            self._life.start_workers(session, dead, beside=True)
        except BaseException as error:
            self.errors.why_stranded = error
            self._strand()
            raise
        self.errors.why_stranded = None
        self._kernels.strand(self._mem, 0)
        self._start_quick()

    def _prepare_to_help(self) -> bool:
        """Replace dead workers; say whether there is anything to help with."""
        if self._open and self._lacks_workers():
            with suppress(Exception):  # if it is impossible, the calls say why
                self._replace_dead()
        return self._open

    def see_to_workers(self) -> None:
        """Replace dead workers, as who waits does: a program may ask again and again instead."""
        manager = self._session.manager
        if manager is not None and (manager.dead or manager.starting):
            self.mutex.wait_until(lambda: False, 0.0)

    def _lose_calls_of(self, dead: Sequence[int]) -> None:
        """Fail the calls that dead workers had; keep the names of these, and free their memory."""
        self._kernels.settle_deaths(self._mem)
        self.keep_values()
        for worker in dead:
            Blocks(self._mem, worker + 1).free_lost()

    def _end_all_workers(self) -> Sequence[int]:
        """End the workers that are left, and fail the calls that they had; return all workers."""
        self._life.end_workers(self._session)
        everyone = range(self._engine.view.workers)
        for worker in everyone:
            self._kernels.report_death(self._mem, worker, -signal.SIGKILL)
        self._lose_calls_of(everyone)
        return everyone

    def _strand(self) -> None:
        """Fail all calls that have not ended: there are no workers."""
        self._end_all_workers()
        self._kernels.strand(self._mem, 1)
        view = self._engine.view
        while view.ended < view.next_task_id:
            self.mutex.help(ended=view.next_task_id)
        self.keep_values()

    # ------------------------------------------------------------ wait
    @property
    def ended(self) -> int:
        """How many calls have ever ended."""
        return self._engine.view.ended

    @property
    def has_calls(self) -> bool:
        return self._open and self.ended < self._engine.view.next_task_id

    def has_settled(self, slot: int) -> bool:
        has_settled = bool(self._kernels.has_settled(self._mem, slot))
        if has_settled and self._sums is not None:
            self._sums.open_ended()
        return has_settled

    def _open_ended(self) -> None:
        """With ``check=True``: let the program touch what calls have written that it has waited for."""
        if self._sums is not None:
            self._sums.open_ended()
            self._sums.raise_touched()

    def wait(self, future: Future, deadline: float | None) -> bool:
        """Wait until a call has ended; return whether it has, by a deadline on the monotonic clock."""
        slot, mem, has_settled = future._slot, self._mem, self._kernels.has_settled
        if not slot or self.has_settled(slot):
            return True

        def is_over() -> bool:
            return future._slot != slot or bool(has_settled(mem, slot))

        if not self.mutex.wait_until(lambda: is_over() or self._gone, deadline, slot=slot):
            return False
        if not is_over():
            pid = self._session.pid
            if pid == os.getpid():
                raise RuntimeError("the Worker of this call was closed before it had ended")
            raise RuntimeError(
                f"this call belongs to process {pid}, from which this one was forked: ask there"
            )
        self._open_ended()
        return True

    def wait_for_submitted(self, timeout_s: float | None = None, *, later: bool = False) -> bool:
        """Wait until as many calls have ended as were submitted before now; return whether they have.

        With those submitted `later`, too, none is under way then.
        """
        if not self._open:
            return True
        view, epoch, before = self._engine.view, self._arrays.now[0], self._engine.view.next_task_id

        def submitted() -> int:
            return view.next_task_id if later else before

        def is_over() -> bool:
            return view.ended >= submitted() or not self._open or self._arrays.now[0] != epoch

        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        has_ended = self.mutex.wait_until(is_over, deadline, ended=submitted)
        if has_ended:
            self._open_ended()
        return has_ended

    def wait_for_turn(self, future: Future, timeout_s: float | None) -> bool:
        """Wait until a call waits for no other one, only for a worker; return whether that is so.

        With sums of arrays it has to end: the program would change these next.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        if self._sums is not None:
            return self.wait(future, deadline)
        view = self._engine.view

        def is_over() -> bool:
            slot = future._slot
            return not slot or not view.is_pending(slot)

        return self.mutex.wait_until(is_over, deadline, ended=lambda: view.ended + 1)

    def wait_for_end(
        self, ended: int, rest_ns: int, unless: Callable[[], bool] = lambda: False
    ) -> None:
        """Wait until more calls than `ended` have ended, or `unless` is true; for `rest_ns` at most.

        Who makes it true calls `stop_waiting` after that.
        """
        self.mutex.wait_until(
            lambda: self._gone or not self._open or self.ended > ended or unless(),
            time.monotonic() + rest_ns / 1e9,
            ended=lambda: ended + 1,
        )

    def stop_waiting(self) -> None:
        """Have the thread that waits look again."""
        with self.mutex.queue, self.mutex.lock:
            pass

    # ------------------------------------------------------------ outcomes
    def number_of(self, future: Future) -> int:
        """Return the number of a call, -1 if its value has been fetched."""
        slot = future._slot
        return self._engine.view.call(slot).task if slot else -1

    def is_running(self, slot: int) -> bool:
        return self._engine.view.call(slot).is_running

    def describe(self, slot: int) -> str:
        """Return a call's number and the name of its task."""
        if self._gone:
            return "a call of a Worker that is closed, or of another process"
        call = self._engine.view.call(slot)
        return f"call {call.task} of {self._session.call_names[key_of(call.key)]}"

    def cancel(self, future: Future) -> None:
        """Cancel a call, unless a worker has been given it."""
        if self._gone:
            return
        with self.mutex.queue, self.mutex.lock:
            slot = future._slot
            if slot and self._kernels.cancel_call(self._mem, slot):
                self._fetch(future)

    def fetch(self, future: Future) -> None:
        """Give a future its value, or its error, and drop the call; first comes what it has printed."""
        manager = self._session.manager
        if manager is not None and manager.relay is not None:
            manager.relay.pass_on()
        with self.mutex.queue, self.mutex.lock:
            if future._slot:
                self._fetch(future)

    def keep_values(self) -> None:
        """Fetch the values of all calls that have ended and still have a future."""
        for future in self._quick.keep():
            if future._slot and self.has_settled(future._slot):
                self._fetch(future)

    def _fetch(self, future: Future) -> None:
        """Fetch one, with the lock.

        A signal handler may ask for the same future meanwhile: it gets the value, and the call is dropped
        once, by whoever has begun first.
        """
        slot, fetching = future._slot, self._fetching
        if slot in fetching:
            self._copy_outcome(future, slot)
            return
        try:
            fetching.add(slot)
            if slot and future._slot == slot:  # no handler was quicker
                self._copy_outcome(future, slot)
                self._quick.leave(slot)
                future._slot, future._stream = 0, None
                self._kernels.drop_call(self._mem, slot)
                if self._sums is not None:
                    self._sums.open_ended()
        finally:
            fetching.discard(slot)

    def _copy_outcome(self, future: Future, slot: int) -> None:
        has_failed, kind, word = self._engine.view.outcome(slot)
        if has_failed:
            future._is_cancelled = word == -slot
            future._error = error = self.errors.of_call(slot)
            future._unretrieved = self.failures.note(error)
            self.failures.look(self)
            return
        try:
            if kind != L.VALUE_BLOCK:
                future._value = outcomes.decode_word(kind, word)
                return
            # calls that it is lent to must not see what is written now
            is_lent = self._engine.view.has_consumers(slot)
            lease = None if is_lent else Lease(self.leases, word)
            value, kept = outcomes.decode_block(data_of(self._mem, word), lease)
            if lease and kept:  # arrays of the value refer to it
                lease.begin()
            future._value = value
        except Exception as problem:
            task = self._engine.view.call(slot).task
            future._error = TaskError(f"{self.describe(slot)}: {problem}", task=task)
            future._error.__cause__ = problem

    def raw_outcome(self, future: Future) -> tuple[int, int] | None:
        """Return kind and word of what a call that has ended has returned or raised.

        None if it has failed in another way, or the future has its value or its error already.
        """
        slot = future._slot
        if not slot:
            return None
        has_failed, kind, word = self._engine.view.outcome(slot)
        is_there = kind == L.VALUE_ERROR and word > 0 if has_failed else True
        return (kind, word) if is_there else None

    def log_failures(self) -> None:
        """Log the errors that nobody can ask for any more."""
        if not self._open:
            return
        with self.mutex.queue, self.mutex.lock:
            if not self._open:
                return
            self._quick.drop_all()
            self.failures.look(self)
            old = self.failures.take_old(self)
            self.failures.count(self._engine.view.not_noted)
        del old  # without the lock: each logs itself

    # ------------------------------------------------------------ memory
    def put(self, data: memoryview | bytes | bytearray) -> Lease:
        """Put a value that was a block elsewhere into a block; MemoryError: there is no room."""
        with self.mutex.queue, self.mutex.lock:
            block = self._blocks.take(len(data))
        block.data[:] = data
        lease = self.leases.begin(block.offset)
        self._kernels.hold_block(self._mem, block.offset, -1)
        return lease

    def drop_forgotten(self) -> None:
        """Drop the calls of futures that are gone, as a submit does: for one who only waits."""
        with self.mutex.queue, self.mutex.lock:
            if self._open:
                self._quick.drop_all()

    def forget_memory(self, low: int, high: int) -> None:
        """Forget memory that is given back: a failure says nothing of what comes there."""
        if self._sums is not None:
            self._sums.open_ended()
        if self._open:
            with self.mutex.queue, self.mutex.lock:
                if self._open:
                    self._kernels.forget_memory(self._mem, low, high)
