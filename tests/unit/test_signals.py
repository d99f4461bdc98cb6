"""Signal handlers that raise: in what is done until it raises nothing, and in interpreted kernels."""

import contextlib
import linecache
import os
import signal
import sys
import threading

import pytest

from simpler_ref.jit import layout as L
from simpler_ref.jit import schedule
from simpler_ref.jit.kernel import INTERPRETED
from simpler_ref.system.signals import MOST_FAILURES, until_done
from tests.support import Terminated, small_engine, wait_until


class Signal(BaseException):
    """What a handler raises."""


def raising_before_line(number, seen):
    """Return a trace function that raises at so many-th line of `until_done`; it notes them."""

    def local(frame, event, _arg):
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        if event == "line" and line.strip() != "try:":  # no handler runs there
            seen.append(frame.f_lineno)
            if len(seen) == number:
                raise Signal
        return local

    def trace(frame, _event, _arg):
        return local if frame.f_code is until_done.__code__ else None

    return trace


def times(count):
    """Return an act that raises so many times, and what it was called with."""
    calls = []

    def act(failures):
        calls.append(failures)
        if len(calls) <= count:
            raise KeyboardInterrupt(len(calls))

    return act, calls


def test_it_is_told_what_it_has_raised_and_an_error_that_comes_each_time_is_raised():
    act, calls = times(3)
    failures = until_done(act, (), os.getpid())
    assert [failure.args for failure in failures] == [(1,), (2,), (3,)]
    assert [failure.__context__ for failure in failures] == [None, *failures[:2]]
    assert calls == [failures[:n] for n in range(4)]
    act, calls = times(0)
    assert (until_done(act, (), os.getpid()), calls) == ((), [()])
    act, calls = times(MOST_FAILURES)
    with pytest.raises(KeyboardInterrupt) as caught:
        until_done(act, (), os.getpid())
    assert caught.value.args == (MOST_FAILURES,) and len(calls) == MOST_FAILURES


@pytest.mark.parametrize("number", range(1, 30))
def test_it_gets_there_wherever_a_handler_raises(number):
    done, lines = [], []
    before = sys.gettrace()

    def act(failures):
        if not failures:
            trace = raising_before_line(number, lines)
            sys.settrace(trace)
            frame = sys._getframe(1)  # the loop: it is under way, so it is given its trace by hand
            frame.f_trace = trace(frame, "call", None)
            raise KeyboardInterrupt
        done.append(failures)

    try:
        with contextlib.suppress(Signal):  # it may raise after all is done
            until_done(act, (), os.getpid())
    finally:
        sys.settrace(before)
    assert lines, "no line was traced"
    assert done, f"it got out before line {lines[-1]}"


@pytest.mark.kernels
@pytest.mark.skipif(not INTERPRETED, reason="Python runs no handler inside a compiled kernel")
def test_a_signal_that_another_thread_takes_does_not_leave_the_pass_locked(monkeypatch):
    engine = small_engine(sub=1)
    passes, taken = schedule.two_passes, []

    def taken_by_another_thread():
        signal.pthread_kill(threading.get_ident(), signal.SIGALRM)
        taken.append(True)

    def while_the_pass_is_held(mem):
        assert mem[L.PASS_LOCK] == 1
        thread = threading.Thread(target=taken_by_another_thread)
        thread.start()
        wait_until(lambda: taken)
        thread.join()
        return passes(mem)

    def terminate(*_):
        raise Terminated

    # threads start with the mask of the one that starts them: this one shall take the signal
    def unblocked(*args):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
        run(*args)

    run = threading.Thread.run
    monkeypatch.setattr(threading.Thread, "run", unblocked)
    monkeypatch.setattr(schedule, "two_passes", while_the_pass_is_held)
    before = signal.signal(signal.SIGALRM, terminate)
    try:
        with pytest.raises(Terminated):
            engine.kernels.help_scheduler(engine.mem, 0, -1, -1, 0, 0)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert (engine.mem[L.PASS_LOCK], taken) == (0, [True])
