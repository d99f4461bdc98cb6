"""WM-CHIP: workers that are chips."""

from types import SimpleNamespace

import numpy as np
import pytest

from simpler_ref import CallConfig, ContinuousTensor, DataType, TaskArgs, TaskError, Worker
from simpler_ref import TensorArgType as T
from simpler_ref.errors import ControlError
from simpler_ref.native_chip import ChipCallable
from tests.chip_kernels import add_core, orchestration
from tests.support import make_args

N = 100


def adding() -> ChipCallable:
    return ChipCallable.from_kernel(add_core())


def device(address):
    return ContinuousTensor.make(address, (N,), DataType.FLOAT32, child_memory=True)


# ---------------------------------------------------------------- a worker for each device
@pytest.mark.spec("WM-CHIP-1")
@pytest.mark.parametrize("when", ["before the start", "after it", "in a run"])
def test_every_chip_runs_chip_callables(mode, when):
    with Worker(3, device_ids=[3, 0], child_mode=mode) as w:
        x = w.share(np.arange(N, dtype=np.float32))
        y = [w.empty((N,), np.float32) for _ in range(2)]
        if when != "before the start":
            w.start()
        if when != "in a run":
            handle = w.register(adding())

        def orch_fn(orch, *_):
            add = w.register(adding()) if when == "in a run" else handle
            for chip in range(2):
                args = make_args((x, T.INPUT), (x, T.INPUT), (y[chip], T.OUTPUT_EXISTING))
                orch.submit_next_level(add, args, CallConfig(block_dim=3), worker=chip)

        timing = w.run(orch_fn)
        assert all((one == 2 * x).all() for one in y)
        assert timing.device_wall_ns > 0


@pytest.mark.spec("WM-CHIP-1")
def test_chips_and_sub_workers_work_on_the_same_memory():
    with Worker(3, device_ids=[0, 1], num_sub_workers=1) as w:
        x, y = w.share(np.ones(N, np.float32)), w.share(np.zeros(N, np.float32))
        add = w.register(adding())

        def negate(args):
            np.negative(args.tensor(0).numpy(), out=args.tensor(0).numpy())

        negating = w.register(negate)

        def orch_fn(orch, *_):
            for _ in range(3):
                orch.submit_next_level(add, make_args((x, T.INPUT), (y, T.INPUT), (y, T.INOUT)))
                orch.submit_sub(negating, make_args((y, T.INOUT)))

        w.run(orch_fn)
        assert (y == -1).all(), "1, -1, 0, 0, 1, -1"


@pytest.mark.spec("WM-CHIP-1")
def test_a_group_runs_on_several_chips(mode):
    with Worker(3, device_ids=[0, 1], child_mode=mode) as w:
        x = [w.share(np.full(N, i + 1, np.float32)) for i in range(2)]
        out = ContinuousTensor.make(0, (N,), DataType.FLOAT32)
        add = w.register(adding())

        def orch_fn(orch, *_):
            members = [make_args((one, T.INPUT), (one, T.INPUT), (out, T.OUTPUT)) for one in x]
            orch.submit_next_level_group(add, members, workers=[1, 0])
            total = w.empty((N,), np.float32)
            sums = [(one.tensor(2), T.INPUT) for one in members]
            orch.submit_next_level(add, make_args(*sums, (total, T.OUTPUT_EXISTING)))
            orch_fn.total = total

        w.run(orch_fn)
        assert (orch_fn.total == 2 + 4).all()


# ---------------------------------------------------------------- chip callables and nothing else
@pytest.mark.spec("WM-CHIP-2")
def test_each_pool_refuses_the_others_callables_and_names_both():
    with Worker(3, device_ids=[0], num_sub_workers=1) as w:
        chip, python = w.register(adding()), w.register(lambda args: None)

        def orch_fn(orch, *_):
            for call in (
                lambda: orch.submit_next_level(python),
                lambda: orch.submit_next_level_group(python, [TaskArgs()]),
            ):
                with pytest.raises(TypeError, match=r"LOCAL_PYTHON.*LOCAL_CHIP"):
                    call()
            for call in (
                lambda: orch.submit_sub(chip),
                lambda: orch.submit_sub_group(chip, [TaskArgs()]),
            ):
                with pytest.raises(TypeError, match=r"LOCAL_CHIP.*LOCAL_PYTHON"):
                    call()

        assert w.run(orch_fn).tasks == 0


# ---------------------------------------------------------------- memory of a chip
@pytest.mark.spec("WM-CHIP-3")
@pytest.mark.parametrize("where", ["worker", "orch"])
def test_memory_goes_to_a_chip_and_back(mode, where):
    with Worker(3, device_ids=[0, 1], child_mode=mode) as w:
        x = w.share(np.arange(N, dtype=np.float32))
        y = w.share(np.zeros(N, np.float32))
        size = x.nbytes

        def body(orch, *_):
            malloc = w.malloc if where == "worker" else lambda n, chip: orch.malloc(chip, n)
            free = w.free if where == "worker" else lambda p, chip: orch.free(chip, p)
            to = (
                w.copy_to
                if where == "worker"
                else lambda d, s, n, chip: orch.copy_to(chip, d, s, n)
            )
            back = (
                w.copy_from
                if where == "worker"
                else lambda d, s, n, chip: orch.copy_from(chip, d, s, n)
            )
            there = malloc(size, 1)
            to(there, x.ctypes.data, size, 1)
            with pytest.raises(ControlError, match="chip_worker 0"):
                back(y.ctypes.data, there + (1 << 40), size, 0)
            back(y.ctypes.data, there, size, 1)
            assert (y == x).all()
            free(there, 1)
            with pytest.raises(ControlError, match="chip_worker 1"):
                free(there, 1)

        body(None) if where == "worker" else w.run(body)


@pytest.mark.spec("WM-CHIP-3")
def test_host_memory_that_the_chips_process_cannot_see_is_refused():
    with Worker(3, device_ids=[0]) as w:
        private = np.zeros(N, np.float32)
        there = w.malloc(private.nbytes)
        for copy in (
            lambda: w.copy_to(there, private.ctypes.data, private.nbytes),
            lambda: w.copy_from(private.ctypes.data, there, private.nbytes),
        ):
            with pytest.raises(ValueError, match="cannot see"):
                copy()


# ---------------------------------------------------------------- child_memory
@pytest.mark.spec("WM-CHIP-4")
def test_a_tensor_in_a_chips_memory_is_used_where_it_is(mode):
    with Worker(3, device_ids=[0, 1], child_mode=mode) as w:
        x = w.share(np.arange(N, dtype=np.float32))
        y = w.share(np.zeros(N, np.float32))
        there = w.malloc(x.nbytes, 1)
        w.copy_to(there, x.ctypes.data, x.nbytes, 1)
        add = w.register(adding())

        def orch_fn(orch, *_):
            for _ in range(3):
                args = make_args(
                    (device(there), T.INPUT), (device(there), T.INPUT), (device(there), T.INOUT)
                )
                orch.submit_next_level(add, args, worker=1)
            last = make_args((x, T.INPUT), (device(there), T.INPUT), (y, T.OUTPUT_EXISTING))
            orch.submit_next_level(add, last, worker=1)

        assert w.run(orch_fn).edges == 3
        assert (y == 8 * x + x).all()


@pytest.mark.spec("WM-CHIP-4")
def test_equal_addresses_on_two_chips_do_not_depend_on_each_other():
    w = Worker(3)
    for _ in range(2):  # simulated chips have no equal addresses
        w.add_next_level(SimpleNamespace(run=lambda *_: None))
    with w:
        handle = w.register(len)

        def orch_fn(orch, *_):
            for chip in (0, 1, 0):
                orch.submit_next_level(handle, make_args((device(4096), T.INOUT)), worker=chip)

        assert w.run(orch_fn).edges == 1


@pytest.mark.spec("WM-CHIP-8")
def test_memory_of_another_chip_fails_the_task_and_names_both(mode):
    with Worker(3, device_ids=[4, 9], child_mode=mode) as w:
        ones = w.share(np.ones(N, np.float32))
        result = w.empty((N,), np.float32)
        result[:] = 7
        there = [w.malloc(4 * N, chip) for chip in range(2)]
        for chip in range(2):
            w.copy_to(there[chip], ones.ctypes.data, 4 * N, chip)
        add = w.register(adding())

        def submit(orch, chip, tensor, out):
            args = make_args((ones, T.INPUT), (tensor, T.INPUT), (out, T.OUTPUT_EXISTING))
            orch.submit_next_level(add, args, worker=chip)

        words = f"chip_worker 0 .*address {there[1]:#x} belongs to device 9, this is device 4"
        for tensors in ((device(there[1]), result), (ones, device(there[1]))):
            with pytest.raises(TaskError, match=words):
                w.run(lambda orch, *_, tensors=tensors: submit(orch, 0, *tensors))
        for call in (
            lambda: w.copy_to(there[1], ones.ctypes.data, 4 * N, 0),
            lambda: w.copy_from(ones.ctypes.data, there[1], 4 * N, 0),
            lambda: w.free(there[1], 0),
        ):
            with pytest.raises(ControlError, match="belongs to device 9, this is device 4"):
                call()
        assert (result == 7).all()
        w.run(lambda orch, *_: submit(orch, 1, device(there[1]), result))
        assert (result == 2).all(), "what was there has not been written"


# ---------------------------------------------------------------- a task that fails
@pytest.mark.spec("WM-CHIP-5")
def test_a_chip_that_fails_a_task_says_which_and_why_and_runs_the_next(mode):
    with Worker(3, device_ids=[4], child_mode=mode) as w:
        bad = w.register(orchestration("fails"))
        good = w.register(orchestration("nothing"))
        for _ in range(2):
            words = r"level 3 chip_worker 0 device=4.*task 0 \(fails\).*no luck today"
            with pytest.raises(TaskError, match=words):
                w.run(lambda orch, *_: orch.submit_next_level(bad))
            w.run(lambda orch, *_: orch.submit_next_level(good))


# ---------------------------------------------------------------- where chips belong
@pytest.mark.spec("WM-CHIP-6")
def test_device_ids_are_for_level_3_and_distinct():
    for level in (4, 5):
        with pytest.raises(RuntimeError, match="device_ids are only supported on L3"):
            Worker(level, device_ids=[0])
    with pytest.raises(ValueError, match="twice"):
        Worker(3, device_ids=[0, 1, 0])
    with pytest.raises(ValueError, match="level 2"):
        Worker(3, device_id=0)
    for bad in (-1, 1 << 40):
        with pytest.raises(ValueError, match="device_id"):
            Worker(3, device_ids=[bad])
    for more in ({"num_sub_workers": 1}, {"device_ids": [0]}):
        with pytest.raises(ValueError, match="level 2"):
            Worker(2, **more)


# ---------------------------------------------------------------- level 2
@pytest.mark.spec("WM-CHIP-7")
def test_a_level_2_worker_runs_a_chip_callable_and_returns_when_it_is_done(mode):
    with Worker(2, device_id=1, child_mode=mode) as w:
        x, y = w.share(np.ones(N, np.float32)), w.share(np.zeros(N, np.float32))
        add = w.register(adding())
        args = make_args((x, T.INPUT), (x, T.INPUT), (y, T.OUTPUT_EXISTING))
        timing = w.run(add, args, CallConfig(block_dim=2))
        assert (y == 2).all()
        assert 0 < timing.device_wall_ns <= timing.host_wall_ns
        bad = w.register(orchestration("fails"))
        with pytest.raises(TaskError, match="no luck today"):
            w.run(bad)


@pytest.mark.spec("WM-CHIP-7")
def test_a_level_2_worker_takes_nothing_else():
    with Worker(2) as w:
        for bad in (lambda *_: None, None, 5, adding()):
            with pytest.raises(TypeError, match="CallableHandle"):
                w.run(bad)
        with pytest.raises(ValueError, match="CALLABLE_KIND_UNSUPPORTED"):
            w.register(lambda args: None)
    other = Worker(3, device_ids=[0])
    foreign = other.register(adding())
    with Worker(2) as w, pytest.raises(KeyError, match="does not belong to this Worker"):
        w.run(foreign)
