"""CALL-CANCEL: calls that are not made any more."""

import asyncio
import random
import signal
import threading
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pytest

import simpler_ref as sr
from tests.support import wait_until

from ...system.programs import Concurrently
from .tasks import add, fill, total, wait_at


@sr.task
def wait_in(begun: sr.Out, gate: sr.In, value):
    begun[...] = 1
    return wait_at(gate, value)


def keep_busy(w, gate):
    """Return two calls that two workers run until the gate opens, once they have begun."""
    begun = w.zeros(2, np.int8)
    held = [wait_in(begun[i : i + 1], gate, i) for i in range(2)]
    wait_until(begun.all)
    return held


def error_of(future):
    try:
        return future.exception()
    except futures.CancelledError as error:
        return error


def live(w):
    return w._session.engine.view.live


@pytest.fixture
def emptied(w):
    """Let the Worker forget the calls of earlier tests, which a run does."""
    w.run(lambda *_: None)


# ---------------------------------------------------------------- one call
@pytest.mark.spec("CALL-CANCEL-1", "CALL-CANCEL-2")
def test_a_call_that_waits_for_a_worker_or_for_others_is_cancelled(w, gate):
    held = keep_busy(w, gate)
    ready, pending = add(1, 1), add(held[0], 1)
    other = add(2, 2)
    for one in (ready, pending):
        assert not one.cancelled() and not one.done()
        assert one.cancel() and one.cancelled() and one.done() and not one.running()
        assert one.cancel(), "it is cancelled already"
        for ask in (one.result, one.exception):
            with pytest.raises(futures.CancelledError, match=r"add.* was cancelled") as caught:
                ask()
        assert isinstance(caught.value, sr.TaskError) and "add" in caught.value.callable_name
    calls = [add(i, i) for i in range(100)]
    order = random.Random(5).sample(range(0, 100, 3), 34)
    assert all(calls[i].cancel() for i in order), "out of turn"
    gate[0] = 1
    assert [one.result() for one in held] == [0, 1] and other.result() == 4
    assert not other.cancelled()
    for i, one in enumerate(calls):
        assert one.cancelled() == (i % 3 == 0)
        assert one.cancelled() or one.result() == 2 * i


@pytest.mark.spec("CALL-CANCEL-1")
def test_a_call_that_has_begun_or_ended_is_not_cancelled(w, gate):
    held = keep_busy(w, gate)
    assert not any(one.cancel() or one.cancelled() for one in held)
    gate[0] = 1
    assert [one.result() for one in held] == [0, 1]
    ended = add(1, 2)
    wait_until(ended.done)
    assert not ended.cancel() and ended.result() == 3
    failed = w.submit(divmod, 1, 0)
    assert isinstance(failed.exception(), ZeroDivisionError)
    assert not failed.cancel() and not failed.cancelled()


@pytest.mark.spec("CALL-CANCEL-2")
def test_calls_that_need_the_value_fail_with_it_and_others_do_not(w, gate):
    held, first = keep_busy(w, gate), add(1, 1)
    needs = add(first, 1)
    needs_that, needs_both = add(needs, 1), add(held[0], first)
    assert first.cancel()
    for one in (needs, needs_that):
        with pytest.raises(sr.TaskCancelledError, match=r"call \d+ \(add\) was cancelled"):
            one.result()
        assert "was not made" in str(one.exception().__notes__) and not one.cancelled()
    gate[0] = 1
    assert isinstance(needs_both.exception(), sr.TaskCancelledError)
    assert held[0].result() == 0


@pytest.mark.spec("CALL-CANCEL-2")
def test_calls_that_only_wait_for_it_are_made_after_those_that_it_waits_for(w, gate):
    x = w.share(np.zeros(4))

    @sr.task
    def read_late(x: sr.In, gate: sr.In):
        return wait_at(gate, float(x.sum()))

    early, between = read_late(x, gate), fill(x, 1)
    late = fill(x, 2)
    assert between.cancel()
    assert not late.done(), "it waits for what the cancelled call waits for"
    gate[0] = 1
    assert early.result() == 0 and late.result() is None and list(x) == [2] * 4


# ---------------------------------------------------------------- many calls, many threads
@pytest.mark.spec("CALL-CANCEL-1")
def test_cancelled_calls_leave_nothing_behind(w, emptied, gate):
    x, held = w.share(np.zeros(4)), keep_busy(w, gate)
    for _ in range(10):
        calls = [add(i, "text" * 1000) for i in range(30)]
        calls += [add(calls[0], np.zeros(1000)) for _ in range(30)]
        for one in reversed(calls):
            assert one.cancel()
        fill(x, 1).cancel()
    assert live(w) == 3, "the calls that run, and the last writer"
    calls = [add(held[0], np.zeros(1000)) for _ in range(30)]
    calls += [add(calls[0], 1) for _ in range(30)]
    for one in calls:
        assert one.cancel()
    gate[0] = 1
    assert [one.result() for one in held] == [0, 1]
    fill(x, 3)
    assert total(x).result() == 12
    wait_until(lambda: add(1, 1).result() == 2 and live(w) <= 4)


@pytest.mark.spec("CALL-CANCEL-1", "CALL-CANCEL-2")
def test_threads_may_cancel_at_any_moment_while_others_wait(w, emptied):
    def work(seed):
        draw, told = random.Random(seed), []
        for _ in range(10):
            chain = [add(0, 1)]
            for _ in range(draw.randrange(8)):
                chain.append(add(chain[-1], 1))
            waiting = threading.Thread(target=lambda last=chain[-1]: told.append(error_of(last)))
            waiting.start()
            victim = draw.randrange(len(chain))
            for _ in range(draw.randrange(3)):
                add(1, 1).result()
            cancelled = chain[victim].cancel()
            waiting.join()
            for i, one in enumerate(chain):
                if cancelled and i == victim:
                    assert one.cancelled()
                elif cancelled and i > victim:
                    assert not one.cancelled()
                    assert isinstance(one.exception(), sr.TaskCancelledError)
                else:
                    assert one.result() == i + 1
        return len(told)

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(work, range(8))) == [10] * 8
    wait_until(lambda: add(1, 1).result() == 2 and live(w) <= 1)


# ---------------------------------------------------------------- as others see it
@pytest.mark.spec("CALL-CANCEL-2")
def test_wait_as_completed_and_callbacks_see_a_cancelled_call(w, gate):
    held, calls = keep_busy(w, gate), [add(i, i) for i in range(4)]
    seen, told = [], threading.Event()
    calls[2].add_done_callback(lambda one: (seen.append(one.cancelled()), told.set()))
    for one in calls[:3]:
        assert one.cancel()
    done, waiting = futures.wait(calls[:3] + held, 30, "FIRST_COMPLETED")
    assert done <= set(calls[:3]) and set(held) <= waiting
    assert set(futures.as_completed(calls[:3], 30)) == set(calls[:3])
    assert told.wait(30) and seen == [True]
    gate[0] = 1
    assert futures.wait(calls, 30) == (set(calls), set())


@pytest.mark.spec("CALL-CANCEL-2")
def test_cancelling_a_coroutine_cancels_the_call_that_it_awaits(w, gate):
    held = keep_busy(w, gate)

    async def give_up(call):
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(call, 0.01)
        waits = asyncio.ensure_future(asyncio.wrap_future(again := add(2, 2)))
        await asyncio.sleep(0)
        waits.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waits
        await asyncio.sleep(0)
        return again

    async def await_cancelled(call):
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    call = add(1, 1)
    again = asyncio.run(give_up(call))
    assert call.cancelled() and again.cancelled()
    asyncio.run(await_cancelled(add(3, 3)))
    asyncio.run(give_up(held[0]))
    assert not held[0].cancelled(), "it has begun"
    gate[0] = 1
    assert held[0].result() == 0


# ---------------------------------------------------------------- all calls
def opens(gate, when):
    """Open a gate on another thread, once something is true."""
    return Concurrently(lambda: (wait_until(when), gate.fill(1)))


@pytest.mark.spec("CALL-CANCEL-5")
@pytest.mark.parametrize("kind, depth", [("process", 4), ("thread", 1)])
def test_a_shutdown_cancels_what_has_not_begun_and_waits_for_the_rest(kind, depth):
    w = sr.Worker(num_sub_workers=2, child_mode=kind, mailbox_depth=depth)
    w.init()
    gate, x = (w.share(np.zeros(1, np.int32)) for _ in range(2))
    held = wait_at(gate)
    wait_until(held.running)
    chain = [add(held, 1)]
    for _ in range(10):
        fill(x, 1)  # nobody keeps its future
        chain.append(add(chain[-1], 1))
    many = [wait_at(gate, i) for i in range(100)]
    with opens(gate, many[50].cancelled):
        w.shutdown(cancel_futures=True)
    assert held.result() is None
    assert all(isinstance(error_of(one), futures.CancelledError) for one in chain)
    assert sum(one.cancelled() for one in many) >= 90 and many[-1].cancelled()
    assert all(one.cancelled() or one.result() == i for i, one in enumerate(many))
    with pytest.raises(RuntimeError, match="closed"):
        w.submit(divmod, 1, 1)
    w.shutdown()


@pytest.mark.spec("CALL-CANCEL-5")
def test_a_shutdown_makes_all_calls_unless_told_otherwise_and_refuses_what_is_no_flag():
    w = sr.Worker(num_sub_workers=2, child_mode="thread")
    w.init()
    calls = [add(i, i) for i in range(50)]
    for wrong in (None, "x", 2):
        with pytest.raises(TypeError, match=f"cancel_futures={wrong!r} is neither True nor False"):
            w.shutdown(cancel_futures=wrong)
        with pytest.raises(TypeError, match=f"wait={wrong!r} is neither True nor False"):
            w.shutdown(wrong)
    with pytest.raises(ValueError, match="wait=False"):
        w.shutdown(wait=False)
    assert add(1, 1).result() == 2
    w.shutdown()
    assert [one.result() for one in calls] == [2 * i for i in range(50)]


@pytest.mark.spec("CALL-CANCEL-5")
@pytest.mark.parametrize("kind", ["process", "thread"])
def test_ctrl_c_while_the_end_waits_cancels_and_once_more_terminates(kind):
    main = threading.main_thread().ident

    def press():
        wait_until(lambda: calls[0].done())
        signal.pthread_kill(main, signal.SIGINT)
        wait_until(lambda: calls[-1].cancelled())
        signal.pthread_kill(main, signal.SIGINT)

    with pytest.raises(KeyboardInterrupt), sr.Worker(num_sub_workers=2, child_mode=kind) as w:
        gate = w.share(np.zeros(1, np.int32))
        held, calls = keep_busy(w, gate), [add(i, i) for i in range(100)]
        assert calls[0].cancel()
        pressing = threading.Thread(target=press)
        pressing.start()
    pressing.join()
    assert all(one.cancelled() for one in calls)
    assert all(isinstance(one.exception(), sr.TaskError) for one in held)


@pytest.mark.spec("CALL-CANCEL-5")
@pytest.mark.parametrize("kind", ["process", "thread"])
def test_a_block_that_ends_with_an_exception_cancels_and_a_warning_names_the_rest(kind, caplog):
    told = "the Worker is being closed: waiting for 2 running tasks"
    one = sr.Worker(num_sub_workers=2, child_mode=kind)
    with ExitStack() as later, pytest.raises(KeyboardInterrupt), one as w:
        gate = w.zeros(1, np.int32)
        held, calls = keep_busy(w, gate), [add(i, i) for i in range(1000)]
        later.enter_context(opens(gate, lambda: told in caplog.text))
        raise KeyboardInterrupt
    assert [one.result() for one in held] == [0, 1]
    assert all(one.cancelled() for one in calls)
    assert "(wait_in) on sub_worker 0" in caplog.text and "; Ctrl-C " in caplog.text
