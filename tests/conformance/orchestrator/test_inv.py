"""ORCH-INV: invariants."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from simpler_ref import Worker, WorkerLostError
from simpler_ref.jit import layout as L
from simpler_ref.task_interface import TensorArgType as T
from simpler_ref.workers.kinds import SubWorker
from simpler_ref.workers.loop import serve_mailbox
from tests.conformance.orchestrator.test_misuse import ORCH_CALLS
from tests.support import (
    DEADLINE_S,
    Arg,
    Driver,
    Gate,
    auto,
    key,
    make_args,
    no_passes,
    reads,
    updates,
    wait_until,
    writes,
)
from tests.system.programs import Fork


@pytest.mark.spec("ORCH-INV-1")
@pytest.mark.parametrize("name", ORCH_CALLS)
def test_a_call_on_orch_from_another_thread_raises_and_changes_nothing(w, name):
    handle = w.register(lambda: None)

    def orch_fn(orch, args, config):
        orch.scope_begin()
        with ThreadPoolExecutor(1) as other:
            refusal = other.submit(ORCH_CALLS[name], orch, handle).exception(DEADLINE_S)
        assert isinstance(refusal, RuntimeError)
        assert "belongs to the thread that called Worker.run" in str(refusal)
        assert orch.live_tasks() == orch.ring.next_task_id() == 0
        orch.scope_end()
        with pytest.raises(RuntimeError, match="scope_end without scope_begin"):
            orch.scope_end()

    assert w.run(orch_fn).tasks == 0


@pytest.mark.spec("ORCH-INV-2")
@pytest.mark.kernels
def test_submits_that_differ_in_tags_alone_store_the_same_bytes():
    stored = []
    for tag in (T.OUTPUT, T.OUTPUT_EXISTING):  # the same edges, the same entries
        driver = Driver()
        driver.submit(writes(4096))
        driver.submit(Arg(tag, 4096), reads(4096), Arg(tag, 8192), scalars=[1, 2])
        driver.submit(reads(4096), reads(8192))
        stored.append(driver.words()[int(driver.mem[L.A_WIRING]) :])
    assert (stored[0] == stored[1]).all()


@pytest.mark.spec("ORCH-INV-3")
def test_a_worker_process_sees_zeros_where_the_parent_keeps_its_slots():
    with Worker(3, num_sub_workers=1, task_window=64, values_size=1) as w:
        mem = w._session.engine.mem
        private = slice(int(mem[L.PRIVATE]), len(mem))
        seen = w.share(np.full(2, -1))

        def look():
            if seen[0] < 0:
                seen[0] = np.count_nonzero(mem[private])
                seen[1] = np.count_nonzero(mem[: L.HEADER_WORDS])
                mem[private] = 7  # and cannot change what the parent keeps there

        suicide = w.register(lambda: os.kill(os.getpid(), signal.SIGKILL))
        handle = w.register(look)

        def orch_fn(orch, handle, config):
            for i in range(10):
                orch.submit_sub(handle, make_args((key(64 * i + 64), T.INOUT)))
            assert np.count_nonzero(mem[private]) > 0

        with pytest.raises(WorkerLostError):
            w.run(orch_fn, suicide)
        assert np.count_nonzero(mem[private]) > 0  # when the next worker is forked
        assert (w.run(orch_fn, handle).tasks, seen[0]) == (10, 0)
        assert seen[1] > 0


@pytest.mark.spec("ORCH-INV-3")
@pytest.mark.parametrize("fails, sleepers", [(0, []), (1, [L.PARK_ORCH]), (0, [L.PARK_SCHED])])
def test_a_worker_process_writes_its_own_words_and_wakes_and_nothing_else(driver, fails, sleepers):
    """Every shared word, before and after a task, with nobody else at work."""
    mem, me = driver.mem, 1
    with Gate() as started, Gate() as go:

        def leaf(args):
            started.open(1)
            go.wait()
            if fails:
                raise ValueError("no" * 200)

        def serve():
            known = {driver.digest(0): leaf}
            serve_mailbox(driver.engine, me, SubWorker(), known, in_thread=False)

        with Fork(serve) as worker:
            assert driver.k.wait_ready(mem, me, int(DEADLINE_S * 1e9)) == L.OK
            driver.k.set_usable(mem, 0, 0)  # only the real one takes tasks
            driver.start(updates(4096), auto(8), scalars=[1])
            started.wait()
            mem[sleepers] = L.ACTIVE
            shared = mem[: int(mem[L.PRIVATE])]
            before = shared.copy()
            go.open()
            base = int(mem[L.A_WORKERS]) + me * L.WORKER_WORDS
            wait_until(lambda: driver.mailbox_state(me)[0] == L.TASK_DONE)
            wait_until(lambda: mem[base + L.W_PARKED] == 1)
            changed = set(np.flatnonzero(shared != before).tolist())
            driver.k.request_stop(mem, me)
            assert worker.wait() == 0
        box = base + L.W_MAILBOX
        own = {base + L.W_PARKED, base + L.W_CORE, base + L.W_BACK_OFF, box + L.MAIL_STATE}
        own.add(base + L.W_SINCE)
        own |= set(range(base + L.W_CACHE, base + L.W_SLOT))
        if fails:
            own |= set(range(box + L.MAIL_ERROR_MSG, box + L.MAILBOX_WORDS))
            own |= set(range(base + L.W_TRACE, base + L.WORKER_WORDS))
        own |= set(sleepers)
        assert box + L.MAIL_STATE in changed
        assert changed <= own, sorted(changed - own)


@pytest.mark.spec("ORCH-INV-4")
def test_a_submit_returns_whatever_workers_and_scheduler_are_doing():
    """The pass is taken, no worker answers, nothing is wired: only room could make a submit wait."""
    many = 1000
    with Gate() as started, Gate() as go, Worker(3, num_sub_workers=1, alloc_timeout_s=0) as w:

        @w.register
        def leaf(args):
            started.open(1)
            go.wait()

        def orch_fn(orch, args, config):
            orch.submit_sub(leaf, make_args((key(4096), T.OUTPUT)))
            started.wait()
            with no_passes(orch._mem):
                for _ in range(many):
                    orch.submit_sub(leaf, make_args((key(4096), T.INOUT)))
                with orch.scope():
                    orch.alloc(100, "uint8")
            go.open()
            raise InterruptedError  # the tasks need not run

        with pytest.raises(InterruptedError):
            w.run(orch_fn)
