"""WM-KIND: workers of your own."""

import os
import threading

import numpy as np
import pytest

from simpler_ref import CallConfig, TaskArgs, Worker
from simpler_ref import TensorArgType as T
from simpler_ref.workers.kinds import WorkerKind
from tests.support import make_args

MODES = pytest.mark.parametrize("mode", ["process", "thread"])


class Calculator:
    """A worker that is no function caller: its callables are operations on the whole task."""

    def __init__(self, notes):
        self.notes = notes  # shared: [starts, stops, pid, thread, runs, foreign]

    def _where(self):
        return os.getpid(), threading.get_native_id()

    def start(self):
        self.notes[0] += 1
        self.notes[2:4] = self._where()

    def stop(self):
        self.notes[1] += 1
        self.notes[5] += (*self._where(),) != tuple(self.notes[2:4].tolist())

    def run(self, callable, view, config):
        self.notes[4] += 1
        self.notes[5] += (*self._where(),) != tuple(self.notes[2:4].tolist())
        callable(view, config)


@pytest.fixture
def memory():
    with Worker(3) as w:
        yield w


# ---------------------------------------------------------------- run(callable, view, config)
@pytest.mark.spec("WM-KIND-1")
@MODES
@pytest.mark.parametrize("pool", ["next_level", "sub"])
@pytest.mark.parametrize("when", ["before the start", "after it"])
def test_any_object_with_run_serves_either_pool(memory, mode, pool, when):
    notes = memory.share(np.zeros(6, np.int64))
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
        handle = w.register(scale)
        args = make_args((data, T.INOUT), scalars=[3])
        if pool == "sub":
            w.run(lambda orch, *_: orch.submit_sub(handle, args))
            assert configs.tolist() == [0, 3], "the default"
        else:
            config = CallConfig(block_dim=5, aicpu_thread_num=2)
            w.run(lambda orch, *_: orch.submit_next_level(handle, args, config))
            assert configs.tolist() == [5, 2]
        assert data.tolist() == [0, 3, 6, 9, 12]
        assert notes[4] == 1


@pytest.mark.spec("WM-KIND-1")
def test_the_callable_is_what_was_registered_and_is_the_objects_to_interpret(memory):
    class Knows:
        def __call__(self):
            raise AssertionError("nobody calls it")

        number = 42

    class Reads:
        def __init__(self, out):
            self.out = out

        def run(self, callable, view, config):
            self.out[0] = callable.number

    out = memory.share(np.zeros(1, np.int64))
    w = Worker(3)
    w.add_next_level(Reads(out))
    with w:
        handle = w.register(Knows())
        w.run(lambda orch, *_: orch.submit_next_level(handle, TaskArgs()))
    assert out[0] == 42


@pytest.mark.spec("WM-KIND-1")
@MODES
def test_the_class_of_all_kinds_can_be_extended(memory, mode):
    class Doubler(WorkerKind):
        label = "doubler"

        def install(self, target):
            return lambda x: target(target(x))

        def run(self, callable, view, config):
            array = view.tensor(0).numpy()
            array[:] = callable(array)

    w = Worker(3, child_mode=mode)
    w.add_next_level(Doubler())
    with w:
        data = w.share(np.ones(3, np.int64))
        handle = w.register(lambda x: x * 3)
        w.run(lambda orch, *_: orch.submit_next_level(handle, make_args((data, T.INOUT))))
        assert data.tolist() == [9, 9, 9]


# ---------------------------------------------------------------- start and stop
@pytest.mark.spec("WM-KIND-2")
@MODES
def test_start_and_stop_are_called_once_where_the_tasks_are(memory, mode):
    notes = memory.share(np.zeros(6, np.int64))
    w = Worker(3, child_mode=mode)
    w.add_next_level(Calculator(notes))
    with w:
        assert notes[0] == 0, "not before the start"
        handle = w.register(lambda view, config: None)
        for _ in range(3):
            w.run(lambda orch, *_: [orch.submit_next_level(handle) for _ in range(3)])
        starts, stops, pid, thread, runs, foreign = notes.tolist()
        assert (starts, stops, runs, foreign) == (1, 0, 9, 0)
        assert (pid == os.getpid()) == (mode == "thread")
        assert thread != threading.get_native_id()
    assert notes[:2].tolist() == [1, 1]
    assert notes[5] == 0


@pytest.mark.spec("WM-KIND-2")
@MODES
def test_stop_is_called_also_when_the_last_task_failed(memory, mode):
    notes = memory.share(np.zeros(6, np.int64))
    w = Worker(3, child_mode=mode)
    w.add_next_level(Calculator(notes))
    with w:

        def fail(view, config):
            raise ValueError

        handle = w.register(fail)
        with pytest.raises(RuntimeError):
            w.run(lambda orch, *_: orch.submit_next_level(handle))
    assert notes[1] == 1


# ---------------------------------------------------------------- no run
@pytest.mark.spec("WM-KIND-3")
@pytest.mark.parametrize("bad", [object(), 5, lambda: None, None, "run"])
def test_an_object_without_run_is_refused_and_adds_nothing(bad):
    w = Worker(3, num_sub_workers=1)
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


@pytest.mark.spec("WM-KIND-3")
def test_nothing_can_be_added_to_a_level_2_worker():
    w = Worker(2)
    for add in (w.add_next_level, w.add_sub):
        with pytest.raises(RuntimeError, match="level 2"):
            add(Calculator(None))


# ---------------------------------------------------------------- what it holds
@pytest.mark.spec("WM-KIND-4")
def test_what_an_object_holds_is_there_in_its_process(memory):
    class Holds:
        def __init__(self, shared):
            self.shared = shared
            self.lock = threading.Lock()
            self.read, self.write = os.pipe()

        def run(self, callable, view, config):
            with self.lock:
                self.shared[:] = 7
            os.write(self.write, b"done")

    mine = Holds(memory.share(np.zeros(2, np.int64)))
    try:
        w = Worker(3)
        w.add_next_level(mine)
        with w:
            handle = w.register(lambda: None)
            w.run(lambda orch, *_: orch.submit_next_level(handle))
        assert mine.shared.tolist() == [7, 7]
        assert os.read(mine.read, 10) == b"done"
    finally:
        os.close(mine.read)
        os.close(mine.write)
