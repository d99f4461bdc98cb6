"""SEE-WHY: the story of a task."""

import re

import numpy as np
import pytest

from simpler_ref import TaskError, Trace, Worker
from simpler_ref import TensorArgType as T

from .conftest import chain, fail, increase


def told(story):
    """Return a story without its times."""
    return [
        re.sub(r"\s+[\d.]+ ms\s+|\s+[\d.]+ ms$", " ", line).strip() for line in story.splitlines()
    ]


@pytest.mark.spec("SEE-WHY-1")
def test_the_story_names_line_tasks_tensors_tags_and_worker(traced):
    addresses = []

    def build(orch, handle, x):
        addresses.append(x.ctypes.data)
        chain(orch, handle, x)

    trace = traced(build, num_sub_workers=1)
    lines = told(trace.find(4).why())
    assert lines[0] == "task 4 (increase)"
    assert lines[1] == f"submitted at {trace.task(5).line}"
    through = f"waited for task 2 (increase) (tensor 0 at {addresses[0]:#x}, INPUT ← INOUT), until"
    assert lines[2].startswith(through) or lines[2] == through.replace("until", "which was over")
    assert lines[3].startswith("waited for task 3 (buffer) (tensor 1 at ")
    assert "ready" in lines and "began on sub_worker 0" in lines
    assert any(line.startswith("ended after") for line in lines)
    assert lines[-1] == "let go: slot and memory are free"


@pytest.mark.spec("SEE-WHY-1")
def test_a_failed_task_and_one_that_was_never_started_say_so(path):
    with Worker(level=3, num_sub_workers=1, trace=path, child_mode="thread") as w:
        bad, good = w.register(fail), w.register(increase)
        x = w.zeros(8, np.int64)

        def orch(orch, args, config):
            orch.submit_sub_many(bad, [x.reshape(1, 8)], [T.INOUT])
            orch.submit_sub_many(good, [x.reshape(1, 8)], [T.INOUT])

        with pytest.raises(TaskError):
            w.run(orch)
    trace = Trace.open(path)
    first = trace.find(0)
    assert first.outcome == "failed" and "failed after" in first.why()
    if len(trace.tasks) > 1:
        second = trace.find(1)
        assert second.outcome == "failed" and "failed without being started" in second.why()


@pytest.mark.spec("SEE-WHY-1")
def test_the_line_of_a_batch_is_that_of_its_call(traced):
    def build(orch, handle, x):
        orch.submit_sub_many(handle, [x.reshape(4, 2)], [T.INOUT])

    file, line = traced(build).find(3).line.rsplit(":", 1)
    assert (file, int(line)) == (__file__, build.__code__.co_firstlineno + 1)


@pytest.mark.spec("SEE-WHY-1")
def test_a_task_has_arguments_and_consumers_and_its_story_times_in_order(chained):
    one = chained.find(0)
    assert one.consumers == [2]
    assert [(a.position, a.tag, a.nbytes) for a in one.arguments] == [(0, "INOUT", 64)]
    assert repr(one).startswith("<task 0 (increase): completed, ")
    for number in (1, 2, 3, 5):
        story = chained.task(number).why()
        times = [float(one) for one in re.findall(r"^ +([\d.]+) ms ", story, re.MULTILINE)]
        assert len(times) >= 4 and times == sorted(times)
