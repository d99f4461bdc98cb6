"""Calls in a program that is interrupted, killed or forked."""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
import threading
import time

import numpy as np
import pytest

import simpler_ref as sr
from simpler_ref.calls.current import current
from simpler_ref.jit import layout as L

from .programs import Fork, in_a_fork
from .workers import rounds


@sr.task
def add(a, b):
    return a + b


@sr.task
def update(y: sr.InOut, x: sr.In):
    y += x


# ---------------------------------------------------------------- Ctrl-C
class CtrlC:
    """Raises KeyboardInterrupt in the main thread at random moments, once each time it is armed.

    It has no lock, which the handler could find locked.
    """

    def __init__(self) -> None:
        self.armed = self.ended = False
        self._random = random.Random(8)
        signal.signal(signal.SIGINT, self._raise)

    def _raise(self, _number, _frame) -> None:
        if self.armed:
            self.armed = False
            raise KeyboardInterrupt

    def press(self) -> None:
        """Press whenever it is armed."""
        main = threading.main_thread().ident
        while not self.ended:
            time.sleep(self._random.random() * 3e-3)
            if self.armed:
                signal.pthread_kill(main, signal.SIGINT)

    def interrupt(self, act, times: int) -> None:
        """Call `act` again and again until it has been interrupted so many times."""
        presses = threading.Thread(target=self.press)
        presses.start()
        dropped: list[object] = []
        # Python drops what is raised in a finalizer or callback
        sys.unraisablehook = dropped.append
        while times:
            try:
                self.armed = True
                while self.armed:
                    act()
                assert dropped.pop().exc_type is KeyboardInterrupt
            except KeyboardInterrupt:
                times -= 1
        sys.unraisablehook = sys.__unraisablehook__
        self.ended = True
        presses.join()


def calls_go_on(w, x, y):
    """See that nothing is locked, and nobody is noted as waiting for the turn."""
    assert w._session.engine.mem[L.ORCH_WANTED] == 0
    assert add(1, 2).result() == 3
    w.run(lambda orch, args, config: None)  # after the updates that were cut short
    before = float(x[0])
    update(x, y).result()
    assert x[0] == before + 1
    w.run(lambda orch, args, config: None)
    assert add(3, 4).result() == 7


@pytest.mark.spec("CALL-STREAM-8")
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("mode", "other"), [("process", True), ("thread", False)])
@rounds(50, 200)
def test_ctrl_c_at_any_moment_of_calls_and_waits_leaves_nothing_locked(mode, other, rounds):
    def program():
        ctrl_c = CtrlC()
        ended = threading.Event()

        def call_until_ended():
            while not ended.is_set():
                try:
                    assert add(1, 1).result() == 2
                except RuntimeError as error:
                    assert "a run is in progress" in str(error)

        with sr.Worker(num_sub_workers=2, child_mode=mode) as w:
            x, y = w.share(np.zeros(100)), w.share(np.ones(100))
            add(0, 0).result()

            def act():
                futures = [add(i, 1) for i in range(4)]
                update(x, y)
                assert [one.result() for one in futures] == [1, 2, 3, 4]
                w.run(lambda orch, args, config: None)

            beside = threading.Thread(target=call_until_ended)
            if other:
                beside.start()
            ctrl_c.interrupt(act, rounds)
            ended.set()
            if other:
                beside.join()
            calls_go_on(w, x, y)

    in_a_fork(program)


# ---------------------------------------------------------------- the program forks
def in_child(w, futures):
    """See what a forked process may do with the program's calls."""
    assert current() is None
    assert add(1, 2) == 3
    for one in futures:
        assert not one.done() and not one.running()
        assert "another process" in repr(one)
        for ask in (one.result, one.exception):
            with pytest.raises(RuntimeError, match=f"belongs to process {os.getppid()}"):
                ask()
    with pytest.raises(RuntimeError, match="needs a Worker of its own"):
        w.submit(add, 1, 2)
    with sr.Worker(num_sub_workers=1) as mine:
        assert add(1, 2).result() == 3
        assert mine.submit(os.getppid).result() != os.getppid()
    futures.clear()
    gc.collect()


@pytest.mark.spec("CALL-STREAM-9")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.slow("forks beside threads that call, many times")
def test_a_process_may_be_forked_while_other_threads_call():
    ended = threading.Event()
    with sr.Worker(num_sub_workers=2) as w:
        add(1, 2).result()

        def call():
            while not ended.is_set():
                assert add(1, 2).result(timeout=30) == 3

        threads = [threading.Thread(target=call) for _ in range(3)]
        for one in threads:
            one.start()
        try:
            held = w.submit(time.sleep, 0.5)
            for _ in range(5):
                with Fork(lambda: in_child(w, [held])) as child:
                    assert child.wait() == 0
        finally:
            ended.set()
            for one in threads:
                one.join()
