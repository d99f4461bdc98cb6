"""SEE-STORY: the story in an error."""

import os
import pickle
import signal
import traceback

import numpy as np
import pytest

import simpler_ref as sr
from simpler_ref import TaskCancelledError, TaskError, TaskTimeoutError, Worker, WorkerLostError
from simpler_ref import TensorArgType as T

from .conftest import bump, fail, increase, make


@sr.task
def refuse(x: sr.InOut):
    raise KeyError("on purpose")


@sr.task
def die(x: sr.InOut):
    os.kill(os.getpid(), signal.SIGKILL)


@sr.task(timeout=0.2)
def spin(x: sr.InOut):
    while True:
        pass


@sr.task
def wait_for(x: sr.InOut, gate: sr.In):
    while gate[0] == 0:
        pass


def die_in_run(args):
    os.kill(os.getpid(), signal.SIGKILL)


def chained(w, function):
    """Run a chain of four tasks the third of which fails; return its error."""
    good, bad = w.register(increase), w.register(function)
    x = w.zeros(8, np.int64)

    def orchestrate(orch, args, config):
        chain = [good, good, bad, good]
        gate = orch.alloc((1,), np.int64)
        for one in chain:
            orch.submit_sub(one, make((gate, T.INPUT), (x, T.INOUT)))

    with pytest.raises(TaskError) as caught:
        w.run(orchestrate)
    return caught.value


@pytest.mark.spec("SEE-STORY-1")
def test_the_error_of_a_run_names_state_worker_and_neighbours(mode):
    with Worker(level=3, num_sub_workers=1, child_mode=mode) as w:
        error = chained(w, fail)
        name = w._life.session.manager.name(0)
    lines = error.story.splitlines()
    assert lines[0] == f"  task 3 (fail) was RUNNING on {name}"
    assert lines[1] == "  it had waited for task 0 (buffer), task 2 (increase)"
    # the fourth task may not have been submitted when the third failed
    assert lines[2:] in (["  waiting for it: task 4 (increase)"], ["  no task waits for it"])


@pytest.mark.spec("SEE-STORY-1")
def test_a_task_that_was_lost_with_its_worker_has_its_story():
    with Worker(level=3, num_sub_workers=1) as w:
        error = chained(w, die_in_run)
    assert isinstance(error, WorkerLostError)
    assert "  it had waited for task 0 (buffer), task 2 (increase)" in error.story


@pytest.mark.spec("SEE-STORY-1")
def test_only_the_first_four_are_named():
    with Worker(level=3, num_sub_workers=1) as w:
        good, bad = w.register(increase), w.register(fail)
        x = w.zeros((6, 8), np.int64)

        def orchestrate(orch, args, config):
            for row in x:
                orch.submit_sub(good, make((row, T.INOUT)))
            orch.submit_sub(bad, make(*((row, T.INOUT) for row in x)))

        with pytest.raises(TaskError) as caught:
            w.run(orchestrate)
    named = ", ".join(f"task {i} (increase)" for i in range(4))
    assert f"  it had waited for {named}, 2 more\n  no task waits for it" in caught.value.story


@pytest.mark.spec("SEE-STORY-2")
@pytest.mark.parametrize(
    ("task", "kind"), [(refuse, KeyError), (die, WorkerLostError), (spin, TaskTimeoutError)]
)
def test_the_error_of_a_call_tells_what_it_had_waited_for_and_what_waits(task, kind):
    with Worker(num_sub_workers=1) as w:
        x, gate = w.zeros(8, np.int64), w.zeros(1, np.int64)
        wait_for(x, gate)
        failing = task(x)
        poisoned = bump(x)
        gate[0] = 1
        with pytest.raises(kind) as first:
            failing.result()
        with pytest.raises(kind) as second:
            poisoned.result()
    lines = first.value.story.splitlines()
    assert lines[0].startswith(f"  call 1 ({task.__name__}) was RUNNING on sub_worker 0 (pid ")
    assert lines[1:] == ["  it had waited for call 0", "  waiting for it: call 2"]
    assert second.value.story.splitlines()[0] == lines[0]


@pytest.mark.spec("SEE-STORY-2")
def test_a_cancelled_call_never_began():
    with Worker(num_sub_workers=1) as w:
        x, gate = w.zeros(8, np.int64), w.zeros(1, np.int64)
        wait_for(x, gate)
        later = bump(x)
        assert later.cancel()
        gate[0] = 1
        with pytest.raises(TaskCancelledError) as caught:
            later.result()
    assert caught.value.story.splitlines() == [
        "  call 1 (bump) never began",
        "  it had waited for call 0",
        "  no call waits for it",
    ]


@pytest.mark.spec("SEE-STORY-3")
def test_python_prints_the_story_below_the_message_also_after_pickling():
    with Worker(level=3, num_sub_workers=1) as w:
        of_run = chained(w, fail)
        with pytest.raises(KeyError) as caught:
            refuse(w.zeros(8, np.int64)).result()
    for error in (of_run, caught.value):
        assert str(error).endswith(("on purpose", "'on purpose'"))
        assert error.__notes__ == [error.story]
        again = pickle.loads(pickle.dumps(error))
        assert (str(again), again.story) == (str(error), error.story)
        printed = "".join(traceback.format_exception(type(error), error, None))
        assert printed.count(error.story) == 1


@pytest.mark.spec("SEE-STORY-4")
def test_a_checked_worker_names_the_line():
    with Worker(level=3, num_sub_workers=1, check=True) as w:
        error = chained(w, fail)
    line = chained.__code__.co_firstlineno + 9
    assert f"\n  submitted at {__file__}:{line}" in error.story


@pytest.mark.spec("SEE-STORY-5")
def test_while_a_trace_is_taken_the_story_has_times_and_lines(path, mode):
    with Worker(level=3, num_sub_workers=1, trace=path, child_mode=mode) as w:
        w.run(lambda orch, args, config: None)
        error = chained(w, fail)
        with pytest.raises(KeyError) as caught:
            refuse(w.zeros(8, np.int64)).result()
    line = chained.__code__.co_firstlineno + 9
    assert f" ms  submitted at {__file__}:{line}\n" in error.story
    assert " ms  began on sub_worker 0" in error.story and " ms  failed after " in error.story
    assert f" ms  submitted at {__file__}:" in caught.value.story


@pytest.mark.spec("SEE-STORY-5")
def test_later_errors_of_a_trace_name_its_file(path):
    with Worker(num_sub_workers=1, trace=path) as w:
        x = w.zeros(8, np.int64)
        stories = []
        for _ in range(17):
            with pytest.raises(KeyError) as caught:
                refuse(x).result()
            stories.append(caught.value.story)
    assert all(" ms  began on " in one for one in stories[:16])
    assert stories[16].endswith(f"  the trace in {path} says when it did what")
