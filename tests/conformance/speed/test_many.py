"""SPEED-MANY: many tasks in one call."""

import ctypes
import mmap

import numpy as np
import pytest

from simpler_ref import CallConfig, ContinuousTensor, DataType, RingFullError, Rows, Worker
from simpler_ref.jit import layout as L
from simpler_ref.jit.kernel import INTERPRETED
from simpler_ref.orch import orchestrator
from simpler_ref.task_interface import TensorArgType as T
from simpler_ref.task_interface import make_tensor
from tests.by_hand import ByHand
from tests.conformance.see.conftest import Below
from tests.support import Gate, Terminated, make_args, terminated_after

KIB = 1024


B = np.frombuffer(mmap.mmap(-1, 4096), np.int32)[:64].reshape(8, 4, 2)
"""Shared memory whose rows are the tensors of a column."""


def output(nbytes):
    return ContinuousTensor.make(0, (nbytes,), DataType.UINT8)


@pytest.fixture
def hand():
    """Give a Worker with an open run, two sub workers that never answer, and memory to pass."""
    with ByHand() as made:
        yield made


@pytest.fixture
def next_level():
    """The same with three next-level workers."""

    def prepare(worker):
        for _ in range(3):
            worker.add_next_level(Below())
        return worker.register(repr)

    with ByHand(prepare) as made:
        yield made


# ---------------------------------------------------------------- the same as a loop
@pytest.mark.spec("SPEED-MANY-1")
def test_tasks_for_next_level_workers_get_their_workers_and_configuration():
    class Note:
        def __init__(self, number):
            self.number = number

        def run(self, callable, view, config):
            view.tensor(0).numpy()[:] = view.scalar(0), config.block_dim, self.number

    worker = Worker(3)
    for number in range(3):
        worker.add_next_level(Note(number))
    with worker as w:
        handle, table = w.register(repr), w.empty((20, 3), np.int64)
        workers, config = [i * i % 3 for i in range(19)], CallConfig(block_dim=5)

        def orch_fn(orch, args, _):
            many, last = ([rows] for rows in (table[:19], table[19:]))
            submit, tags = orch.submit_next_level_many, [T.OUTPUT_EXISTING]
            submit(handle, many, tags, [np.arange(19)], config, workers=workers)
            submit(handle, last, tags, [19], config, workers=1)

        assert w.run(orch_fn).tasks == 20
        assert table.tolist() == [[i, 5, on] for i, on in enumerate([*workers, 1])]


# ---------------------------------------------------------------- columns
COLUMNS = [
    *(np.array([-1, 2, 3], np.int8), np.array([1, 2, 1 << 63], np.uint64)),
    *(np.array([1.5, -0.0, np.inf]), np.array([1.5, -2.0, np.nan], np.float32)),
    *(np.array([1.5, -2.0, 3.0], np.float16), np.array([True, False, True])),
    *(np.array([1, 2, 3], ">i4"), np.arange(6, dtype=np.float64)[::2]),
    *(-7, 0.25, np.float32(0.25), np.array(3), ctypes.c_float(1.5), (1 << 64) - 1),
]


@pytest.mark.spec("SPEED-MANY-2")
def test_scalars_travel_as_those_of_add_scalar_do(hand):
    hand.orch.submit_sub_many(hand.sub, scalars=COLUMNS, count=3)
    for i, body in enumerate(bodies(hand, 3)):
        row = [column[i] if np.shape(column) else column for column in COLUMNS]
        sent = hand.mem[body : body + len(row) * L.SCALAR_WORDS].tobytes()
        assert sent == b"".join(make_args(scalars=row)._scalars)


def bodies(hand, count):
    """Return where the arguments of the first tasks stand."""
    slots = int(hand.mem[L.A_SLOTS])
    return [int(hand.mem[slots + i * L.SLOT_WORDS + L.S_BODY]) for i in range(count)]


# ---------------------------------------------------------------- wrong arguments
def given(*tensors, **more):
    """Return arguments of a call with these columns, all of them inputs."""
    return {"tensors": list(tensors), "tags": [T.INPUT] * len(tensors)} | more


PRIVATE = np.zeros((8, 2), np.float32)
WRONG = [
    (given(tensors=B, tags=[T.INPUT]), "tensors must be a list"),
    (given(B, tags=T.INPUT), "tags must be a list"),
    (given(B, B, tags=[T.INPUT]), "tags has 1 entries for 2"),
    (given(B, B[:7]), r"tensors\[1\] has an entry for each of 7 tasks, tensors\[0\] for each of 8"),
    ({"scalars": [np.zeros(4), np.ones(1)]}, r"scalars\[1\] .* 1 tasks, scalars\[0\] .* 4"),
    (given(B, count=9), r"tensors\[0\] .* 8 tasks, count .* 9"),
    ({"count": -1}, "count=-1"),
    (given(make_tensor(B)), "give count="),
    (given(B[:, :, 0]), r"tensors\[0\].*not contiguous"),
    (given(B[0, 0, 0:1].reshape(())), r"tensors\[0\] has no axis of tasks"),
    (given(B, PRIVATE), r"tensors\[1\].*cannot see"),
    (given([B[0], B[1]]), r"tensors\[0\] is a list; .* are submitted one by one"),
    (given(B, Rows(B, [0, 8] * 4)), r"tensors\[1\].*names row 8, the array has 8 rows"),
    (given(Rows(B, [0.5])), r"tensors\[0\].*shape \(1,\) and dtype float64; give one integer"),
    (given(Rows([B[0]], [0])), r"tensors\[0\].*Rows takes an array.*not list"),
    (given(Rows(B, [[0], [1, 2]])), r"tensors\[0\]: the index of Rows is no array of integers"),
    (given(B.view(np.complex64)), r"tensors\[0\].*complex64"),
    (given(B.reshape(8, 1, 1, 1, 1, 4, 2)), r"tensors\[0\].*dimensions"),
    (given(17), r"tensors\[0\] is a int"),
    (given(B, tags=[9]), "9 is no TensorArgType"),
    ({"scalars": [np.zeros(3, np.longdouble)]}, r"scalars\[0\]: dtype float128"),
    ({"scalars": ["5"]}, r"scalars\[0\]: scalar '5' is a str"),
    ({"scalars": [[1, 2]]}, r"scalars\[0\]: scalar \[1, 2\] is a list.*or an array"),
    ({"scalars": np.zeros(3)}, r"scalars has shape \(3,\)"),
    ({"scalars": [np.zeros((8, 2))]}, r"scalars\[0\] has shape \(8, 2\); a column"),
    ({"scalars": [1 << 64]}, "does not fit 64 bits"),
    ({"count": 1 << 63}, "count=9223372036854775808 is out of range"),
    ({"scalars": np.zeros((2, 1900))}, "the arguments take 15208 bytes"),
    (
        {"tensors": [output(1 << 20)], "tags": [T.OUTPUT], "count": 2},
        "exceeds per-ring heap size: 1.0 MiB",
    ),
]


@pytest.mark.spec("SPEED-MANY-5")
def test_a_wrong_argument_is_refused_before_anything_is_submitted(hand):
    before = hand.picture()
    for arguments, message in WRONG:
        with pytest.raises((TypeError, ValueError, OverflowError, RuntimeError), match=message):
            hand.orch.submit_sub_many(hand.sub, **arguments)
        assert hand.picture() == before, message


@pytest.mark.spec("SPEED-MANY-5")
def test_a_wrong_handle_or_worker_is_refused_before_anything_is_submitted(hand, next_level):
    before = hand.picture()
    with pytest.raises(TypeError, match="submit_sub_many expects a CallableHandle"):
        hand.orch.submit_sub_many(print, count=1)
    with pytest.raises(KeyError, match="does not belong"):
        hand.orch.submit_sub_many(next_level.sub, count=1)
    with pytest.raises(RuntimeError, match="no next-level workers"):
        hand.orch.submit_next_level_many(hand.sub, count=1)
    assert hand.picture() == before
    before = next_level.picture()
    for workers, message in [
        (3, "worker 3 is unknown"),
        ([0, 1, -2], "worker -2 is unknown"),
        ([0, 1, 7], "worker 7 is unknown"),
        ([0, 1], r"workers has an entry for each of 2 tasks"),
        ([0.5, 1, 2], "workers must be"),
        (np.array([0, 1, (1 << 64) - 1], np.uint64), "18446744073709551615, which is no worker"),
    ]:
        with pytest.raises(ValueError, match=message):
            many, prepared = next_level.orch.submit_next_level_many, next_level.prepared
            many(prepared, scalars=[np.arange(3)], workers=workers)
    away = ContinuousTensor.make(64, (4,), DataType.UINT8, child_memory=True)
    with pytest.raises(ValueError, match="say which, with worker"):
        next_level.orch.submit_next_level_many(
            next_level.prepared, [away], [T.INPUT], workers=[0, 1, -1]
        )
    config = CallConfig(enable_pmu=3, output_prefix="x")
    with pytest.raises(ValueError, match="enable_pmu is 3"):
        next_level.orch.submit_next_level_many(next_level.prepared, (), (), None, config, count=1)
    assert next_level.picture() == before


# ---------------------------------------------------------------- refused half-way, or made to wait
@pytest.mark.spec("SPEED-MANY-5")
def test_a_task_without_room_stops_the_call_after_those_before_it():
    with ByHand(alloc_timeout_s=0.01) as hand:
        with pytest.raises(RingFullError):
            hand.orch.submit_sub_many(hand.sub, [output(24 * KIB)], [T.OUTPUT], count=4)
        assert int(hand.mem[L.NEXT_TASK_ID]) == 2


@pytest.mark.spec("SPEED-MANY-7")
@pytest.mark.parametrize("limit", [{"heap_ring_size": 8 * KIB}, {"task_window": 4}], ids=str)
def test_where_there_is_no_room_the_call_waits(limit):
    n = 60

    def fill(args):
        args.tensor(0).numpy()[:] = args.scalar(0) + 1
        args.tensor(1).numpy()[:] += args.tensor(0).numpy()[:2]

    with Worker(3, num_sub_workers=2, **limit) as w:
        handle, table = w.register(fill), w.empty((n, 2), np.uint8)
        table[:] = 0

        def orch_fn(orch, args, config):
            for start in range(0, n, 4):
                with orch.scope():
                    tensors = [output(2 * KIB), table[start : start + 4]]
                    numbers = np.arange(start, start + 4)
                    orch.submit_sub_many(handle, tensors, [T.OUTPUT, T.INOUT], [numbers])

        assert w.run(orch_fn).tasks == n
        assert table.tolist() == [[i + 1] * 2 for i in range(n)]


@pytest.mark.spec("SPEED-MANY-7")
@pytest.mark.parametrize(
    "window", [4, 1 << 9 if INTERPRETED else 1 << 16], ids=["waiting", "submitting"]
)
def test_signals_are_seen_during_the_call(window):
    with Worker(3, num_sub_workers=1, task_window=window) as w:
        handle = w.register(lambda args: None)
        w.run(lambda *_: None)

        def orch_fn(orch, args, config):
            with terminated_after(0.2):
                orch.submit_sub_many(handle, count=1 << 40)

        with pytest.raises(Terminated):
            w.run(orch_fn)
        assert w.run(lambda orch, *_: orch.submit_sub_many(handle, count=3)).tasks == 3


@pytest.mark.spec("SPEED-MANY-7")
def test_short_tasks_may_catch_up_and_tasks_that_wait_for_the_program_need_not(monkeypatch):
    monkeypatch.setattr(orchestrator, "MOST_BEHIND", 16)
    monkeypatch.setattr(orchestrator, "FEWEST_PER_SLICE", 1)
    behind = []
    with Gate() as go, Worker(3, num_sub_workers=2) as w:
        quick, waits = w.register(lambda args: None), w.register(lambda args: go.wait())

        def orch_fn(orch, *_):
            orch.submit_sub(waits)
            orch.submit_sub_many(waits, count=100)
            behind.append(orch._view.pushed - orch._view.ended)
            go.open(101)
            orch.drain()
            monkeypatch.setattr(orchestrator, "SLICE_NS", 60 * 10**9)
            for _ in range(10):
                orch.submit_sub_many(quick, count=50)
                behind.append(orch._view.pushed - orch._view.ended)

        w.run(orch_fn)
    assert behind[0] == 101
    assert max(behind[1:]) <= 8


# ---------------------------------------------------------------- passes in bulk
@pytest.mark.spec("SCHED-WAKE-7")
def test_while_all_workers_are_busy_the_sixty_fourth_submit_runs_a_pass(make_driver):
    driver = make_driver(window=256)
    for _ in range(2):
        driver.x.pass_in_bulk(driver.mem, driver.submit())
    for waiting in range(1, 64):
        driver.x.pass_in_bulk(driver.mem, driver.submit())
        assert len(driver.wiring_queue()) == waiting
    driver.x.pass_in_bulk(driver.mem, driver.submit())
    assert driver.wiring_queue() == []
