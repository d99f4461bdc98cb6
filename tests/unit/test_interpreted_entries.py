"""Signal handlers and interpreted kernels: a compiled one cannot be cut in two, so they must not be."""

import signal
import threading

import pytest

from simpler_ref.jit import layout as L
from simpler_ref.jit import schedule
from simpler_ref.jit.kernel import INTERPRETED
from tests.support import Terminated, small_engine, wait_until


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
            engine.kernels.help_scheduler(engine.mem, 0, -1, -1, 0)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert (engine.mem[L.PASS_LOCK], taken) == (0, [True])
