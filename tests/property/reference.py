"""The reference model with what no trace has: frames, workers that sleep, threads that want a mailbox."""

from __future__ import annotations

import struct

from simpler_ref.check.model import Forbidden, Model


class Reference(Model):
    """The model of an engine whose workers have `depth` frames each, and may sleep or be claimed.

    What a task is submitted with is kept, so that the frames in which it is sent can be compared.
    """

    def __init__(self, *, depth, **size):
        self.depth = depth
        super().__init__(**size)
        self.parked = [False] * len(self.kinds)
        self.mail = ["IDLE"] * len(self.kinds)  # what a mailbox that no task uses says, or CONTROL
        self.claims = [None] * len(self.kinds)  # WAITS or GRANTED: a thread wants the mailbox
        self.uncollected = set()  # idle, and the mailbox has still to say so

    # ------------------------------------------------------------ counts
    def begin_run(self):
        super().begin_run()
        self.edges = self.completed = self.failed = 0
        self.held = [False, False]  # per kind: its head waits a moment for a worker that is awake
        self.stuck = [False, False]  # per kind: its head is a group that waits for its workers
        self.deferred = False

    def become(self, task, state, rule):
        super().become(task, state, rule)
        self.completed += state == "COMPLETED" and task.callable >= 0
        self.failed += state == "FAILED"

    def refuse_or_claim(self, nbytes, name=""):
        task, address = super().refuse_or_claim(nbytes, name)
        task.callable = task.config = -1
        return task, address

    def submit(self, members, group, callable_index, kind, config):
        task = super().submit(members, group, kind)
        task.callable, task.config = callable_index, config
        self.edges += len(task.producers) + len(task.after)
        return task

    @staticmethod
    def frame(assignment, digest):
        """Return the bytes of a frame from the digest on."""
        member = assignment.task.members[assignment.part or 0]
        raw = digest + struct.pack("<ii", len(member.tensors), len(member.scalars))
        for data, nbytes, child in member.tensors:
            raw += struct.pack("<Q5IIBB6x", data, nbytes, 0, 0, 0, 0, 1, 5, child)
        return raw + b"".join(struct.pack("<Q", scalar) for scalar in member.scalars)

    # ------------------------------------------------------------ frames, and workers that sleep
    def is_idle(self, worker):
        return self.has_room(worker) and not self.assignments[worker]

    def has_room(self, worker):
        free = len(self.assignments[worker]) < self.depth and self.claims[worker] is None
        return self.usable[worker] and free

    def candidates(self, kind):
        idle = super().candidates(kind)
        awake = [w for w in idle if not self.parked[w]]
        if awake:
            return awake
        if idle and any(self.assignments) and not self.held[kind]:
            self.deferred = True  # the time to wait is 0 here: the next look ends it
            return []
        busy = [w for w in self.pool(kind) if self.has_room(w) and self.assignments[w]]
        fewest = min((len(self.assignments[w]) for w in busy), default=0)
        return idle or [w for w in busy if len(self.assignments[w]) == fewest]

    def dispatch_ready(self, kind, choices):
        self.deferred = False
        super().dispatch_ready(kind, choices)
        queue = self.ready[kind]
        self.held[kind] = self.deferred
        self.stuck[kind] = bool(queue) and queue[0].group

    def start(self, task, places):
        super().start(task, places)
        self.uncollected.difference_update(places)
        if not task.group and task.only < 0:
            self.held[task.kind] = False

    def places(self, group, choices):
        chosen = super().places(group, choices)
        free = [w for w in chosen if group.members[chosen[w]].worker == -1]
        idle = [w for w in self.pool(group.kind) if self.is_idle(w) and w not in chosen]
        awake = [w for w in idle if not self.parked[w]]
        if awake and any(self.parked[w] for w in free):
            raise Forbidden("SPEED-DEPTH-2", f"{group} is on {free} although {awake} are awake")
        return chosen

    def cancel(self):
        super().cancel()
        for assignments in self.assignments:
            for assignment in assignments[1:]:
                assignment.skip = True

    def one_pass(self, choices):
        self.handle_deaths()
        while self.wiring:
            self.batch(self.wire_one)
        for kind in (0, 1):
            self.dispatch(kind, choices)
        self.set_idle()
        self.collect()

    def would_move(self):
        """Say whether a pass would change anything, but for the clock of a task that is held back."""
        return bool(self.uncollected) or super().would_move()

    def revive(self, worker):
        """A dead worker has a successor."""
        self.usable[worker], self.mail[worker] = True, "IDLE"
        self.parked[worker] = False

    # ------------------------------------------------------------ mailboxes, and threads that want one
    def set_idle(self):
        for worker in self.uncollected:
            self.mail[worker] = "IDLE"
        self.uncollected = set()

    def vacate(self, worker):
        """Take the oldest task off a worker; without any, its mailbox goes to whoever wants it."""
        mail = self.assignments[worker][0].mail
        super().vacate(worker)
        if self.assignments[worker]:
            return
        self.mail[worker] = mail
        if self.usable[worker] and self.claims[worker] == "WAITS":
            self.grant(worker)
        elif self.usable[worker]:
            self.uncollected.add(worker)

    def handle_deaths(self):
        dead = self.dead
        super().handle_deaths()
        for worker in dead:
            if self.claims[worker] == "WAITS":
                self.claims[worker] = "REFUSED"

    def claim(self, worker):
        """Ask for a worker's mailbox; it is given now, or when the worker's task is collected."""
        self.claims[worker] = "WAITS"
        self.uncollected.discard(worker)
        if not self.assignments[worker]:
            self.grant(worker)

    def grant(self, worker):
        self.claims[worker] = "GRANTED"
        self.mail[worker] = "IDLE"

    def give_back(self, worker):
        self.claims[worker] = None
