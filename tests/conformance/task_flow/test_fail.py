"""FLOW-FAIL: errors on their way up."""

import os
import re
import signal

import numpy as np
import pytest

from simpler_ref import CallConfig, TaskArgs, TaskError, Worker
from tests.support import Gate


def three_levels(mode, leaf):
    """Return (top, orch function) of L5 > L4 > L3 > sub worker."""
    lowest, middle = Worker(3, num_sub_workers=1), Worker(4, child_mode=mode)
    top = Worker(5, child_mode=mode)
    middle.add_worker(lowest)
    top.add_worker(middle)
    handle = lowest.register(leaf)
    nested = middle.register(lambda orch, *_: orch.submit_sub(handle))
    outer = top.register(lambda orch, *_: orch.submit_next_level(nested))
    return top, lambda orch, *_: orch.submit_next_level(outer, TaskArgs(), CallConfig())


@pytest.mark.spec("FLOW-FAIL-1", "FLOW-FAIL-2", "SCHED-MAIL-7")
@pytest.mark.parametrize(("mode", "length"), [("process", 200), ("thread", 20)])
def test_the_error_of_a_leaf_names_each_level_and_process_and_arrives_whole_with_its_traceback(
    mode, length
):
    text = " ".join(f"wörd{i}" for i in range(length))

    def the_function_that_failed():
        raise ValueError(f"{os.getpid()} {text}")

    top, orch_fn = three_levels(mode, the_function_that_failed)
    with top:
        with pytest.raises(TaskError) as caught:
            top.run(orch_fn)
        words, trace = str(caught.value), caught.value.remote_traceback
        assert len(words) > 255, "more than a mailbox holds"
        chain = (
            r"level 5 child_worker 0 level=4.*: level 4 child_worker 0 level=3.*: "
            r"level 3 sub_worker 0.*: (ValueError: (\d+) w.*)$"
        )
        found = re.match(chain, words, re.DOTALL)
        assert found, words
        assert "TaskError" not in words, "only the leaf has an exception"
        whole = f"ValueError: {found[2]} {text}"
        assert found[1] == whole.encode()[:255].decode(errors="ignore")
        assert "in the_function_that_failed" in trace and whole in trace
        assert caught.value.__cause__ is not None and caught.value.task == 0
        if mode == "process":
            pids = re.findall(r"\(pid (\d+)\)", words)
            assert len(pids) == len(set(pids)) == 3
            assert int(pids[0]) == caught.value.pid == top.worker_pids()[0]
            assert pids[2] == found[2]


@pytest.mark.spec("FLOW-FAIL-3")
def test_an_exception_of_a_nested_orch_function_fails_its_task(mode):
    with Gate() as here, Gate() as go:
        below = Worker(3, num_sub_workers=1)
        w = Worker(4, num_sub_workers=1, child_mode=mode)
        w.add_worker(below)
        with w:
            done = w.share(np.zeros(2, np.int64))

            def leaf():
                here.open(1)
                go.wait()
                done[0] += 1

            leaves = below.register(leaf)
            never = below.register(lambda: done.__setitem__(1, 1))

            def orch3(orch, args, config):
                orch.submit_sub(leaves)
                orch.submit_sub(never)
                here.wait()
                go.open(1)
                raise LookupError("in the orch function")

            handle = w.register(orch3)
            words = r"child_worker 0 level=3.*LookupError: in the orch function"
            for i in range(2):
                with pytest.raises(TaskError, match=words) as caught:
                    w.run(lambda orch, *_: orch.submit_next_level(handle))
                assert "in orch3" in caught.value.remote_traceback
                assert done[0] == i + 1, "its task has come to rest"


@pytest.mark.spec("FLOW-FAIL-4")
def test_a_death_deep_below_is_reported_and_the_next_run_works(mode):
    with Worker(3) as memory:
        kill = memory.share(np.ones(1, np.int64))
        ran = memory.share(np.zeros(1, np.int64))

        def leaf():
            if kill[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            ran[0] += 1

        top, orch_fn = three_levels(mode, leaf)
        with top:
            words = r"level 5 .*level 4 .*level 3 sub_worker 0 \(pid \d+\).*SIGKILL"
            for i in range(2):
                kill[0] = 1
                with pytest.raises(TaskError, match=words):
                    top.run(orch_fn)
                kill[0] = 0
                top.run(orch_fn)
                assert ran[0] == i + 1
