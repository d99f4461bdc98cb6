"""WM-CHIP: workers that are chips."""

import numpy as np
import psutil
import pytest

from simpler_ref import CallConfig, ContinuousTensor, DataType, TaskArgs, TaskError, Worker
from simpler_ref import TensorArgType as T
from simpler_ref.errors import ControlError
from simpler_ref.native_chip import ChipCallable, ChipStorageTaskArgs
from tests.chip_kernels import add_core, orchestration
from tests.support import make_args

N = 100


def adding() -> ChipCallable:
    return ChipCallable.from_kernel(add_core())


def sum_of(x, y, out, tag=T.OUTPUT_EXISTING):
    """Return the arguments of the chip that adds."""
    return make_args((x, T.INPUT), (y, T.INPUT), (out, tag))


def full(w, value):
    """Return numbers that the chips can see."""
    return w.share(np.full(N, value, np.float32))


@pytest.mark.spec("WM-CHIP-1")
@pytest.mark.parametrize(
    ("mode", "when"),
    [("process", "before the start"), ("process", "in a run"), ("thread", "after it")],
)
def test_every_chip_runs_chip_callables(mode, when):
    with Worker(3, device_ids=[3, 0], child_mode=mode) as w:
        x = w.share(np.arange(N, dtype=np.float32))
        y = [full(w, 0) for _ in range(2)]
        if when != "before the start":
            w.start()
        if when != "in a run":
            handle = w.register(adding())

        def orch_fn(orch, *_):
            add = w.register(adding()) if when == "in a run" else handle
            for chip in range(2):
                args = sum_of(x, x, y[chip])
                orch.submit_next_level(add, args, CallConfig(block_dim=3), worker=chip)

        timing = w.run(orch_fn)
        assert all((one == 2 * x).all() for one in y)
        assert timing.device_wall_ns > 0


@pytest.mark.spec("WM-CHIP-2")
def test_each_pool_refuses_the_others_callables_and_names_both():
    with Worker(3, device_ids=[0], num_sub_workers=1) as w:
        chip, python = w.register(adding()), w.register(lambda args: None)

        def orch_fn(orch, *_):
            for submit, handle, words in (
                (orch.submit_next_level, python, r"LOCAL_PYTHON.*LOCAL_CHIP"),
                (orch.submit_next_level_group, python, r"LOCAL_PYTHON.*LOCAL_CHIP"),
                (orch.submit_sub, chip, r"LOCAL_CHIP.*LOCAL_PYTHON"),
                (orch.submit_sub_group, chip, r"LOCAL_CHIP.*LOCAL_PYTHON"),
            ):
                with pytest.raises(TypeError, match=words):
                    submit(handle, [TaskArgs()] if "group" in submit.__name__ else TaskArgs())

        assert w.run(orch_fn).tasks == 0


@pytest.mark.spec("WM-CHIP-3")
@pytest.mark.parametrize(("mode", "where"), [("process", "worker"), ("thread", "orch")])
def test_memory_goes_to_a_chip_and_back(mode, where):
    """Host memory that the chip's process cannot see is refused."""
    with Worker(3, device_ids=[0, 1], child_mode=mode) as w:
        x, y = w.share(np.arange(N, dtype=np.float32)), full(w, 0)

        def use(orch=None, *_):
            def call(name, *args, chip=1):  # the chip comes last in those of a Worker
                return getattr(orch, name)(chip, *args) if orch else getattr(w, name)(*args, chip)

            there = call("malloc", x.nbytes)
            call("copy_to", there, x.ctypes.data, x.nbytes)
            with pytest.raises(ControlError, match="chip_worker 0"):
                call("copy_from", y.ctypes.data, there + (1 << 40), x.nbytes, chip=0)
            call("copy_from", y.ctypes.data, there, x.nbytes)
            assert (y == x).all()
            if mode == "process":
                private = np.zeros(N, np.float32).ctypes.data
                with pytest.raises(ValueError, match="cannot see"):
                    call("copy_to", there, private, x.nbytes)
                with pytest.raises(ValueError, match="cannot see"):
                    call("copy_from", private, there, x.nbytes)
            call("free", there)
            with pytest.raises(ControlError, match="chip_worker 1"):
                call("free", there)

        use() if where == "worker" else w.run(use)


@pytest.mark.spec("WM-CHIP-4")
def test_a_tensor_in_a_chips_memory_is_used_where_it_is():
    with Worker(3, device_ids=[0, 1]) as w:
        x, y = w.share(np.arange(N, dtype=np.float32)), full(w, 0)
        at = w.malloc(x.nbytes, 1)
        w.copy_to(at, x.ctypes.data, x.nbytes, 1)
        there = ContinuousTensor.make(at, (N,), DataType.FLOAT32, child_memory=True)
        add = w.register(adding())

        def orch_fn(orch, *_):
            for _ in range(3):
                orch.submit_next_level(add, sum_of(there, there, there, T.INOUT), worker=1)
            orch.submit_next_level(add, sum_of(x, there, y), worker=1)

        assert w.run(orch_fn).edges == 3
        assert (y == 8 * x + x).all()


@pytest.mark.spec("WM-CHIP-5")
def test_a_chip_that_fails_a_task_says_which_and_why_and_runs_the_next(mode):
    with Worker(3, device_ids=[4], child_mode=mode) as w:
        bad, good = w.register(orchestration("fails")), w.register(orchestration("nothing"))
        for _ in range(2):
            words = r"level 3 chip_worker 0 device=4.*task 0 \(fails\).*no luck today"
            with pytest.raises(TaskError, match=words):
                w.run(lambda orch, *_: orch.submit_next_level(bad))
            w.run(lambda orch, *_: orch.submit_next_level(good))


@pytest.mark.spec("WM-CHIP-6")
def test_device_ids_are_for_level_3_and_distinct():
    for level, options, words in (
        (3, {"device_ids": [0, 1, 0]}, "twice"),
        (3, {"device_id": 0}, "level 2"),
        (3, {"device_ids": [-1]}, "device_id"),
        (3, {"device_ids": [1 << 40]}, "device_id"),
        (2, {"num_sub_workers": 1}, "level 2"),
        (2, {"device_ids": [0]}, "level 2"),
    ):
        with pytest.raises(ValueError, match=words):
            Worker(level, **options)
    above = r"only supported on L3.*device_ids=\[0, 2\]"
    for level in (4, 5):
        for use in (Worker.init, Worker.start, lambda w: w.run(lambda *_: None)):
            with Worker(level, device_ids=[0, 2]) as w, pytest.raises(RuntimeError, match=above):
                use(w)
        w, child = Worker(level, device_ids=[0]), Worker(3)
        with pytest.raises(RuntimeError, match="cannot be combined with device_ids"):
            w.add_worker(child)
        with pytest.raises(RuntimeError, match="only supported on L3"):
            Worker(level + 1).add_worker(w)
        with Worker(4) as other:
            other.add_worker(child)  # it is nobody's child yet


@pytest.mark.spec("WM-CHIP-7")
def test_a_level_2_worker_runs_a_chip_callable_and_returns_when_it_is_done(mode):
    """It takes the arguments of the L2 ABI, too."""
    with Worker(2, device_id=1, child_mode=mode) as w:
        x, y = full(w, 1), full(w, 0)
        of_l2 = ChipStorageTaskArgs()
        for array in (x, x, y):
            of_l2.add_tensor(ContinuousTensor.make(array.ctypes.data, array.shape, array.dtype))
        adds, fails = w.register(adding()), w.register(orchestration("fails"))
        for args in (sum_of(x, x, y), of_l2):
            y[:] = 0
            timing = w.run(adds, args, CallConfig(block_dim=2))
            assert (y == 2).all()
            assert 0 < timing.device_wall_ns <= timing.host_wall_ns
        of_l2.add_scalar(7)
        for args, words in (((), "no luck today"), ((of_l2,), "got 3 and 1")):
            with pytest.raises(TaskError, match=words):
                w.run(fails, *args)
    again = of_l2.task_args()
    assert [again.tensor(i) for i in range(3)] == [of_l2.tensor(i) for i in range(3)]
    assert (again.scalar(0), len(again)) == (7, 4)


@pytest.mark.spec("WM-CHIP-9")
def test_by_default_a_level_2_worker_takes_private_memory_and_makes_no_process():
    before = psutil.Process().children(recursive=True)
    x = np.arange(64, dtype=np.float32)
    y, back = np.zeros(64, np.float32), np.zeros(64, np.float32)
    with Worker(2) as w:
        early, handle = sum_of(x, x, y), w.register(adding())
        w.run(handle, early)
        assert (y == 2 * x).all()
        w.run(handle, sum_of(x, y, y))
        assert (y == 3 * x).all()
        at = w.malloc(x.nbytes)
        w.copy_to(at, x.ctypes.data, x.nbytes)
        w.copy_from(back.ctypes.data, at, x.nbytes)
        w.free(at)
        assert (back == x).all()
        assert (psutil.Process().children(recursive=True), w.child_mode) == (before, "thread")
