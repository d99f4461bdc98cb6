"""WM-KIND: workers of your own."""

import os
import threading

import numpy as np
import pytest

from simpler_ref import CallConfig, TaskArgs, Worker
from simpler_ref import TensorArgType as T
from tests.support import make_args


class Calculator:
    """A worker that is no function caller: its callables are operations on the whole task."""

    def __init__(self, notes):
        self.notes = notes  # shared: [starts, stops, pid, thread, runs, foreign]

    def _where(self):
        return [os.getpid(), threading.get_native_id()]

    def start(self):
        self.notes[0] += 1
        self.notes[2:4] = self._where()

    def stop(self):
        self.notes[1] += 1
        self.notes[5] += self._where() != self.notes[2:4].tolist()

    def run(self, callable, view, config):
        self.notes[4] += 1
        self.notes[5] += self._where() != self.notes[2:4].tolist()
        callable(view, config)


@pytest.fixture
def notes():
    with Worker(3) as memory:
        yield memory.share(np.zeros(6, np.int64))


@pytest.mark.spec("WM-KIND-1")
@pytest.mark.parametrize(
    ("mode", "pool", "when"),
    [
        ("process", "next_level", "before the start"),
        ("process", "sub", "after it"),
        ("thread", "next_level", "after it"),
        ("thread", "sub", "before the start"),
    ],
)
def test_any_object_with_run_serves_either_pool(notes, mode, pool, when):
    w = Worker(3, child_mode=mode)
    getattr(w, f"add_{pool}")(Calculator(notes))
    with w:
        data = w.share(np.arange(5, dtype=np.int64))
        configs = w.share(np.zeros(2, np.int64))

        def scale(view, config):
            assert type(config) is CallConfig
            view.tensor(0).numpy()[:] *= view.scalar(0)
            configs[:] = config.block_dim, config.aicpu_thread_num

        if when == "after it":
            w.start()
        handle, args = w.register(scale), make_args((data, T.INOUT), scalars=[3])
        if pool == "sub":
            w.run(lambda orch, *_: orch.submit_sub(handle, args))
            assert configs.tolist() == [0, 3], "the default"
        else:
            config = CallConfig(block_dim=5, aicpu_thread_num=2)
            w.run(lambda orch, *_: orch.submit_next_level(handle, args, config))
            assert configs.tolist() == [5, 2]
        assert (data.tolist(), notes[4]) == ([0, 3, 6, 9, 12], 1)


@pytest.mark.spec("WM-KIND-2")
@pytest.mark.parametrize(("mode", "last_fails"), [("process", False), ("thread", True)])
def test_start_and_stop_are_called_once_where_the_tasks_are(notes, mode, last_fails):
    def fail(view, config):
        raise ValueError

    w = Worker(3, child_mode=mode)
    w.add_next_level(Calculator(notes))
    with w:
        assert notes[0] == 0, "not before the start"
        fine, failing = w.register(lambda view, config: None), w.register(fail)
        for _ in range(3):
            w.run(lambda orch, *_: [orch.submit_next_level(fine) for _ in range(3)])
        if last_fails:
            with pytest.raises(RuntimeError):
                w.run(lambda orch, *_: orch.submit_next_level(failing))
        starts, stops, pid, thread, runs, _ = notes.tolist()
        assert (starts, stops, runs) == (1, 0, 9 + last_fails)
        assert (pid == os.getpid()) == (mode == "thread")
        assert thread != threading.get_native_id()
    assert notes[[0, 1, 5]].tolist() == [1, 1, 0]


@pytest.mark.spec("WM-KIND-3")
def test_an_object_without_run_is_refused_and_adds_nothing_and_level_2_takes_none():
    w = Worker(3, num_sub_workers=1)
    for bad in (object(), 5, lambda: None, None, "run"):
        for add in (w.add_next_level, w.add_sub):
            with pytest.raises(TypeError, match="run"):
                add(bad)
    with w:
        handle = w.register(lambda: None)

        def orch_fn(orch, *_):
            with pytest.raises(ValueError, match="has 1"):
                orch.submit_sub_group(handle, [TaskArgs()] * 2)
            with pytest.raises(RuntimeError, match="no next-level workers"):
                orch.submit_next_level(handle)

        w.run(orch_fn)
    lowest = Worker(2)
    for add in (lowest.add_next_level, lowest.add_sub):
        with pytest.raises(RuntimeError, match="level 2"):
            add(Calculator(None))
