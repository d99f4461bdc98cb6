"""Control requests that fail: deaths, hangs, busy workers, requests from many threads at once."""

import signal
import time

import pytest

from simpler_ref import CallableError, Worker
from simpler_ref import TensorArgType as T
from simpler_ref.errors import ControlError
from simpler_ref.workers.kinds import WorkerKind

from ..support import make_args, wait_until
from .programs import Concurrently, dies, in_a_fork
from .workers import mark, shared_words


class Odd(WorkerKind):
    """A worker whose control requests hang while word 0 of shared memory is its number."""

    label = "odd_worker"

    def __init__(self, told, number):
        self.told, self.number = told, number

    def obey(self):
        self.told[1] += 1
        while self.told[0] == self.number:
            time.sleep(0.01)

    def install(self, target):
        self.obey()
        return target

    def control(self, command, arg0, arg1, arg2):
        self.obey()
        return arg0 + 1

    def run(self, callable, view, config):
        callable(view)


class Rig:
    """A level 3 Worker over odd workers, and a leaf that marks."""

    def __init__(self, members=2, **config):
        self.told = shared_words(2)
        self.marks = shared_words(16)
        self.members = members
        self.w = Worker(level=3, **config)
        for number in range(1, members + 1):
            self.w.add_next_level(Odd(self.told, number))

    def __enter__(self):
        self.w.__enter__()
        self.ok = self.w.register(mark)
        self.w.start()
        return self

    def __exit__(self, *error):
        self.told[0] = 0
        self.w.__exit__(*error)

    def hang(self, member):
        self.told[0] = member + 1

    def assert_works(self, handle=None):
        before = self.marks.copy()
        self.w.run(self.all(handle))
        assert (self.marks - before)[: self.members].tolist() == [1] * self.members

    def all(self, handle=None):
        return lambda orch, *_: orch.submit_next_level_group(
            handle or self.ok,
            [make_args((self.marks, T.NO_DEP), scalars=[m]) for m in range(self.members)],
        )


# ---------------------------------------------------------------- the end, and Ctrl-C
@pytest.mark.parametrize("mode", ["process", "thread"])
def test_close_beside_a_request_ends_both(mode):
    with Rig(2, child_mode=mode) as rig:
        rig.hang(1)
        caught = []

        def register():
            try:
                rig.w.register(lambda args: mark(args))
            except (CallableError, ControlError, RuntimeError) as error:
                caught.append(error)

        with Concurrently(register):
            wait_until(lambda: rig.told[1] >= 4)  # two of the start, two now
            with Concurrently(rig.w.close):
                time.sleep(0.05)
                rig.told[0] = 0


def test_a_second_ctrl_c_in_a_request_gives_the_worker_up():
    def program():
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        with Rig(2, py_control_timeout_s=1000) as rig:
            for _ in range(3):
                pid = rig.w._session.manager.pids[1]
                rig.hang(1)
                signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
                try:
                    rig.w.malloc(8, worker_id=1)
                except KeyboardInterrupt:
                    signal.setitimer(signal.ITIMER_REAL, 0)
                assert dies(pid)
                rig.told[0] = 0
                rig.assert_works()
                assert rig.w.malloc(8, worker_id=1) == 9

    in_a_fork(program)
