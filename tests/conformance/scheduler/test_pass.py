"""SCHED-PASS: one pass, and who runs it."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext

import numpy as np
import pytest

from simpler_ref import Worker
from simpler_ref.jit import layout as L
from simpler_ref.task_interface import TensorArgType as T
from tests.docs import test_ownership as ownership
from tests.docs.accesses import Sources
from tests.kernels import kernels
from tests.support import COMPLETED, PENDING, READY, RUNNING, Gate, make_args, no_passes


@pytest.mark.spec("SCHED-PASS-1")
def test_a_pass_wires_then_dispatches_then_collects(driver):
    first = driver.submit()
    assert driver.state(first) == PENDING
    driver.run_pass()
    assert driver.state(first) == RUNNING, "wired and dispatched in the same pass"
    busy = driver.start()
    driver.post_done(driver.worker_of(first))
    late = driver.start()
    assert driver.states(first, busy) == [COMPLETED, RUNNING]
    assert driver.state(late) == READY, "its worker became idle after the pass had dispatched"
    driver.run_pass()
    assert driver.state(late) == RUNNING


@pytest.mark.spec("SCHED-PASS-2")
def test_a_thread_that_finds_the_pass_taken_changes_nothing(driver):
    driver.finish(driver.submit())
    driver.post_done(driver.worker_of(driver.start()))
    driver.submit()  # there is something to wire, to dispatch, and to collect
    assert driver.x.try_lock(driver.mem)
    before = driver.words()
    assert not driver.x.try_lock(driver.mem)
    assert driver.x.orch_pass(driver.mem) == -1
    assert set(driver.changed_since(before)) <= {L.ORCH_PASSES}, "but that it was there"
    driver.x.unlock(driver.mem)
    assert driver.x.orch_pass(driver.mem) > 0


@contextmanager
def two_threads_run_passes(mem):
    stop = threading.Event()

    def run_passes():
        while not stop.is_set():
            if kernels.try_lock(mem):
                kernels.scheduler_pass(mem)
                kernels.unlock(mem)

    with ThreadPoolExecutor(2) as threads:
        done = [threads.submit(run_passes) for _ in range(2)]
        try:
            yield
        finally:
            stop.set()
    assert [one.result() for one in done] == [None, None]


@pytest.mark.spec("SCHED-PASS-3")
@pytest.mark.parametrize("who", ["the Scheduler thread", "the calling thread", "many threads"])
def test_a_graph_ends_the_same_whichever_threads_run_the_passes(who):
    rng = random.Random(who)
    tasks = [(*rng.sample(range(5), 2), scalar) for scalar in range(40)]
    expected = np.arange(5, dtype=np.uint64).reshape(5, 1)
    with Worker(3, num_sub_workers=2) as w, Gate() as gate:

        @w.register
        def mix(args):
            x, y = (args.tensor(i).numpy() for i in range(2))
            y *= 2
            y += x + args.scalar(0)

        last = w.register(lambda: gate.open(1))
        views = [w.share(row) for row in expected]
        for x, y, scalar in tasks:
            expected[y] = 2 * expected[y] + expected[x] + scalar

        def orch_fn(orch, *_):
            by_submit = who != "the Scheduler thread"
            with nullcontext() if by_submit else no_passes(orch._mem):
                for x, y, scalar in tasks:  # INOUT on both: nobody overwrites what is still read
                    tensors = [(views[x], T.INOUT), (views[y], T.INOUT)]
                    orch.submit_sub(mix, make_args(*tensors, scalars=[scalar]))
                orch.submit_sub(last, make_args(*[(view, T.INPUT) for view in views]))
            if who != "the calling thread":
                gate.wait()
                assert np.array_equal(views, expected)

        w.start()
        if who == "the calling thread":
            w._session.scheduler.stop()
        many = who == "many threads"
        with two_threads_run_passes(w._session.engine.mem) if many else nullcontext():
            w.run(orch_fn)
        assert np.array_equal(views, expected)


@pytest.mark.spec("SCHED-PASS-4")
@pytest.mark.parametrize("seed", range(5))
def test_whatever_bytes_a_slot_holds_reach_the_mailbox_unchanged(driver, seed):
    rng = random.Random(seed)
    tensors, scalars = rng.choice([0, 1, 7, 128]), rng.choice([0, 1, 5, 128])
    wires = [rng.randbytes(34) + bytes([T.NO_DEP]) + rng.randbytes(5) for _ in range(tensors)]
    bits = [rng.randbytes(8) for _ in range(scalars)]
    kinds = [rng.choice((L.RAW, L.SIGNED, L.UNSIGNED, L.FLOAT64, L.FLOAT32)) for _ in bits]
    scalar_wires = [one + kind.to_bytes(8, "little") for one, kind in zip(bits, kinds, strict=True)]
    wire = b"".join(wires + scalar_wires)
    slot = driver.x.submit_task(driver.mem, L.SUB << 32, tensors | scalars << 32, 0, wire)
    stored = np.array(driver.argument_words(slot), np.int64).tobytes()
    for i in range(tensors):
        assert stored[40 * i : 40 * i + 34] == wire[40 * i : 40 * i + 34]
    assert stored[40 * tensors :] == b"".join(bits)
    driver.run_pass()
    box = driver.mailbox(driver.worker_of(slot))
    assert box[1104 + 8 : 1104 + 8 + len(stored)].tobytes() == stored


FRAMES = {"W_HEAD", "W_TAIL"}
"""Words that hold the place of a frame of one worker, whatever their value."""


@pytest.mark.spec("SCHED-PASS-2")
def test_no_look_without_the_lock_takes_a_word_for_a_place_that_others_may_change_meanwhile():
    rows = ownership.FIELDS
    assert not {
        (party, field, where)
        for party, field, where in Sources().followers(ownership.CALLER)
        if field in rows.keys() - FRAMES
        and rows[field].ordering not in ("fork", "mailbox")
        and party not in ownership.named(rows[field].written_by)
    }
