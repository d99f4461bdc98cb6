"""``python -m tests.preemption.program SEED SECONDS``: random runs until the time is up, then close.

On stdout it says which threads and processes it has, again when they change; the harness gets in their
way (`rounds.py`). It ends when stdin does.
"""

from __future__ import annotations

import faulthandler
import json
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

import simpler_ref.orch.orchestrator
import simpler_ref.workers.manager
import simpler_ref.workers.processes
import simpler_ref.workers.session
from simpler_ref import Worker
from simpler_ref.jit import layout as L

from .acts import Caller, Stage, Wrong
from .permission import allow_tracing
from .shapes import MAIN, MONITOR, RINGS, SCHEDULER, SERVER, WORKER, Shape, shape_of

NEVER_NS = 1 << 60


def sleep_for_ever() -> None:
    """Take away the time limit of the Orch thread's sleep: a wake-up that is lost shall be a hang."""
    for module in (
        simpler_ref.orch.orchestrator,
        simpler_ref.workers.session,
        simpler_ref.workers.manager,
        simpler_ref.workers.processes,
    ):
        module.PARK_NS = NEVER_NS  # type: ignore[attr-defined]


def make_worker(shape: Shape) -> Worker:
    worker = Worker(
        4 if shape.next_level else 3,
        num_sub_workers=shape.subs,
        mailbox_depth=shape.depth,
        task_window=shape.window,
        ring_depth=RINGS,
        heap_ring_size=shape.heap,
        child_mode=shape.mode,
        spin_us=shape.spin_us,
        alloc_timeout_s=1e6,
        start_timeout_s=1e6,
        py_control_timeout_s=1e6,
    )
    for _ in range(shape.next_level):
        worker.add_next_level(Caller())
    return worker


# ---------------------------------------------------------------- what the harness is told
def say(word: str, what: object) -> None:
    os.write(1, f"{word} {json.dumps(what)}\n".encode())


def parties(worker: Worker) -> dict[str, list[int]]:
    """Return the threads of each party, as the system numbers them."""
    found: dict[str, list[int]] = {MAIN: [os.getpid()], WORKER: worker.worker_pids()}
    for thread in threading.enumerate():
        who = thread.name.removeprefix("simpler-")
        if "worker" in who:
            who = WORKER
        if who in (SCHEDULER, MONITOR, WORKER) and thread.native_id is not None:
            found.setdefault(who, []).append(thread.native_id)
    for pid in worker.worker_pids():
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:  # it has ended
            continue
        found[SERVER] = [int(stat.rpartition(")")[2].split()[1])]
    return found


def end_with_the_harness() -> None:
    while os.read(0, 4096):
        pass
    os._exit(99)


# ---------------------------------------------------------------- the program
def main(seed: int, seconds: float) -> int:
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    allow_tracing()
    os.register_at_fork(after_in_child=allow_tracing)  # it is no property that a child inherits
    sleep_for_ever()
    shape = shape_of(seed)
    rng = random.Random(seed)
    with make_worker(shape) as worker:
        stage = Stage(worker, shape)
        stage.prepare()
        worker._session.engine.mem[L.PARK_NS] = NEVER_NS
        threading.Thread(target=end_with_the_harness, daemon=True).start()
        known = parties(worker)
        say("parties", known)
        until = time.monotonic() + seconds
        acts = 0
        while time.monotonic() < until:
            if shape.kills and parties(worker) != known:
                known = parties(worker)
                say("parties", known)
            act = rng.choice(shape.acts)
            try:
                stage.play(act, rng)
            except Wrong as wrong:
                say("wrong", f"act {acts}: {wrong}")
                os.write(2, f"{worker.top()}\n".encode())
                return 1
            acts += 1
        say("closing", acts)
    say("done", {"acts": acts, "tasks": stage.tasks, "lost": stage.lost})
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2])))
