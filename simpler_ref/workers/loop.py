"""The loop that serves mailboxes, in a process or a thread, for all kinds of workers.

Rule     CALL-FAIL-3, ORCH-RUN-8, SCHED-MAIL-4, SCHED-MAIL-9, FLOW-ID-5, FLOW-REG-2, WM-FORK-1,
         WM-THREAD-4, WM-LOOP-1, WM-LOOP-3, WM-LOOP-4, WM-LEFT-1, WM-LEFT-2, WM-CTRL-1
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import repeat, starmap
from typing import Any

from ..callables.pickling import answer_staged
from ..callables.runnable import refuse_unrun
from ..engine.memory import Engine
from ..engine.shared_arrays import populate_again
from ..engine.view.mailbox import (
    MailboxView,
    ReceivedArgs,
    digest_in,
    malformed,
    read_request,
    received_from,
    write_result,
)
from ..jit import layout as L
from ..jit.fail_points import (
    FAIL_CALLED,
    FAIL_CALLING,
    FAIL_CONTROL,
    FAIL_STOPPING,
    arm,
    fail_point,
)
from ..jit.kernel import FAIL_POINTS
from ..system import lazy
from ..system.regions import keep_freed_memory
from ..system.signals import do_nothing
from .containment import MOST_TRIALS, Beginning, Origin, flush_output, keep_result, then_flush
from .kinds import WorkerKind
from .reports import write_error


# ---------------------------------------------------------------- a worker's own table
class LocalCallables:
    """A worker's own table: digest → private slot → callable."""

    def __init__(self, kind: WorkerKind, snapshot: Mapping[bytes, Any]) -> None:
        self.kind = kind
        self.slots: dict[bytes, int] = {}
        self.leaves: list[Callable[[ReceivedArgs], Any]] = []
        self._installed: list[tuple[Any, Callable[[ReceivedArgs], Any]]] = []
        """With what runs its tasks without a probe."""
        self._free: list[int] = []
        self._probe: Any = None  # what is done around each task while the flags of a run ask for it
        for digest, target in snapshot.items():
            self.install(digest, target)

    def install(self, digest: bytes, target: Any) -> None:
        if digest in self.slots:
            return
        installed = self.kind.install(target)
        leaf = then_flush(self.kind.leaf(installed))
        if not self._free:
            self._free.append(len(self.leaves))
            self._installed.append((None, _removed))
            self.leaves.append(_removed)
        slot = self.slots[digest] = self._free.pop()
        self._installed[slot] = installed, leaf
        self.leaves[slot] = self._probed(leaf)

    def _probed(self, leaf: Callable[[ReceivedArgs], Any]) -> Callable[[ReceivedArgs], Any]:
        probed: Callable[[ReceivedArgs], Any] = (
            leaf if self._probe is None else self._probe.around(leaf)
        )
        return probed

    def probe(self, mailbox: MailboxView, request: bytes) -> bytes:
        """Run tasks with a probe from now on, or without: then kernels call compiled code again."""
        if self._probe is not None:
            self._probe.close()
            self._probe = None
        if asked := json.loads(request):
            self._probe = lazy.load("diagnostics").Probe(mailbox, asked)
        for slot in self.slots.values():
            self.leaves[slot] = self._probed(self._installed[slot][1])
        mailbox.engine.kernels.forget_digests(mailbox.engine.mem, mailbox.worker)
        return b""

    def address(self, slot: int) -> int:
        return 0 if self._probe is not None else self.kind.address(self._installed[slot][0])

    def report(self, digest: bytes, error: BaseException) -> None:
        slot = self.slots.get(digest)
        if slot is not None:
            self.kind.report(self._installed[slot][0], error)

    def name(self, slot: int) -> str:
        if slot < 0:
            return ""
        installed = self._installed[slot][0]
        name: str = getattr(installed, "__qualname__", type(installed).__qualname__)
        return name

    def remove(self, digest: bytes) -> None:
        slot = self.slots.pop(digest, None)
        if slot is None:
            return
        installed, _ = self._installed[slot]
        self._installed[slot] = None, _removed
        self.leaves[slot] = _removed
        self._free.append(slot)
        self.kind.remove(installed)


def _removed(_args: ReceivedArgs) -> None:
    raise KeyError("this callable was unregistered")


# ---------------------------------------------------------------- the loop
in_worker = 0
"""The process that is a worker and nothing else: this one, or one that it was forked from."""


def become_worker(inherited: Sequence[int]) -> None:
    """Make a freshly forked process a worker: no Ctrl-C, no stdin, no inherited descriptors."""
    global in_worker
    in_worker = os.getpid()
    keep_freed_memory()
    signal.signal(signal.SIGINT, do_nothing)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for fd in inherited:
        os.close(fd)
    null = os.open(os.devnull, os.O_RDONLY)
    if null != 0:
        os.dup2(null, 0)
        os.close(null)


class NotStartedError(Exception):
    """A worker has not started; whoever waits for it has the reason."""


def serve_mailbox(
    engine: Engine, worker: int, kind: WorkerKind, snapshot: Mapping[bytes, Any], in_thread: bool
) -> None:
    """Be a worker until told to stop: start, report that, then run task after task.

    A failure during the start is written into the mailbox, for the thread that waits for the worker.
    """
    mailbox = MailboxView(engine, worker)
    origin = Origin()
    if not in_thread:
        os.register_at_fork(before=flush_output)  # or buffered output would be written twice
    arm(engine.mem, mailbox.start, worker)
    try:
        try:
            kind.start(mailbox)
            callables = LocalCallables(kind, snapshot)
            origin.require()
            if not in_thread:
                populate_again()
            engine.placement.pin_worker(worker)  # not earlier: processes and threads below are free
            core = engine.placement.own_core(worker)  # threads take turns at the interpreter's lock
            mailbox.settle_in(core, 0 if in_thread else threading.get_native_id())
        except BaseException as exception:
            origin.require(exception)
            write_error(mailbox.box(0), mailbox.trace(0), exception)
            raise NotStartedError from exception
        _loop(mailbox, callables, origin, in_thread)
        fail_point(engine.mem, mailbox.start, FAIL_STOPPING)
    finally:
        kind.stop()


# states of the loop, beside the answers of the kernels
_NEW = -100  # it has not posted INIT_DONE
_RUNNING = -101  # the task has begun, and an exception is its failure
_ENDED = -102  # it has returned, and is not answered
_FAILED = -103  # it has failed, the mailbox has its message, and it is not answered
_COMPUTING = -104  # compiled leaves run
_OBEYED = -105  # a control request is carried out, and not answered


def _loop(mailbox: MailboxView, callables: LocalCallables, origin: Origin, in_thread: bool) -> None:
    """Serve the mailboxes until told to stop: decode, resolve the digest, call, answer.

    Signal handlers, timers and trace functions left behind by a task may raise at any moment. Python runs
    signal handlers after calls and before jumps backwards, and the answer of a kernel would be lost if
    one raised then. So the answer of a kernel that ends something comes from an iterator, which leaves no
    such moment between the kernel and the variable `local`. Thus `local` always has the worker's state,
    from which the code that catches the exception goes on. Kernels that end nothing are called again.
    """
    mem, kernels = mailbox.engine.mem, mailbox.engine.kernels
    worker, start, leaf_word = mailbox.worker, mailbox.start, mailbox.leaf_word
    thread, thread_word = threading.get_native_id(), mailbox.thread_word
    boxes = [mailbox.box(frame) for frame in range(mailbox.depth)]
    traces = [mailbox.trace(frame) for frame in range(mailbox.depth)]
    several = len(boxes) > 1
    receive = keep_result(
        kernels.finish_and_receive_in_thread if in_thread else kernels.finish_and_receive
    )
    report_ready = keep_result(kernels.report_ready)
    finish_control = keep_result(kernels.finish_control_and_receive)
    after_success = starmap(receive, repeat((mem, worker, L.SUCCESS)))
    after_failure = starmap(receive, repeat((mem, worker, L.TASK_FAILURE)))
    leaves = callables.leaves
    received = received_from(mailbox.engine)
    new = received.__new__
    running, ended = _RUNNING, _ENDED
    here = origin.here
    beginning = Beginning(in_thread)
    failure: BaseException | None = None
    args = last = new(received)
    args._box = None
    hold = beginning.hold
    local, slot, frame, error, trials, again = _NEW, -1, 0, 0, 0, False
    while True:
        try:
            while True:
                try:
                    if failure is not None:
                        origin.require(failure)
                        if args is not last:
                            trials, last = 1, args
                        if again:
                            beginning.restore()
                            again = False
                        if (
                            local in (_COMPUTING, L.RAISED) and mem[leaf_word]
                        ):  # a leaf has raised it
                            frame = mailbox.served
                            local = _RUNNING
                            mem[leaf_word] = 0
                            trials = 1
                        if local == _RUNNING:
                            write_error(boxes[frame], traces[frame], failure)
                            callables.report(digest_in(boxes[frame]), failure)
                            local = _FAILED
                        elif in_thread and _is_terminated(mailbox, local, failure):
                            trials = MOST_TRIALS
                            raise failure
                        else:
                            beginning.contain(failure, callables.kind.label, callables.name(slot))
                        failure = None
                    while local >= 0:  # a task for Python: the usual case
                        slot = local
                        if several:
                            frame = local >> 32
                            slot = local & 0xFFFFFFFF
                        args = new(received)
                        args._box = boxes[frame]
                        local = running
                        if FAIL_POINTS:
                            fail_point(mem, start, FAIL_CALLING)
                        if (result := leaves[slot](args)) is not None:
                            refuse_unrun(result)
                            result = None
                        local = ended
                        if FAIL_POINTS:
                            fail_point(mem, start, FAIL_CALLED)
                        if not here:
                            origin.require()
                        args._box = None
                        for local in after_success:  # noqa: B007
                            break
                    if local == L.STOP:
                        flush_output()
                        beginning.restore()
                        return
                    if local == L.PARK:
                        flush_output()
                        local = int(kernels.park_and_receive(mem, worker))
                    elif local == L.RESOLVE or local == L.MISMATCH:
                        frame = mailbox.served
                        found = callables.slots.get(digest_in(boxes[frame]))
                        if found is None:
                            args, local = new(received), _RUNNING
                            raise KeyError(
                                f"digest {digest_in(boxes[frame]).hex()} is not installed in this worker"
                            )
                        if local == L.MISMATCH:  # Python raises the error about the arguments
                            local = found | frame << 32
                        else:
                            address = callables.address(found)
                            local = int(kernels.remember(mem, worker, found, address))
                    elif local == L.MALFORMED:
                        frame = mailbox.served
                        args, local = new(received), _RUNNING
                        raise RuntimeError(malformed(boxes[frame]))
                    elif local == L.COMPILED:
                        if in_thread:  # without the lock each thread wants a core
                            mem[thread_word] = thread
                        answers = map(kernels.run_leaves, (mem,), (worker,))
                        local = _COMPUTING
                        for local in answers:  # noqa: B007
                            break
                        if in_thread:
                            mem[thread_word] = 0
                    elif local == L.RAISED:
                        from ..jit.leaves import raise_error  # with the compiler, as for the leaf

                        raise_error(int(mem[leaf_word]))
                    elif local == L.CONTROL:
                        for error in map(obey, (mailbox,), (callables,)):  # noqa: B007
                            local = _OBEYED
                            break
                    elif local == _OBEYED:
                        origin.require()
                        for local in map(finish_control, (mem,), (worker,), (error,)):  # noqa: B007
                            break
                    elif local == _ENDED:
                        args._box = None
                        for local in after_success:  # noqa: B007
                            break
                    elif local == _FAILED:
                        args._box = None
                        for local in after_failure:  # noqa: B007
                            break
                    elif local == _NEW:
                        for _ in map(report_ready, (mem,), (worker,)):
                            local = L.PARK
                            break
                    else:  # compiled leaves have run, or not begun to
                        local = L.PARK
                except BaseException as exception:  # no calls here, so no handler can run
                    trials += 1
                    if trials > MOST_TRIALS:
                        raise
                    if failure is None:
                        failure = exception
                    else:
                        again = True
        except BaseException as exception:  # from the jump back to the inner `try`
            trials += 1
            if trials > MOST_TRIALS:
                raise
            if failure is None:
                failure = exception
            again = True
            # they come faster than they are handled: no more until `restore`. The first call blocks
            # them, though it raises a pending one; the others take those that may still be pending
            try:  # noqa: SIM105
                hold()
            except BaseException:
                pass
            try:  # noqa: SIM105
                hold()
            except BaseException:
                pass
            try:  # noqa: SIM105
                hold()
            except BaseException:
                pass


def _is_terminated(mailbox: MailboxView, local: int, failure: BaseException) -> bool:
    """Say whether the task that a thread is about to begin was terminated, by a second Ctrl-C.

    There will be no third, so the thread ends, too.
    """
    begins = local >= 0 or local in (L.PARK, L.RESOLVE, L.MISMATCH, L.MALFORMED, L.COMPILED)
    return begins and isinstance(failure, SystemExit) and mailbox.engine.view.is_cancelled


# ---------------------------------------------------------------- control requests
def obey(mailbox: MailboxView, callables: LocalCallables) -> int:
    """Carry out the control request in the mailbox; return the error code for the answer."""
    fail_point(mailbox.engine.mem, mailbox.start, FAIL_CONTROL)
    frame = mailbox.awaited
    box = mailbox.box(frame)
    request = read_request(box)
    command, digest = request.command, request.digest
    try:
        if command in (L.CTRL_REGISTER, L.CTRL_PY_REGISTER):
            target = callables.kind.read_target(request.name, request.args[0], command, digest)
            callables.install(digest, target)
        elif command in (L.CTRL_UNREGISTER, L.CTRL_PY_UNREGISTER):
            mailbox.engine.kernels.forget_digests(mailbox.engine.mem, mailbox.worker)
            callables.remove(digest)
        elif command == L.PROBE_TASKS:
            answer_staged(request.name, request.args[0], partial(callables.probe, mailbox))
        elif command == L.TRACE_BELOW:
            write_result(box, answer_staged(request.name, request.args[0], callables.kind.trace))
        elif command in L.LINK_COMMANDS:
            act = partial(callables.kind.answer, command)
            write_result(box, answer_staged(request.name, request.args[0], act))
        else:
            write_result(box, callables.kind.control(command, *request.args))
    except BaseException as exception:
        write_error(box, mailbox.trace(frame), exception)
        return 1
    return 0
