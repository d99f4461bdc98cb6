"""SEE-BAR: progress of a run."""

import sys

import numpy as np
import pytest

from simpler_ref import TaskError, Worker
from simpler_ref import TensorArgType as T
from simpler_ref.workers.progress import Progress

from .conftest import fail, increase, make, wait_at_gate


@pytest.fixture(params=["rich", "tqdm", "text"])
def kind(request, monkeypatch):
    if request.param == "rich":
        pytest.importorskip("rich")
        monkeypatch.setenv("COLUMNS", "200")
        return request.param
    monkeypatch.setitem(sys.modules, "rich.progress", None)
    if request.param == "text":
        monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    else:
        tqdm = pytest.importorskip("tqdm")
        monkeypatch.setattr(tqdm.tqdm, "monitor_interval", 0)  # it would start a thread for good
    return request.param


@pytest.mark.spec("SEE-BAR-1", "SEE-BAR-2")
def test_it_shows_the_tasks_that_have_ended_at_the_end_all(kind, capsys):
    with Worker(level=3, num_sub_workers=1, child_mode="thread") as w:
        good, x = w.register(increase), w.zeros(8, np.int64)

        def build(orch, args, config):
            orch.alloc((8,), np.int64)
            for _ in range(3):
                orch.submit_sub(good, make((x, T.INOUT)))

        w.run(build)
        assert capsys.readouterr().err == ""
        timing = w.run(build, progress=True)
        last = capsys.readouterr().err.rstrip().rsplit("\r", 1)[-1]
    assert timing.tasks == 4
    shown = ": 3 of 3 tasks" if kind == "text" else "3/3"
    assert build.__qualname__ in last and shown in last


@pytest.mark.spec("SEE-BAR-1")
def test_it_shows_where_a_run_is_that_waits(monkeypatch, capsys):
    for library in ("rich.progress", "tqdm.auto"):
        monkeypatch.setitem(sys.modules, library, None)
    with Worker(level=3, num_sub_workers=1) as w:
        holds, good = w.register(wait_at_gate), w.register(increase)
        gate, x = w.zeros(1, np.int64), w.zeros(8, np.int64)

        def build(orch, args, config):
            orch.submit_sub(good, make((x, T.INOUT)))
            orch.drain()
            orch.submit_sub(holds, make((gate, T.INPUT)))
            orch.submit_sub(good, make((x, T.INOUT)))
            w._session.look()
            gate[0] = 1

        w.run(build, progress=True)
    shown = capsys.readouterr().err.split("\r")
    assert any(one.endswith((": 1 of 3 tasks", ": 2 of 3 tasks")) for one in shown)


@pytest.mark.spec("SEE-BAR-2")
def test_of_a_run_that_fails_the_end_is_not_shown(kind, capsys, monkeypatch):
    monkeypatch.setattr(Progress, "show", lambda self: None)  # only the end would show tasks
    with Worker(level=3, num_sub_workers=1, child_mode="thread") as w:
        bad, x = w.register(fail), w.zeros(8, np.int64)
        with pytest.raises(TaskError, match="on purpose"):
            w.run(lambda orch, *_: orch.submit_sub(bad, make((x, T.INOUT))), progress=True)
        assert w._session.progress is None
    last = capsys.readouterr().err.rstrip().rsplit("\r", 1)[-1]
    assert "1/1" not in last and "1 of 1" not in last
