"""Workers below Workers below Workers: failures, deaths and the end, at every level of the tree."""

import os
import re
import signal

import numpy as np
import psutil
import pytest

import simpler_ref.workers.fork_server
import simpler_ref.workers.processes
from simpler_ref import TaskError, Worker, WorkerLostError
from simpler_ref import TensorArgType as T
from simpler_ref.jit import layout as L

from ..support import Gate, make_args, sample, wait_until
from .programs import Concurrently, dies, in_a_fork, terminate
from .workers import pass_on, shared_words

MARK, WAIT = range(2)
LEVELS = ("L4", "L3", "sub")


class Tree:
    """A level 5 Worker over a level 4 over a level 3 Worker with sub workers, and a leaf in each."""

    def __init__(self, started=None):
        self.pids = shared_words(4)  # of the workers at L4, L3 and of the sub worker
        self.started, self.go = started or Gate(), Gate()
        self.l3 = Worker(level=3, num_sub_workers=1)
        self.l4, self.w = Worker(level=4), Worker(level=5)
        self.l4.add_worker(self.l3)
        self.w.add_worker(self.l4)
        pids, started, go = self.pids, self.started, self.go

        def leaf(args):
            pids[2] = os.getpid()
            if args.scalar(0) == WAIT:
                started.open(1)
                go.wait()
            args.tensor(0).numpy()[0] += 1

        self.leaf = leaf_handle = self.l3.register(leaf)

        def at_l3(orch, args, config):
            pids[1] = os.getpid()
            orch.submit_sub(leaf_handle, pass_on(args))

        self.at_l3 = l3_handle = self.l4.register(at_l3)

        def at_l4(orch, args, config):
            pids[0] = os.getpid()
            orch.submit_next_level(l3_handle, pass_on(args))

        self.at_l4 = self.w.register(at_l4)

    def __enter__(self):
        self.w.__enter__()
        self.counts = self.w.share(np.zeros(4, np.int64))
        return self

    def __exit__(self, *error):
        self.w.__exit__(*error)
        self.started.__exit__()
        self.go.__exit__()

    def task(self, what=MARK):
        return lambda orch, _args, _config: orch.submit_next_level(
            self.at_l4, make_args((self.counts, T.INOUT), scalars=[what])
        )

    def assert_works(self):
        before = int(self.counts[0])
        self.w.run(self.task())
        assert self.counts[0] == before + 1

    def processes(self):
        """Return pid by what it is: workers, and the fork server each of them comes from."""
        found = dict(zip(LEVELS, self.pids[:3].tolist(), strict=True))
        return found | {
            f"server of {what}": psutil.Process(pid).ppid() for what, pid in found.items()
        }


CHAIN = {
    "L4": r"^level 5 child_worker 0 level=4 \(pid {L4}\), task 0 \(.*at_l4\): ",
    "L3": r"level 4 child_worker 0 level=3 \(pid {L3}\), task 0 \(.*at_l3\): ",
    "sub": r"level 3 sub_worker 0 \(pid {sub}\), task 0 \(.*leaf\): ",
}


def chain(processes, victim):
    """Return a pattern of the message when a worker died: every name from the top down to it."""
    names = LEVELS[: LEVELS.index(victim.removeprefix("server of ")) + 1]
    pattern = "".join(CHAIN[name] for name in names) + "the worker was killed by SIGKILL"
    for name in LEVELS:
        pattern = pattern.replace("{" + name + "}", str(processes[name]))
    return pattern


VICTIMS = [*LEVELS, *(f"server of {level}" for level in LEVELS)]


@pytest.mark.parametrize("victim", sample(VICTIMS, 2))
def test_a_death_at_any_level_fails_the_run_leaves_no_orphan_and_is_repaired(victim):
    with Tree() as tree:
        tree.assert_works()
        processes = tree.processes()
        below = psutil.Process(processes[victim]).children(recursive=True)

        def kill_it():
            tree.started.wait()
            terminate(processes[victim])

        with Concurrently(kill_it), pytest.raises(TaskError) as caught:
            tree.w.run(tree.task(WAIT))
        assert re.search(chain(processes, victim), str(caught.value)), caught.value
        assert isinstance(caught.value, WorkerLostError) == victim.endswith("L4")
        assert all(dies(process.pid) for process in below)
        tree.assert_works()

        pid = tree.processes()[victim]
        terminate(pid)  # between two runs
        assert dies(pid)
        wait_until(lambda: works_again(tree))


def works_again(tree):
    """The death may not be known yet where the next task goes."""
    try:
        tree.assert_works()
    except TaskError as error:
        assert "SIGKILL" in str(error) or "have died" in str(error)
        return False
    return True


@pytest.mark.parametrize("victim", sample(VICTIMS[::-1], 2))
def test_close_takes_a_tree_down_in_which_something_hangs(victim, monkeypatch):
    monkeypatch.setattr(simpler_ref.workers.fork_server, "GRACE_S", 0.2)
    monkeypatch.setattr(simpler_ref.workers.processes, "GRACE_S", -1.5)
    with Tree() as tree:
        tree.assert_works()
        processes = tree.processes()
        terminate(processes[victim], signal.SIGSTOP)
    assert all(dies(pid) for pid in processes.values())


def test_ctrl_c_in_a_nested_run_waits_for_what_runs_and_a_second_one_does_not():
    def program():
        os.setpgid(0, 0)  # all of it gets a SIGINT, as from a terminal
        with Tree() as tree:
            mem = tree.w._session.engine.mem

            def press(again):
                tree.started.wait()
                os.killpg(0, signal.SIGINT)
                wait_until(lambda: mem[L.CANCEL] and mem[L.PARK_ORCH])
                if again:
                    os.killpg(0, signal.SIGINT)
                else:
                    tree.go.open(1)

            for again in (False, True):
                with (
                    Concurrently(lambda again=again: press(again)),
                    pytest.raises(KeyboardInterrupt),
                ):
                    tree.w.run(tree.task(WAIT))
                assert tree.counts[0] == 1 + again
                tree.assert_works()

    in_a_fork(program)
