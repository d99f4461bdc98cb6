"""SEE-STORY: the story in an error."""

import itertools
import os
import pickle
import re
import signal
import traceback

import numpy as np
import pytest

import simpler_ref as sr
from simpler_ref import TaskCancelledError, TaskError, TaskTimeoutError, Worker, WorkerLostError
from simpler_ref import TensorArgType as T
from simpler_ref.errors import origin_of, tell

from .conftest import begin, bump, fail, increase, make


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


def invert(value):
    return 1 / value


def vanish(value):
    return value or die.py_func(value)


def chained(w, function):
    """Run a chain of four tasks the third of which fails; return its error."""
    good, bad = w.register(increase), w.register(function)
    x = w.zeros(8, np.int64)

    def orchestrate(orch, args, config):
        gate = orch.alloc((1,), np.int64)
        for one in (good, good, bad, good):
            orch.submit_sub(one, make((gate, T.INPUT), (x, T.INOUT)))

    with pytest.raises(TaskError) as caught:
        w.run(orchestrate)
    return caught.value


SUBMITTED = f"submitted at {__file__}:{chained.__code__.co_firstlineno + 8}"


@pytest.fixture(scope="module")
def w():
    with Worker(level=3, num_sub_workers=1, child_mode="thread") as made:
        made.start()
        yield made


@pytest.mark.spec("SEE-STORY-1", "SEE-STORY-3")
@pytest.mark.parametrize("function", [fail, die.py_func])
def test_the_error_of_a_run_names_state_worker_and_neighbours(function):
    with Worker(level=3, num_sub_workers=1, check=function is fail) as w:
        w.start()
        name, error = w._life.session.manager.name(0), chained(w, function)
    assert isinstance(error, WorkerLostError) == (function is not fail)
    lines = error.story.splitlines()
    assert lines[0] == f"  task 3 ({function.__name__}) was RUNNING on {name}"
    assert lines[1] == "  it had waited for task 0 (buffer), task 2 (increase)"
    if function is fail:
        assert lines.pop() == f"  {SUBMITTED}"
    # the fourth task may not have been submitted when the third failed
    assert lines[2:] in (["  waiting for it: task 4 (increase)"], ["  no task waits for it"])


@pytest.mark.spec("SEE-STORY-1")
@pytest.mark.parametrize(
    ("task", "kind"), [(refuse, KeyError), (die, WorkerLostError), (spin, TaskTimeoutError)]
)
def test_the_error_of_a_call_tells_what_it_had_waited_for_and_what_waits(task, kind):
    with Worker(num_sub_workers=1) as w:
        x, gate = w.zeros(8, np.int64), w.zeros(1, np.int64)
        begin(x, gate)
        failing, poisoned = task(x), bump(x)
        gate[0] = 1
        with pytest.raises(kind) as first:
            failing.result()
        with pytest.raises(kind) as second:
            poisoned.result()
    lines = origin_of(first.value).story.splitlines()
    assert lines[0].startswith(f"  call 1 ({task.__name__}) was RUNNING on sub_worker 0 (pid ")
    assert lines[1:] == ["  it had waited for call 0", "  waiting for it: call 2"]
    assert origin_of(second.value).story.splitlines()[0] == lines[0]


@pytest.mark.spec("SEE-STORY-1")
def test_a_cancelled_call_never_began(w):
    x, gate = w.zeros(8, np.int64), w.zeros(1, np.int64)
    begin(x, gate)
    later = bump(x)
    assert later.cancel()
    gate[0] = 1
    with pytest.raises(TaskCancelledError) as caught:
        later.result()
    which, waited, others = caught.value.story.splitlines()
    assert re.fullmatch(r"  call \d+ \(bump\) never began", which)
    assert re.fullmatch(r"  it had waited for call \d+", waited)
    assert others == "  no call waits for it"


@pytest.mark.spec("SEE-STORY-3")
def test_python_prints_the_story_which_changes_nothing_of_a_tasks_exception(w):
    errors = [chained(w, fail)]
    again = pickle.loads(pickle.dumps(errors[0]))
    assert (str(again), again.story) == (str(errors[0]), errors[0].story)
    for call in (lambda: refuse(w.zeros(8, np.int64)).result(), lambda: list(w.map(invert, [0]))):
        with pytest.raises((KeyError, ZeroDivisionError)) as caught:
            call()
        errors.append(caught.value)
    for error in errors:
        assert str(error).endswith(("on purpose", "'on purpose'", "division by zero"))
        story = origin_of(error).story
        assert getattr(error, "__notes__", None) == ([story] if error is errors[0] else None)
        printed = "".join(traceback.format_exception(error))
        assert printed.count(story) == 1
        assert printed.count("Traceback (most recent call last)") == 2


@pytest.mark.spec("SEE-STORY-3")
def test_while_a_trace_is_taken_a_story_names_its_file(path, mode):
    with Worker(level=3, num_sub_workers=1, trace=path, child_mode=mode) as w:
        stories, x = [chained(w, fail).story], w.zeros(8, np.int64)
        with pytest.raises(KeyError) as caught:
            refuse(x).result()
        stories.append(origin_of(caught.value).story)
    for one in stories:
        assert one.endswith(f"\n  the trace in {path} says when it did what")


# ---------------------------------------------------------------- items of map
def errors_of(results):
    """Return the errors of all items, by their numbers."""
    found = {}
    for item in itertools.count():
        try:
            next(results)
        except StopIteration:
            break
        except Exception as error:
            found[item] = error
    return found


@pytest.mark.spec("SEE-STORY-1")
def test_the_error_of_an_item_tells_which_item_of_which_function_and_where_map_was_called(w):
    def mapped():
        return w.map(invert, [1, 1, 1, 1, 1, 0, 1, 0, 1], chunksize=4)

    found = errors_of(mapped())
    assert sorted(found) == [5, 7]
    for item, error in found.items():
        ran, which, others = origin_of(error).story.splitlines()
        assert re.match(r"  call \d+ \(invert\) was RUNNING on sub_worker ", ran)
        line = f"{__file__}:{mapped.__code__.co_firstlineno + 1}"
        assert which.startswith(f"  item {item} of map of invert, called at {line}")
        assert others == "  its call had items 4 to 7"
        assert isinstance(error, ZeroDivisionError)


@pytest.mark.spec("SEE-STORY-1")
def test_a_chunk_that_is_lost_tells_which_items_it_had():
    with Worker(num_sub_workers=1) as w:
        found = errors_of(w.map(vanish, [1, 2, 3, 4, 0, 5], chunksize=3))
    assert sorted(found) == [3, 4, 5]
    for error in found.values():
        assert isinstance(error, WorkerLostError) and len(error.__notes__) == 1
        lines = origin_of(error).story.splitlines()
        assert lines[0].startswith("  call 1 (vanish) was RUNNING on sub_worker 0")
        assert lines[-1].startswith(f"  items 3 to 5 of map of vanish, called at {__file__}:")


@pytest.mark.spec("SEE-STORY-3")
def test_without_notes_the_cause_has_the_story_once_also_after_more_is_told(monkeypatch):
    monkeypatch.setattr("simpler_ref.errors._PRINTS_NOTES", False)
    for trace in ("", "Traceback: a line\n"):
        error = TaskError("it failed", remote_traceback=trace)
        tell(error, "  first")
        tell(error, "  second")
        assert error.story == "  first\n  second"
        assert str(error.__cause__) == f'\n"""\n{trace}\n  first\n  second"""'
        assert error.__notes__ == [error.story]
    other = TaskError("it failed")
    other.__cause__ = ValueError("its own cause stays")
    tell(other, "  story")
    assert isinstance(other.__cause__, ValueError)
