"""What serves a mailbox: the kinds of workers, and the one loop that runs all of them.

A worker is a process or a thread that serves one mailbox. What it does with a task is the business of
its kind: a sub worker calls a Python function, a chip runs kernels, a nested Worker runs an
orchestration function over workers of its own. The loop is the same for all, and the same in a process
as in a thread; only where it runs differs.
"""

from __future__ import annotations

import inspect
import os
import signal
import struct
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from itertools import repeat, starmap
from typing import Any, NamedTuple

import numpy as np

from ..callable_identity import TargetNamespace, read_payload
from ..callables.leaves import Leaf
from ..callables.runnable import refuse_unrun
from ..engine.memory import Engine
from ..engine.shared_arrays import populate_again
from ..errors import CallableError, TaskError
from ..jit import layout as L
from ..jit.fail_points import (
    FAIL_CALLED,
    FAIL_CALLING,
    FAIL_CONTROL,
    FAIL_STOPPING,
    arm,
    die_here,
)
from ..jit.kernel import FAIL_POINTS
from ..model.arguments import TaskArgs
from ..model.config import CallConfig
from ..model.enums import TensorArgType
from ..model.scalars import as_float, as_it_went_in
from ..model.tensor import ContinuousTensor
from .containment import MOST_TRIALS, Beginning, Origin, flush_output, keep_result

_COUNTS = struct.Struct("<ii")
_CONTROL_ARGS = struct.Struct("<3Q")
_COMMAND = struct.Struct("<Q")


# ---------------------------------------------------------------- what a task finds in the mailbox
class ReceivedArgs(TaskArgs):
    """The arguments of the running task, read where the mailbox has them.

    They are valid during the call: what a callable wants to keep, it copies.

    Rule     FLOW-VIEW-1 to -3; FLOW-SCALAR-1 to -3; SCHED-MAIL-5, -6
    """

    __slots__ = ("_box",)

    _box: Any

    def _counts(self) -> tuple[int, int]:
        if self._box is None:
            raise RuntimeError(
                "these TaskArgs belong to a task that has ended; copy what you need while it runs"
            )
        tensors, scalars = _COUNTS.unpack_from(self._box, L.MAILBOX_OFF_ARGS)
        used = 8 + tensors * 40 + scalars * 8
        if tensors < 0 or scalars < 0 or used > L.MAILBOX_ARGS_CAPACITY:
            raise RuntimeError(
                f"the mailbox holds {tensors} tensors and {scalars} scalars, {used} bytes, but has "
                f"room for {L.MAILBOX_ARGS_CAPACITY}"
            )
        return tensors, scalars

    def tensor(self, i: int) -> ContinuousTensor:
        """Return tensor `i`."""
        tensors, _ = self._counts()
        if not 0 <= i < tensors:
            raise IndexError(f"tensor index {i} is out of range: there are {tensors}")
        start = L.MAILBOX_OFF_ARGS + 8 + 40 * i
        return ContinuousTensor._from_wire(bytes(self._box[start : start + 40]))

    def _scalar(self, i: int) -> tuple[bytes, int]:
        """Return the 64 bits of a scalar, and its kind from beside the mailbox; RAW without that."""
        tensors, scalars = self._counts()
        if not 0 <= i < scalars:
            raise IndexError(f"scalar index {i} is out of range: there are {scalars}")
        start = L.MAILBOX_OFF_ARGS + 8 + 40 * tensors + 8 * i
        kind = self._box[L.MAILBOX_SIZE + i] if len(self._box) > L.MAILBOX_SIZE else L.RAW
        return bytes(self._box[start : start + 8]), kind

    def _all_scalars(self) -> list[tuple[bytes, int]]:
        return [self._scalar(i) for i in range(self.scalar_count())]

    def scalar(self, i: int) -> int | float:
        """Return scalar `i` as it was added; see `TaskArgs.scalar`."""
        return as_it_went_in(*self._scalar(i))

    def scalar_float(self, i: int) -> float:
        """Return scalar `i` as a float; see `TaskArgs.scalar_float`."""
        return as_float(*self._scalar(i))

    def config(self) -> CallConfig:
        """Return the configuration that the task was submitted with."""
        self._counts()
        start = L.MAILBOX_OFF_CONFIG
        return CallConfig.from_bytes(bytes(self._box[start : start + L.CALL_CONFIG_SIZE]))

    def tag(self, i: int) -> TensorArgType:
        """Refuse: there are no tags here."""
        raise RuntimeError("tags are read by submit and do not travel to the worker")

    def tensor_count(self) -> int:
        """Return the number of tensors."""
        return self._counts()[0]

    def scalar_count(self) -> int:
        """Return the number of scalars."""
        return self._counts()[1]

    def __len__(self) -> int:
        return sum(self._counts())

    def _refuse(self, *_: Any, **__: Any) -> None:
        raise RuntimeError("the arguments of a running task cannot be changed")

    add_tensor: Any = _refuse
    add_scalar: Any = _refuse
    set_tag: Any = _refuse
    clear: Any = _refuse


class Desk(NamedTuple):
    """A worker's words: its mailboxes and what lies beside them."""

    engine: Engine
    worker: int

    @property
    def start(self) -> int:
        """First word of the worker."""
        mem = self.engine.mem
        return int(mem[L.A_WORKERS] + self.worker * mem[L.WORKER_STRIDE])

    @property
    def depth(self) -> int:
        """How many frames there are: tasks that the worker may be given at once."""
        return int(self.engine.mem[L.DEPTH])

    @property
    def served(self) -> int:
        """Number of the frame that the worker is at, as it sees it."""
        return int(self.engine.mem[self.start + L.W_AT]) // L.WORKER_WORDS

    @property
    def awaited(self) -> int:
        """Number of the frame that the worker waits for when it has no task, as its parent sees it."""
        return int(self.engine.mem[self.start + L.W_TAIL]) // L.WORKER_WORDS

    def box(self, frame: int) -> memoryview:
        """Return the mailbox of a frame, `MAILBOX_SIZE` bytes, and the kinds of its task's scalars."""
        return self._octets(frame, L.W_MAILBOX, L.W_TRACE)

    def trace(self, frame: int) -> memoryview:
        """Return the side region of a frame, for tracebacks."""
        return self._octets(frame, L.W_TRACE, L.WORKER_WORDS)

    def _octets(self, frame: int, first: int, end: int) -> memoryview:
        view = self.engine.mem.view(np.uint8)
        start = self.start + frame * L.WORKER_WORDS
        octets: memoryview = view[8 * (start + first) : 8 * (start + end)].data
        return octets

    def address(self, frame: int, offset: int) -> int:
        """Return the address of a byte of a frame's mailbox."""
        base: int = self.engine.mem.ctypes.data
        return base + 8 * (self.start + frame * L.WORKER_WORDS + L.W_MAILBOX) + offset

    def add_device_time(self, ns: int) -> None:
        """Count time that a chip spent on a task."""
        self.engine.mem[self.start + L.W_DEVICE_NS] += ns


# ---------------------------------------------------------------- kinds of workers
class WorkerKind:
    """What a worker does with its tasks: the extension point.

    Subclass it, or pass any object that has `run`, to `Worker.add_next_level` or `Worker.add_sub`.
    In a process or in a thread, `start`, `install`, `run` and the rest are all called there, one at a
    time. Several workers may share one object only if it is ready for that.

    Rule     WM-KIND-4; WM-FORK-2
    """

    label = "worker"
    """What messages call it."""
    suffix = ""
    """What messages add to its place in its pool."""
    target_namespace = TargetNamespace.LOCAL_PYTHON
    """Which callables it is given."""

    def prepare(self) -> None:
        """Do what must be done before threads exist; called in thread mode only, by the starter."""

    def abandon(self) -> None:
        """Undo `prepare`, when `start` was not called after it."""

    def start(self, desk: Desk) -> None:
        """Get ready, in the process or thread that will serve the mailbox."""

    def stop(self) -> None:
        """Give everything back."""

    def install(self, target: Any) -> Any:
        """Return what `run` shall get for a registered callable."""
        return target

    def remove(self, installed: Any) -> None:
        """Forget a callable that was unregistered."""

    def run(self, callable: Any, view: ReceivedArgs, config: CallConfig) -> Any:
        """Run a task. An exception is the task's failure."""
        raise NotImplementedError(f"{type(self).__name__} has no run")

    def leaf(self, installed: Any) -> Callable[[ReceivedArgs], Any]:
        """Return a callable's tasks in the form the loop calls."""
        run = self.run
        return lambda args: run(installed, args, args.config())

    def address(self, installed: Any) -> int:
        """Return where compiled code stands that runs a callable's tasks, 0 for what Python must call."""
        return 0

    def control(self, command: int, arg0: int, arg1: int, arg2: int) -> int:
        """Carry out a control request about memory and return its result.

        Rule     WM-CTRL-6; WM-MAIL-6
        """
        raise CallableError(
            "CALLABLE_KIND_UNSUPPORTED", f"a {self.label} has no memory of its own to manage"
        )


class SubWorker(WorkerKind):
    """Calls Python functions with the task's arguments."""

    label = "sub_worker"

    def __init__(self) -> None:
        self._desk: Desk

    def start(self, desk: Desk) -> None:
        """Remember the desk."""
        self._desk = desk

    def leaf(self, installed: Any) -> Callable[[ReceivedArgs], Any]:
        """Return the function itself; one with no parameters is called without any."""
        if not isinstance(installed, Leaf):
            return as_leaf(installed)
        engine, worker = self._desk.engine, self._desk.worker

        def leaf(args: ReceivedArgs) -> None:
            installed.run_task(args)
            if installed.address:  # it is compiled now: the next task finds that
                engine.kernels.forget_digests(engine.mem, worker)

        return leaf

    def address(self, installed: Any) -> int:
        """Return where a compiled leaf stands."""
        return installed.address if isinstance(installed, Leaf) else 0


class CustomWorker(WorkerKind):
    """Somebody's own object with ``run(callable, view, config)``.

    Rule     WM-KIND-1, -2
    """

    def __init__(self, target: Any, label: str) -> None:
        if not callable(getattr(target, "run", None)):
            raise TypeError(
                f"a worker needs a method run(callable, view, config); {type(target).__name__} has none"
            )
        self._target = target
        self.label = label
        self.run = target.run  # type: ignore[method-assign]

    def start(self, desk: Desk) -> None:
        """Call the object's `start`, if it has one."""
        getattr(self._target, "start", lambda: None)()

    def stop(self) -> None:
        """Call the object's `stop`, if it has one."""
        getattr(self._target, "stop", lambda: None)()


class NestedWorker(WorkerKind):
    """Runs orchestration functions on a Worker of its own, one level down.

    Rule     FLOW-NEST-1, -2, -5; HIER-ENGINE-2, -3; WM-MODE-3
    """

    label = "child_worker"

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.suffix = f" level={inner.level}"
        self._desk: Desk

    def prepare(self) -> None:
        """Start the tree below."""
        self.inner._start_as_child()

    def abandon(self) -> None:
        """Take the tree below down."""
        self.stop()

    def start(self, desk: Desk) -> None:
        """Start the tree below, unless that has been done."""
        self._desk = desk
        self.inner._start_as_child()

    def stop(self) -> None:
        """Take the tree below down."""
        self.inner._stop_as_child()

    def run(self, callable: Any, view: ReceivedArgs, config: CallConfig) -> Any:
        """Run an orchestration function, with an Orchestrator of the inner Worker.

        Rule     FLOW-NEST-1; FLOW-FAIL-3; FLOW-WALK-1
        """
        timing = self.inner.run(callable, view, config)
        self._desk.add_device_time(timing.device_wall_ns)


class ChipChild(WorkerKind):
    """Runs chip callables on one chip.

    Rule     WM-CHIP-1, -5, -8; FLOW-EDGE-4; FLOW-WALK-2
    """

    label = "chip_worker"
    target_namespace = TargetNamespace.LOCAL_CHIP

    def __init__(self, device_id: int, runtime: str | None) -> None:
        self.device_id = device_id
        self.runtime = runtime
        self.suffix = f" device={device_id}"
        self._desk: Desk
        self._chip: Any
        self._slots: set[int] = set()

    def start(self, desk: Desk) -> None:
        """Load the runtime and open the device."""
        from ..native_chip import ChipWorker

        self._desk = desk
        self._chip = ChipWorker(self.device_id, self.runtime)
        self._chip.init()

    def stop(self) -> None:
        """Close the device."""
        if hasattr(self, "_chip"):
            self._chip.finalize()

    def install(self, target: Any) -> int:
        """Prepare a chip callable and return its slot on the chip."""
        slot = next(i for i in range(len(self._slots) + 1) if i not in self._slots)
        self._chip.prepare(slot, target)
        self._slots.add(slot)
        return slot

    def remove(self, installed: int) -> None:
        """Give a slot on the chip back."""
        self._chip.unregister(installed)
        self._slots.discard(installed)

    def leaf(self, installed: int) -> Callable[[ReceivedArgs], Any]:
        """Run a slot on what stands in the mailbox, without decoding it here."""
        chip, desk = self._chip, self._desk
        run = chip.run
        places = [
            (desk.address(i, L.MAILBOX_OFF_ARGS), desk.address(i, L.MAILBOX_OFF_CONFIG))
            for i in range(desk.depth)
        ]

        def leaf(_: ReceivedArgs) -> None:
            args, config = places[desk.served] if len(places) > 1 else places[0]
            run(installed, args, L.MAILBOX_ARGS_CAPACITY, config)
            desk.add_device_time(chip.device_wall_ns)

        return leaf

    def control(self, command: int, arg0: int, arg1: int, arg2: int) -> int:
        """Manage the memory of the device.

        Rule     WM-CHIP-3
        """
        if command == L.CTRL_MALLOC:
            return int(self._chip.malloc(arg0))
        if command == L.CTRL_FREE:
            self._chip.free(arg0)
        elif command == L.CTRL_COPY_TO:
            self._chip.copy_to(arg0, arg1, arg2)
        elif command == L.CTRL_COPY_FROM:
            self._chip.copy_from(arg0, arg1, arg2)
        else:
            return super().control(command, arg0, arg1, arg2)
        return 0


def as_leaf(target: Callable[..., Any]) -> Callable[[TaskArgs], Any]:
    """Return `target` in the form the loop calls: one with no parameters is called without any.

    Rule     ORCH-API-2
    """
    try:
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):
        return target
    if any(p.kind is not p.KEYWORD_ONLY and p.kind is not p.VAR_KEYWORD for p in parameters):
        return target
    return lambda _args: target()


# ---------------------------------------------------------------- a worker's own table
class LocalCallables:
    """A worker's own table: digest → private slot → callable.

    Rule     SCHED-MAIL-4; FLOW-ID-5
    """

    def __init__(self, kind: WorkerKind, snapshot: Mapping[bytes, Any]) -> None:
        self.kind = kind
        self.slots: dict[bytes, int] = {}
        self.leaves: list[Callable[[ReceivedArgs], Any]] = []
        self._installed: list[Any] = []
        self._free: list[int] = []
        for digest, target in snapshot.items():
            self.install(digest, target)

    def install(self, digest: bytes, target: Any) -> None:
        """Make a callable known; one that is known already stays as it is."""
        if digest in self.slots:
            return
        installed = self.kind.install(target)
        leaf = self.kind.leaf(installed)
        if self._free:
            slot = self._free.pop()
            self._installed[slot], self.leaves[slot] = installed, leaf
        else:
            slot = len(self.leaves)
            self._installed.append(installed)
            self.leaves.append(leaf)
        self.slots[digest] = slot

    def address(self, slot: int) -> int:
        """Return where compiled code stands that runs a callable's tasks, or 0."""
        return self.kind.address(self._installed[slot])

    def name(self, slot: int) -> str:
        """Return what messages call the callable of a slot, −1 for none."""
        if slot < 0:
            return ""
        installed = self._installed[slot]
        name: str = getattr(installed, "__qualname__", type(installed).__qualname__)
        return name

    def remove(self, digest: bytes) -> None:
        """Forget a callable; one that is not known is no error."""
        slot = self.slots.pop(digest, None)
        if slot is None:
            return
        installed, self._installed[slot] = self._installed[slot], None
        self.leaves[slot] = _removed
        self._free.append(slot)
        self.kind.remove(installed)


def _removed(_args: ReceivedArgs) -> None:
    raise KeyError("this callable was unregistered")


# ---------------------------------------------------------------- the loop
def become_worker(inherited: Sequence[int]) -> None:
    """Make a freshly forked process a worker: no Ctrl-C, no stdin, no descriptors of others.

    Rule     ORCH-RUN-8; WM-FORK-1
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for fd in inherited:
        os.close(fd)
    null = os.open(os.devnull, os.O_RDONLY)
    if null != 0:
        os.dup2(null, 0)
        os.close(null)


def serve_mailbox(
    engine: Engine, worker: int, kind: WorkerKind, snapshot: Mapping[bytes, Any], in_thread: bool
) -> None:
    """Be a worker until told to stop: get ready, say so, then task after task.

    What fails before the worker is ready is written into the mailbox, for whoever waits for it.

    Rule     WM-LOOP-1, -4; WM-LEFT-1
    """
    desk = Desk(engine, worker)
    origin = Origin()
    if not in_thread:
        os.register_at_fork(before=flush_output)  # or what waits would be written twice
    arm(engine.mem, desk.start, worker)
    try:
        try:
            kind.start(desk)
            callables = LocalCallables(kind, snapshot)
            origin.require()
            if not in_thread:
                populate_again()
            engine.placement.take_seat(worker)  # not earlier: processes and threads below are free
            if not in_thread:  # threads of one process take turns at the interpreter's lock
                home = engine.placement.home_of(worker)
                engine.mem[desk.start + L.W_HOME] = 0 if home is None else home + 1
                engine.mem[desk.start + L.W_THREAD] = threading.get_native_id()
        except BaseException as exception:
            origin.require(exception)
            write_error(desk.box(0), desk.trace(0), exception)
            raise
        _loop(desk, callables, origin, in_thread)
        die_here(engine.mem, desk.start, FAIL_STOPPING)
    finally:
        kind.stop()


# where the loop stands, beside what the kernels answer
_NEW = -100  # it has not said INIT_DONE
_RUNNING = -101  # the task has begun, and what is raised is its failure
_ENDED = -102  # it has returned, and is not answered
_FAILED = -103  # it has failed, its words stand in the mailbox, and it is not answered
_COMPUTING = -104  # compiled leaves run
_OBEYED = -105  # a control request is carried out, and not answered


def _loop(desk: Desk, callables: LocalCallables, origin: Origin, in_thread: bool) -> None:
    """Serve the mailboxes until told to stop: decode, resolve the digest, call, answer.

    An exception may come at any moment, from what a task has left behind: a signal handler, a timer, a
    trace function. Python runs signal handlers after calls and before jumps backwards, and an answer of
    a kernel would be lost if one raises then. So where a kernel ends something, its answer is taken from
    an iterator, which leaves no such moment between the kernel and the variable `local`. Thus `local`
    always says where the worker stands, and whoever catches the exception can go on from there. The
    kernels that end nothing are just called again.

    Rule     WM-LOOP-2, -3; WM-THREAD-4; WM-LEFT-1 to -3; SCHED-MAIL-10
    """
    mem, kernels, worker, start = desk.engine.mem, desk.engine.kernels, desk.worker, desk.start
    boxes = [desk.box(frame) for frame in range(desk.depth)]
    traces = [desk.trace(frame) for frame in range(desk.depth)]
    several = len(boxes) > 1
    receive = keep_result(
        kernels.finish_and_receive_in_thread if in_thread else kernels.finish_and_receive
    )
    report_ready = keep_result(kernels.report_ready)
    finish_control = keep_result(kernels.finish_control_and_receive)
    after_success = starmap(receive, repeat((mem, worker, L.SUCCESS)))
    after_failure = starmap(receive, repeat((mem, worker, L.TASK_FAILURE)))
    leaves = callables.leaves
    new = ReceivedArgs.__new__
    running, ended = _RUNNING, _ENDED
    here = origin.here
    beginning = Beginning(in_thread)
    failure: BaseException | None = None
    args = last = new(ReceivedArgs)
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
                        if local == _COMPUTING and mem[start + L.W_LEAF]:  # a leaf has raised it
                            frame = desk.served
                            local = _RUNNING
                            mem[start + L.W_LEAF] = 0
                            trials = 1
                        if local == _RUNNING:
                            beginning.blame(failure)
                            write_error(boxes[frame], traces[frame], failure)
                            local = _FAILED
                        elif in_thread and _is_struck(mem, local, failure):
                            trials = MOST_TRIALS
                            raise failure
                        else:
                            beginning.contain(failure, callables.kind.label, callables.name(slot))
                        failure = None
                    while local >= 0:  # a task for Python: the way of most
                        slot = local
                        if several:
                            frame = local >> 32
                            slot = local & 0xFFFFFFFF
                        args = new(ReceivedArgs)
                        args._box = boxes[frame]
                        local = running
                        if FAIL_POINTS:
                            die_here(mem, start, FAIL_CALLING)
                        if (result := leaves[slot](args)) is not None:
                            refuse_unrun(result)
                            result = None
                        local = ended
                        if FAIL_POINTS:
                            die_here(mem, start, FAIL_CALLED)
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
                        frame = desk.served
                        found = callables.slots.get(_digest(boxes[frame]))
                        if found is None:
                            args, local = new(ReceivedArgs), _RUNNING
                            raise KeyError(
                                f"digest {_digest(boxes[frame]).hex()} is not installed in this worker"
                            )
                        if local == L.MISMATCH:  # Python says what is wrong with the arguments
                            local = found | frame << 32
                        else:
                            address = callables.address(found)
                            local = int(kernels.remember(mem, worker, found, address))
                    elif local == L.COMPILED:
                        answers = map(kernels.run_leaves, (mem,), (worker,))
                        local = _COMPUTING
                        for local in answers:  # noqa: B007
                            break
                    elif local == L.CONTROL:
                        for error in map(obey, (desk,), (callables,)):  # noqa: B007
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
                except BaseException as exception:  # no call stands here, so nothing can come
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
            # they come faster than they are dealt with: no more until `restore`. The first call ends
            # that, though it raises what has come by then; the others take what may still be there
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


def _is_struck(
    mem: np.ndarray[Any, np.dtype[np.int64]], local: int, failure: BaseException
) -> bool:
    """Say whether a thread was asked to end the task that it is about to begin.

    A second Ctrl-C has asked, and there will be no third: so it ends with its thread.
    """
    begins = local >= 0 or local in (L.PARK, L.RESOLVE, L.MISMATCH, L.COMPILED)
    return begins and isinstance(failure, SystemExit) and bool(mem[L.CANCEL])


def _digest(box: memoryview, offset: int = L.MAILBOX_OFF_DIGEST) -> bytes:
    return bytes(box[offset : offset + L.CALLABLE_HASH_DIGEST_BYTES])


# ---------------------------------------------------------------- control requests
def obey(desk: Desk, callables: LocalCallables) -> int:
    """Carry out the control request in the mailbox; return the error code for the answer.

    Rule     WM-CTRL-1; FLOW-REG-2
    """
    die_here(desk.engine.mem, desk.start, FAIL_CONTROL)
    frame = desk.awaited
    box = desk.box(frame)
    (command,) = _COMMAND.unpack_from(box, L.MAILBOX_OFF_COMMAND)
    args = _CONTROL_ARGS.unpack_from(box, L.MAILBOX_OFF_CONTROL_ARGS)
    digest = _digest(box, L.MAILBOX_OFF_CONTROL_DIGEST)
    try:
        if command in (L.CTRL_REGISTER, L.CTRL_PY_REGISTER):
            start = L.MAILBOX_OFF_CONTROL_NAME
            name = os.fsdecode(bytes(box[start : start + L.CONTROL_NAME_SIZE]).split(b"\0")[0])
            callables.install(digest, read_payload(name, args[0], command, digest))
        elif command in (L.CTRL_UNREGISTER, L.CTRL_PY_UNREGISTER):
            desk.engine.kernels.forget_digests(desk.engine.mem, desk.worker)
            callables.remove(digest)
        else:
            result = callables.kind.control(command, *args)
            _COMMAND.pack_into(box, L.MAILBOX_OFF_CONTROL_RESULT, result)
    except BaseException as exception:
        write_error(box, desk.trace(frame), exception)
        return 1
    return 0


# ---------------------------------------------------------------- errors on their way up
def cut_utf8(text: str, limit: int) -> bytes:
    """Return at most `limit` bytes of UTF-8, cut between characters."""
    raw = text.encode(errors="replace")
    return raw if len(raw) <= limit else raw[:limit].decode(errors="ignore").encode()


def describe_exception(exception: BaseException) -> str:
    """Return an exception's type and text; what came up from a worker below has its type inside.

    Rule     FLOW-FAIL-1
    """
    try:
        words = str(exception)
    except BaseException as broken:  # a __str__ that raises
        words = f"(its text cannot be shown: {type(broken).__name__})"
    if not isinstance(exception, TaskError):
        words = f"{type(exception).__name__}: {words}"
    return words.replace("\0", "\\0")


def write_error(box: memoryview, trace: memoryview, exception: BaseException) -> None:
    """Put an exception's type and text into the mailbox and its traceback into the side region.

    The text of a failure further down, with its chain of names, also stands whole before the
    traceback if the mailbox is too small for it.

    Rule     SCHED-MAIL-7; ORCH-FAIL-5; FLOW-FAIL-2
    """
    words = describe_exception(exception)
    message = cut_utf8(words, L.MAILBOX_ERROR_MSG_SIZE - 1)
    at = L.MAILBOX_OFF_ERROR_MSG
    box[at : at + len(message) + 1] = message + b"\0"
    try:
        lines = "".join(traceback.format_exception(exception)).replace("\0", "\\0")
    except BaseException:
        lines = words
    head = b""
    if isinstance(exception, TaskError) and len(message) < len(words.encode(errors="replace")):
        head = cut_utf8(words, L.TRACE_CAPACITY // 4) + b"\0"
    raw = lines.encode(errors="replace")
    room = L.TRACE_CAPACITY - len(head)
    if len(raw) > room:  # the frames stand first, the deepest one and the text last
        half = room // 2 - 16
        raw = cut_utf8(lines, half) + b"\n ... (cut) ...\n" + raw[-half:]
    raw = head + raw.decode(errors="ignore").encode()
    trace[:8] = len(raw).to_bytes(8, "little")
    trace[8 : 8 + len(raw)] = raw


def trace_size(word: int) -> int:
    """Return the bytes of a traceback by the word before it: none if that says more than there can be."""
    return word if 0 <= word <= L.TRACE_CAPACITY else 0


def read_error(message: bytes, trace: bytes) -> tuple[str, str]:
    """Return what `write_error` wrote: the text, and the traceback."""
    text = message.split(b"\0", 1)[0].decode(errors="replace")
    lines = trace.decode(errors="replace")
    if "\0" in lines:
        text, lines = lines.split("\0", 1)
    return text, lines
