"""Everybody who has to do with a mailbox, as steps, taken in every order that is possible.

The steps are the kernels themselves. What Python code sees to (a request waits for no other, a worker
that died is replaced between two runs, …) is said here, once more, by `steps`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from simpler_ref.jit import layout as L
from simpler_ref.task_interface import MailboxState

from .support import Driver

NONE, CLAIMED, ASKED, SILENT = "none", "has the mailbox", "has asked", "was given no answer"
NEW, UP, AT_TASK, AT_REQUEST, GONE, DEAD = "new", "up", "at a task", "at a request", "gone", "dead"


class MailboxModel:
    """One worker, and all who change the state of its mailboxes. No step waits for anything."""

    def __init__(self, depth: int):
        self.driver = Driver(sub=1, window=4, usable=False, depth=depth)
        self.driver.close_scope()  # so that a task that is done can be reclaimed
        mem = self.mem = self.driver.mem
        mem[L.SPIN_NS] = 0
        self._worker = self.driver._worker(0)
        self._frames = [self._worker + i * L.WORKER_WORDS for i in range(depth)]
        self._words = live_words(self.driver)
        self.actors = {
            "worker": NEW,
            "admitted": False,
            "requester": NONE,
            "stop": False,
            "died": False,
        }

    # ------------------------------------------------------------ going back to where one was
    def save(self) -> Any:
        return self.mem[self._words], dict(self.actors)

    def restore(self, saved: Any) -> None:
        words, actors = saved
        self.mem[self._words] = words
        self.actors = dict(actors)

    def key(self) -> tuple:
        """Return what tells two situations apart."""
        mem, w = self.mem, self._worker
        words = (L.W_GIVEN, L.W_AT, L.W_TAIL, L.W_COLLECTED, L.W_USABLE, L.W_CLAIM, L.W_DEATH)
        waiting = len(self.driver.ready_queue(L.SUB))
        waiting_to_be_wired = mem[L.WIRING_PUSHED] - mem[L.WIRING_TAKEN]
        seen = mem[L.DEATHS] == mem[L.DEATHS_SEEN], mem[L.RUN_ERROR] != 0
        return (
            *self.states(),
            *self.actors.values(),
            *(int(mem[w + word]) for word in words),
            *(int(mem[L.LIVE]), int(waiting), int(waiting_to_be_wired), *map(bool, seen)),
        )

    def states(self) -> list[MailboxState]:
        """Return the state of each frame's mailbox."""
        words = [int(self.mem[frame + L.W_MAILBOX + L.MAIL_STATE]) for frame in self._frames]
        return [MailboxState(word & 0xFFFFFFFF) for word in words]

    # ------------------------------------------------------------ what can happen next
    def steps(self) -> Iterator[tuple[str, Callable[[], Any]]]:
        """Yield the party and the step of all that can happen now."""
        mem, k, x, actors = self.mem, self.driver.k, self.driver.x, self.actors
        worker, requester = actors["worker"], actors["requester"]
        tail = int(mem[self._worker + L.W_TAIL]) // L.WORKER_WORDS
        answered = self.states()[tail] == MailboxState.CONTROL_DONE

        if mem[L.LIVE] < 2 and not mem[L.RUN_ERROR]:
            yield "Orch", self.driver.submit
        yield "Scheduler", lambda: x.scheduler_pass(mem)
        if mem[L.CONSUMED_HEAD] != L.NONE:
            yield "Orch", self.driver.reclaim
        if worker not in (NEW, DEAD) and not actors["admitted"] and requester != SILENT:
            yield "Scheduler", lambda: (k.set_usable(mem, 0, 1), self._now(admitted=True))

        if worker == NEW:
            yield "worker", lambda: (k.report_ready(mem, 0), self._now(worker=UP))
        elif worker == UP:
            yield "worker", self._receive
        elif worker == AT_TASK:
            yield "worker", lambda: (x.post_done(mem, 0, L.SUCCESS), self._now(worker=UP))
        elif worker == AT_REQUEST:
            yield "worker", lambda: (x.post(mem, 0, L.CONTROL_DONE, 0), self._now(worker=UP))

        if requester == NONE and worker not in (NEW, DEAD) and not actors["stop"]:
            yield "Scheduler", self._claim
        elif requester == CLAIMED:
            yield "requester", lambda: (k.request_control(mem, 0, 0), self._now(requester=ASKED))
            yield "Scheduler", self._give_back
        elif requester == ASKED and (answered or worker == DEAD):
            yield "Scheduler", self._give_back
        elif requester == ASKED:
            yield "Scheduler", lambda: (k.abandon_mailbox(mem, 0), self._now(requester=SILENT))
        elif requester == SILENT and answered:
            yield "Scheduler", self._welcome_back

        if not actors["stop"] and requester in (NONE, SILENT):
            yield "closer", lambda: (k.request_stop(mem, 0), self._now(stop=True))
        if worker not in (GONE, DEAD) and not actors["stop"] and not actors["died"]:
            yield "monitor", lambda: (self.driver.kill(0), self._now(worker=DEAD, died=True))
        if worker == DEAD and requester in (NONE, SILENT) and mem[L.LIVE] == 0:
            yield "Scheduler", self._replace

    def _now(self, **actors: Any) -> None:
        self.actors |= actors

    def _receive(self) -> None:
        answer = self.driver.x.receive(self.mem, 0)
        found = {L.STOP: GONE, L.CONTROL: AT_REQUEST, L.RESOLVE: AT_TASK}
        self._now(worker=found.get(answer, UP))

    def _claim(self) -> None:
        if self.driver.k.claim_mailbox(self.mem, 0, 0) == L.OK:
            self._now(requester=CLAIMED)

    def _give_back(self) -> None:
        self.driver.k.release_mailbox(self.mem, 0)
        self._now(requester=NONE)

    def _welcome_back(self) -> None:
        self._give_back()
        self.driver.k.set_usable(self.mem, 0, 1)

    def _replace(self) -> None:
        self.driver.k.set_usable(self.mem, 0, 0)
        self.driver.begin_run()
        self.driver.close_scope()
        self._now(worker=NEW, admitted=False, requester=NONE)


def live_words(driver: Driver) -> np.ndarray:
    """Return the offsets of the words that change while an engine serves a few tasks without tensors.

    Left out is what no kernel acts on: what stands in a mailbox behind its state, and when a task began.
    """
    mem, few = driver.mem, 32
    ahead = [L.CANDIDATES + kind * L.CANDIDATES_CAPACITY for kind in range(2)]
    parts = [
        (L.RING_BLOCK, L.SCOPE_STACK + few),
        (L.SCHED, L.CANDIDATES),
        (L.ERROR_STATE, L.ERROR_NEEDING + L.STORY_WORDS),
        (L.PASS_LOCK, L.HEADER_WORDS),
    ]
    parts += [(first, first + few) for first in ahead]
    for frame in range(int(mem[L.WORKERS] * mem[L.DEPTH])):
        first = int(mem[L.A_WORKERS]) + frame * L.WORKER_WORDS
        parts.append((first, first + L.W_SINCE))
        parts.append((first + L.W_SINCE + 1, first + L.W_CACHE))
        parts.append((first + L.W_SLOT, first + L.W_MAILBOX + L.MAIL_COMMAND + 1))
    fifos = range(L.A_FIFO, L.A_FIFO + int(mem[L.RINGS]))
    for queue in (L.A_WIRING, *fifos):
        parts.append((int(mem[queue]), int(mem[queue]) + few))
    sizes = {L.A_SLOTS: int(mem[L.WINDOW]) * L.SLOT_WORDS, L.A_SPILL: 4 * L.SPILL_SMALLEST}
    parts += [(int(mem[area]), int(mem[area]) + size) for area, size in sizes.items()]
    return np.concatenate([np.arange(*part) for part in parts])


def explore(depth: int) -> set[tuple[str, MailboxState, MailboxState]]:
    """Take every step in every situation; return who made which step of a mailbox's state."""
    model, found = MailboxModel(depth), set()
    known, todo = {model.key()}, deque([model.save()])
    while todo:
        situation = todo.popleft()
        model.restore(situation)
        before = model.states()
        for party, step in list(model.steps()):
            model.restore(situation)
            step()
            pairs = zip(before, model.states(), strict=True)
            found.update((party, old, new) for old, new in pairs if old != new)
            if (key := model.key()) not in known:
                known.add(key)
                todo.append(model.save())
    model.driver.close()
    return found
