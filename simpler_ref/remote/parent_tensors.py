"""The parent's tensors in a run: what comes home at its end, what was lost with an endpoint, and how an
orchestrator has tasks run again after a loss, and goes on.

For that it keeps the tasks since all tensors were last at home, and what this machine's memory had then.
After a loss that memory gets it back, all copies are forgotten, and the tasks are submitted once more, in
their order. So nobody has to know who had which version, and a loss costs what was done since then, which
`drain` bounds.

Rule     REMOTE-LINK-12, REMOTE-COPY-5, REMOTE-COPY-8, REMOTE-RETRY-1, REMOTE-RETRY-2, REMOTE-RETRY-3,
         REMOTE-RETRY-4
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from ctypes import memmove, string_at
from typing import Any, NamedTuple

import numpy as np

from ..callables.identity import CallableHandle
from ..errors import ControlError, RemoteError, TaskError, WorkerLostError, tell
from ..jit import layout as L
from ..model.arguments import TaskArgs
from ..model.wire import TAG_AT, RemoteWire, replaced
from ..system.types import Array, address_of
from ..workers.life import Life
from .directory import HOME, Directory, Held, Use, uses_of
from .parent_memory import Brought, Homing

log = logging.getLogger("simpler_ref")

LEAST_AT_ONCE = 1 << 20
"""From how many bytes on several endpoints send what they have at the same time."""
Submit = Callable[[list[TaskArgs], list[int]], None]


class LostTensor(NamedTuple):
    """A span whose newest version went with an endpoint, and a digest of what memory has instead."""

    start: int
    nbytes: int
    text: str
    digest: bytes

    def overlaps(self, start: int, nbytes: int) -> bool:
        return start < self.start + self.nbytes and self.start < start + nbytes


def _digest(start: int, nbytes: int) -> bytes:
    return hashlib.blake2b((ctypes.c_char * nbytes).from_address(start)).digest()


def _name(start: int, nbytes: int) -> str:
    return f"the tensor of {nbytes} bytes at {start:#x}"


class ParentTensors:
    """The tensors of this machine of which endpoints have copies, and where they are: the directory.

    `run_number` counts runs, and drains: endpoints forget copies of an earlier one.
    """

    def __init__(self, life: Life, endpoints: Any) -> None:
        self._life, self._bring = life, endpoints.bring
        self.directory = Directory(endpoints.links)
        self.run_number = 1
        self.recovery = Recovery(endpoints, life.options.retries)
        """The tasks that may run again."""
        self.owed: list[tuple[int, int]] = []
        """Spans whose newest version is lost unless tasks make it again."""
        self._kept: list[Array] = []
        """Memory with what goes beside the tasks of this run."""
        self.lost: list[LostTensor] = []
        """Those that were not written since."""

    def begin_run(self) -> None:
        """Begin with none, should the end of the last run have been cut short."""
        self.forget()
        self._kept.clear()
        self.directory.empty_queues()

    def keep(self, raw: bytes) -> int:
        """Return the address of bytes that stay until the next run."""
        memory = self._life.live().arena.empty((max(1, len(raw)),), np.uint8)
        memory[: len(raw)] = np.frombuffer(raw, np.uint8)
        self._kept.append(memory)
        return address_of(memory)

    def forget(self) -> None:
        """Forget where tensors are: this machine's memory has them all."""
        self.directory.clear()
        self.run_number += 1
        self.recovery.clear()

    def bring_home(self) -> None:
        """Have this machine's memory be current, once all tasks have ended, and forget all copies."""
        self._bring_current()
        self.forget()
        self.owed.clear()

    def _bring_current(self) -> None:
        wanted: dict[int, list[Held]] = {}
        for held in self.directory:
            if not held.is_home:
                wanted.setdefault(held.maker, []).append(held)
                self.recovery.save_bytes(*held.span)
        total = sum(one.use.nbytes for several in wanted.values() for one in several)
        homings = [
            [Homing(one.key, 1, one.version, *one.span) for one in several]
            for several in wanted.values()
        ]
        with ThreadPoolExecutor(max(1, len(wanted)), "simpler-bring") as pool:
            asks = map if total < LEAST_AT_ONCE else pool.map
            answers = asks(self._bring, wanted, homings)
            for several, answer in zip(wanted.values(), answers, strict=True):
                for one, status in zip(several, answer, strict=True):
                    if status != Brought.IS_HOME:
                        raise RemoteError(
                            f"{_name(*one.span)} is lost: only endpoint {one.maker} had it"
                        )
                    one.holders.add(HOME)

    def end_run(
        self, failure: BaseException | None, failed: Collection[int] = ()
    ) -> BaseException | None:
        """Bring home what endpoints have written in a run; return the run's failure.

        After a failed run, the newest version that was made comes home if it still exists: `failed` are
        the tasks that have made none. What was lost is noted, and the failure tells it.
        """
        self._forget_own()
        waiting, known = list(self.directory), len(self.lost)
        try:
            if failure is None:
                try:
                    self._bring_current()
                    waiting.clear()
                except (RemoteError, WorkerLostError, ControlError) as error:
                    failure = error  # all tasks have ended, also those that have brought some home
                    waiting = [held for held in waiting if not held.is_home]
            while waiting:
                if not self._bring_newest(waiting[-1], failed):
                    self._note_lost(waiting[-1].span, waiting[-1].maker)
                waiting.pop()
        finally:  # a signal may have come
            for held in waiting:
                self._note_lost(held.span, held.maker)
            for span in dict.fromkeys(self.owed) if failure is not None else ():
                self._note_lost(span)
            self.owed.clear()
            self.forget()
        if failure is not None:
            for lost in self.lost[known:]:
                tell(failure, f"  {lost.text}: {self._remedy}")
        return failure

    @property
    def _remedy(self) -> str:
        """What messages say that the program can do about a lost tensor."""
        again = (
            "; with Worker(retries=…) the tasks that made it run again when its endpoint is lost"
        )
        return (
            "write it before it is read, in the program or by a task that has it as OUTPUT_EXISTING; or, "
            "if what it has is right, call Worker.renew(array)"
            f"{'' if self._life.options.retries else again}"
        )

    def _note_lost(self, span: tuple[int, int], maker: int = HOME) -> None:
        """Note that a tensor is lost, of which `maker` alone had the newest version.

        A child Worker's parent may use the memory for something else.
        """
        if not self._life.parent_level:
            manager = self._life.live().manager
            where = "an endpoint" if maker == HOME else f"endpoint {maker}"
            if manager is not None and maker in manager.dead:
                where += ", which was lost"
            text = f"the newest version of {_name(*span)} was only at {where}"
            self.lost.append(LostTensor(*span, text, _digest(*span)))
        log.warning("%s is lost: its newest version was only at an endpoint", _name(*span))

    def _forget_own(self) -> None:
        """Forget tensors in memory of rings: nobody can use them after the run."""
        heap = self._life.live().engine.heap
        start, end = address_of(heap), address_of(heap) + heap.nbytes
        for held in self.directory.overlapping(start, heap.nbytes):
            self.directory.forget(held)
        self.owed = [one for one in self.owed if not start <= one[0] < end]

    def _bring_newest(self, held: Held, failed: Collection[int]) -> bool:
        """Bring home the newest version that was made; return False if it is lost.

        What was written here after an endpoint stays, if that had come home for it. If nothing had to
        come home for it, nobody knows whether it was written.
        """
        manager = self._life.live().manager
        is_blind = False
        for made in reversed(held.makers):
            if made.maker == HOME:
                is_blind = is_blind or made.is_blind
                continue
            found = Brought.NEVER_MADE if made.task in failed else Brought.IS_LOST
            if manager is not None and made.maker not in manager.dead:
                one = Homing(held.key, made.first, made.last, *held.span)
                with suppress(WorkerLostError, ControlError):
                    found = Brought(self._bring(made.maker, [one])[0])
            if found == Brought.IS_HOME:
                return not is_blind
            if found == Brought.IS_LOST:
                return False
        return True

    def require_not_lost(self, uses: Sequence[Use]) -> None:
        """Refuse to read a tensor that was lost, unless the program has written it since."""
        for use in uses if self.lost else ():
            for lost in self.lost[:]:
                if not lost.overlaps(*use.span):
                    continue
                if use.reads and _digest(lost.start, lost.nbytes) == lost.digest:
                    raise RemoteError(f"tensor {use.index} is lost: {lost.text}; {self._remedy}")
                self.lost.remove(lost)

    def forget_lost(self, address: int, nbytes: int) -> None:
        """Forget what was lost in memory that is given out anew."""
        self.lost = [lost for lost in self.lost if not lost.overlaps(address, nbytes)]


# ---------------------------------------------------------------- tasks that run again
class Logged(NamedTuple):
    """A task, as it is submitted again."""

    number: int
    places: Sequence[int]
    handle: CallableHandle
    members: Sequence[TaskArgs]
    submit: Submit


class Recovery:
    """The tasks since all tensors were last at home, which may run again `retries` times together.

    All of it happens on the thread that submits; after a loss, while no task runs. Without retries it
    keeps nothing.
    """

    _orch: Any
    """The `PlacingOrchestrator` of the run."""

    def __init__(self, endpoints: Any, retries: int) -> None:
        self._endpoints, self.retries = endpoints, retries
        self._losses = 0
        """Those that were made good."""
        self.clear()

    def begin_run(self, orch: Any) -> None:
        self._orch, self._losses = orch, self._endpoints.losses()
        self.clear()

    def clear(self) -> None:
        """Begin anew: all has ended well, and is at home."""
        self.tasks: list[Logged] = []
        self.moves: dict[int, int] = {}
        """Tasks that bring a tensor home, and from which endpoint."""
        self._again = 0
        """How often they have run again."""
        self.unclear = ""
        """Why they cannot."""
        self._saved: dict[tuple[int, int], bytes] = {}
        """What there was before a task of this machine, or a tensor that came home, replaced it."""
        self._ring = -1
        """The deepest of the rings whose memory they use; those of deeper scopes have deeper ones."""

    # ------------------------------------------------------------ memory
    def save(self, uses: Iterable[Use]) -> None:
        """Keep what a task of this machine will replace."""
        for use in uses:
            if use.writes and use.start:
                self.save_bytes(*use.span)

    def save_bytes(self, start: int, nbytes: int) -> None:
        """Keep what memory has before something of this run is written there."""
        if self.retries and nbytes and (start, nbytes) not in self._saved:
            self._saved[start, nbytes] = string_at(start, nbytes)

    def restore(self) -> None:
        """Put back what memory had; of bytes that were saved twice, what was first."""
        for (start, nbytes), raw in reversed(self._saved.items()):
            memmove(start, raw, nbytes)

    def end_scope(self, depth: int) -> None:
        """Note that the scope of a depth ends: its memory may become another tensor's."""
        if self._ring >= min(depth, self._orch._view.ring_count) - 1:
            self.unclear = "they use memory of a scope that has ended: drain() before its end"

    # ------------------------------------------------------------ what is submitted
    def note_task(
        self,
        number: int,
        members: Sequence[TaskArgs],
        where: Sequence[int],
        uses: Sequence[Sequence[Use]],
        submit: Submit,
    ) -> None:
        if not self.retries:
            return
        remote = [wire for one in members for wire in one._tensors if isinstance(wire, RemoteWire)]
        if not all(wire.is_inline for wire in remote):
            self.unclear = (
                f"task {number} uses memory of an endpoint, which cannot be computed again"
            )
        orch = self._orch
        heap = orch._engine.heap
        for start in [use.start - address_of(heap) for its in uses for use in its]:
            if 0 <= start < heap.nbytes:
                self._ring = max(self._ring, start // orch._view.ring_bytes)
        copies = [_copy(one) for one in members]
        self.tasks.append(Logged(number, tuple(where), orch._handle, copies, submit))

    # ------------------------------------------------------------ after a loss
    def settle(self) -> None:
        """Wait for all tasks, and have all tensors come home."""
        orch = self._orch
        while True:
            orch._until_idle()
            try:
                if orch._view.has_failed:
                    raise orch._task_error()
                self._endpoints.tensors.bring_home()
                return
            except (TaskError, RemoteError, ControlError) as failure:
                self.make_good(failure)

    def make_good(self, failure: BaseException) -> None:
        """Have tasks run again after the loss of an endpoint; raise the failure if that is impossible."""
        if not self.retries:
            raise failure
        orch, endpoints = self._orch, self._endpoints
        orch._until_idle()
        outcomes: dict[int, bool] | None = orch._view.failed_tasks()
        if why := self._why_not(outcomes):
            if endpoints.lost() or endpoints.losses() > self._losses:
                tell(failure, f"  the run cannot go on after the loss of an endpoint: {why}")
            raise failure
        self.restore()
        tasks, again = self.tasks, self._again + 1
        made = [task for task in tasks if task.number not in (outcomes or ())]
        uses = [use for task in made for one in task.members for use in uses_of(one._tensors)]
        endpoints.tensors.owed += [use.span for use in uses if use.writes and use.nbytes]
        endpoints.tensors.forget()
        self._again = again
        orch._engine.kernels.forgive_all(orch._mem)
        orch._error = None
        endpoints.replace_lost()
        self._losses = endpoints.losses()
        log.warning("an endpoint was lost: %d tasks run again", len(tasks))
        for task in tasks:
            self._submit_again(task)

    def _why_not(self, outcomes: dict[int, bool] | None) -> str:
        """Return why the tasks cannot run again, of which some have failed: see `View.failed_tasks`."""
        endpoints = self._endpoints
        places = {number: [place] for number, place in self.moves.items()}
        places |= {task.number: list(task.places) for task in self.tasks}
        if outcomes is None or not outcomes.keys() <= places.keys():
            return "a task has failed that is not known any more"
        dead = endpoints.lost()
        began = [places[number] for number, has_begun in outcomes.items() if has_begun]
        others = [one for one in began if not {*one} & {*dead}]
        if len(others) > endpoints.losses() - self._losses or [HOME] in [one[:1] for one in others]:
            return "a task has failed by itself"
        dead = dead or endpoints.lost(wait_for_one=True)
        if not dead:
            return "no endpoint is"
        for worker in dead:
            if not endpoints.has_all([worker]):
                return f"worker {worker} of this machine is lost, too"
        if self._again >= self.retries and not self.unclear:
            return f"its tasks have run {self._again + 1} times"
        return self.unclear

    def _submit_again(self, task: Logged) -> None:
        """Submit a task again, at an endpoint that there is now."""
        members = [_copy(args) for args in task.members]
        orch = self._orch
        orch._give_numbers([args._tensors for args in members])
        orch._handle = task.handle
        where = self.present(task.handle, task.places, members)
        if where is not None:
            orch._place_and_submit(members, where, task.submit)

    def present(
        self, handle: CallableHandle, places: Sequence[int], members: Sequence[TaskArgs]
    ) -> list[int] | None:
        """Return where a task runs: where it was to, or elsewhere if that endpoint is lost for good.

        None: it was a replay, whose tasks are submitted one by one now.
        """
        if places[0] == HOME:
            return list(places)
        endpoints = self._endpoints
        alive = {*endpoints.present(handle)}.difference(endpoints.lost()) or {*places}
        named = [one if one in alive else -1 for one in places]
        if len(alive) >= len(places):
            return list(endpoints.choose(handle, members, named, alive))
        if one_by_one := self._orch.one_by_one:
            self._orch.one_by_one = None
            one_by_one()
            return None
        raise RuntimeError(f"too few endpoints are left for a group of {handle!r}")


def _copy(args: TaskArgs) -> TaskArgs:
    """Return arguments for memory that is there: those who have it as INOUT hold it."""
    made = TaskArgs()
    made._scalars = list(args._scalars)
    made._tensors = [
        replaced(wire, TAG_AT, bytes((L.INOUT,))) if wire[TAG_AT] == L.OUTPUT else wire
        for wire in args._tensors
    ]
    return made
