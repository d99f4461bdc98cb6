"""SPEED-ORCH: compiled orchestration, each way beside the function as it was written."""

from __future__ import annotations

import inspect
import math
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numba
import numpy as np
import pytest
from numba.extending import register_jitable

from simpler_ref import (
    CallConfig,
    ContinuousTensor,
    DataType,
    OrchestrationError,
    RingFullError,
    TaskArgs,
    TaskError,
    Worker,
    orchestration,
)
from simpler_ref import TensorArgType as T
from simpler_ref.engine.shared_arrays import create_region
from simpler_ref.jit import layout as L
from simpler_ref.jit.atomics import load
from simpler_ref.jit.kernel import INTERPRETED
from simpler_ref.system.regions import release
from simpler_ref.task_interface import scalar_to_uint64
from tests.support import Terminated, key, make_args, terminated_after, wait_until
from tests.system.programs import Concurrently


@pytest.fixture
def w():
    with Worker(3, num_sub_workers=2, heap_ring_size=1 << 20) as made:
        made.add, made.add_one, made.note = map(made.register, (add, add_one, note))
        made.fails = made.register(fails)
        yield made


def ways(function):
    """Return an orchestration function compiled, and as it was written."""
    made = orchestration(function)
    return made, made.py_func


def same_run(w, function, *arrays, args=None, config=None):
    """Run a function both ways over zeros; return tasks, edges, ring peaks and arrays of both."""
    seen = []
    for way in ways(function):
        for array in arrays:
            array[...] = 0
        timing = w.run(way, args, config)
        results = [array.tolist() for array in arrays]
        seen.append((timing.tasks, timing.edges, timing.ring_peak_bytes, *results))
    assert seen[0] == seen[1]
    return seen[0]


@register_jitable
def task(tensor, first=None, second=None, tag=T.INOUT):
    """Return the arguments of a task: a tensor and up to two scalars; also in compiled code."""
    a = TaskArgs()
    a.add_tensor(tensor, tag)
    if first is not None:
        a.add_scalar(first)
    if second is not None:
        a.add_scalar(second)
    return a


@numba.njit
def look(words, i):
    """Read a word that others write, each time anew."""
    return load(words, i)


def add_one(args):
    args.tensor(0).numpy()[...] += 1


def add(args):
    args.tensor(1).numpy()[...] += args.tensor(0).numpy()


def note(args):
    """Put the scalars into the tensor."""
    args.tensor(0).numpy()[: args.scalar_count()] = [
        args.scalar(i) for i in range(args.scalar_count())
    ]


def fails(args):
    raise ValueError(f"task {args.scalar(0)} cannot go on")


def outcome(run):
    """Return the exception of a run as its type and its words."""
    with pytest.raises(Exception) as info:
        run()
    return type(info.value), str(info.value)


def refused_alike(w, function, args=None, config=None):
    """Run a function both ways; return the exception that both end with."""
    compiled, written = (outcome(lambda f=f: w.run(f, args, config)) for f in ways(function))
    assert compiled == written
    return compiled


# ---------------------------------------------------------------- the same run
@pytest.mark.spec("SPEED-ORCH-1")
def test_a_stencil_gives_the_same_tasks_edges_rings_and_results(w):
    start = np.arange(48, dtype=np.float32).reshape(6, 8)
    x, y = w.share(start), w.share(np.zeros((6, 8), np.float32))

    def stencil(orch, steps, config):
        rows, _ = x.shape
        for step in range(steps):
            half = orch.alloc((8,), np.float32)
            for i in range(rows):
                for k in range(max(0, i - 1), min(rows, i + 2)):
                    a = TaskArgs()
                    a.add_tensor(x[k], T.INPUT)
                    a.add_tensor(y[i], T.INOUT)
                    a.add_scalar(step)
                    orch.submit_sub(w.add, a)
            a = task(half)
            a.add_tensor(y[0], T.INOUT)
            orch.submit_sub(w.add, a)

    tasks, _, _, rows = same_run(w, stencil, y[1:], args=3)
    assert tasks == 3 * (16 + 2)
    assert rows[0] == (3 * start[:3].sum(0)).tolist()


class Notes:
    """A next-level worker that writes down a task's scalar and its configuration."""

    def run(self, callable, view, config):
        view.tensor(0).numpy()[:2] = view.scalar(0), config.block_dim


def worker_with(count, **more):
    """Return a Worker with so many next-level workers."""
    made = Worker(3, **more)
    for _ in range(count):
        made.add_next_level(Notes())
    return made


@pytest.mark.spec("SPEED-ORCH-1")
def test_next_level_tasks_go_where_they_are_sent_with_their_configuration():
    with_block = CallConfig(block_dim=7)
    with worker_with(3) as w:
        handle = w.register(add_one)
        x = w.share(np.zeros((5, 3), np.int64))

        def send(orch, args, config):
            for worker in range(3):
                a = task(args[worker], worker)
                orch.submit_next_level(handle, a, config, worker=worker)
                orch.submit_next_level(handle, a, with_block)
            pair = (task(args[3], config.block_dim + 1), task(args[4], 5))
            orch.submit_next_level_group(handle, pair, config, workers=(2, -1))

        *_, rows = same_run(w, send, x, args=x, config=CallConfig(block_dim=3))
        assert rows == [[0, 7, 0], [1, 7, 0], [2, 7, 0], [4, 3, 0], [5, 3, 0]]


Tile = namedtuple("Tile", "array handle scale")


@pytest.mark.spec("SPEED-ORCH-1")
def test_arguments_are_arrays_numbers_handles_tensors_and_tuples_of_them(w):
    x = w.share(np.zeros((4, 3), np.int64))
    tensor = ContinuousTensor.make(x[3].ctypes.data, (3,), DataType.INT64)

    def use(orch, args, config):
        tile, numbers, one, nothing = args
        a = task(tile.array[1])
        for number in numbers:
            a.add_scalar(number * tile.scale)
        if nothing is None:
            orch.submit_sub(tile.handle, a)
        b = task(one, one.nbytes() + one.ndims, one.shapes[0])
        b.add_scalar(one.dtype)
        orch.submit_sub(tile.handle, b)

    *_, rows = same_run(w, use, x, args=(Tile(x, w.note, 10), [1, 2, 3], tensor, None))
    assert rows == [[0] * 3, [10, 20, 30], [0] * 3, [25, 3, 7]]


@pytest.mark.spec("SPEED-ORCH-1")
def test_a_scalar_travels_as_the_same_bits(w):
    def keep(args):
        bits, kind = args._scalar(0)
        args.tensor(0).numpy()[:] = int.from_bytes(bits, "little"), kind

    x, handle = w.share(np.zeros(2, np.uint64)), w.register(keep)

    def send(orch, number, config):
        orch.submit_sub(handle, task(x, number))

    for value in (0, 7, -1, True, 2.5, -0.0, math.inf, np.float32(0.1), np.int8(-3)):
        same_run(w, send, x, args=value)
    for value in (np.uint64((1 << 64) - 1), np.uint64(5)):
        assert same_run(w, send, x, args=value)[3][0] == value


@pytest.mark.spec("SPEED-ORCH-1", "SPEED-ORCH-13")
def test_scalars_are_read_as_they_were_added(w):
    values = [-1, 3, 2.5, np.float32(0.1), (1 << 63) + 7, scalar_to_uint64(0.75), -(1 << 63)]

    def keep(args):
        floats = [float(args.scalar(i)) for i in range(args.scalar_count())]
        args.tensor(0).numpy().view(np.float64)[:] = floats

    def read(orch, args, config):
        a = task(x, args.scalar(0), args.scalar(1) + args.scalar(6))
        for i in range(args.scalar_count()):
            a.add_scalar(args.scalar_float(i))
        a.add_scalar(a.scalar(0))
        a.add_scalar(a.scalar_float(4))
        orch.submit_sub(handle, a)

    x, handle = w.empty((11,), np.int64), w.register(keep)
    same_run(w, read, x, args=make_args(scalars=values))
    seen = x.view(np.float64).tolist()
    assert seen == [float(n) for n in (-1, 3 - 2**63, *values[:5], 0.75, -(2**63), -1, 2.5)]


@pytest.mark.skipif(INTERPRETED, reason="NUMBA_DISABLE_JIT=1: nothing is compiled")
@pytest.mark.spec("SPEED-ORCH-10")
@pytest.mark.parametrize("value", [1 << 64, -(1 << 63) - 1])
def test_an_integer_that_no_compiled_one_holds_is_refused_by_name(w, value):
    @orchestration
    def nothing(orch, args, config):
        pass

    for args in (value, (1, value)):
        with pytest.raises(OrchestrationError, match=f"the integer {value} has no compiled form"):
            w.run(nothing, args)


@pytest.mark.skipif(INTERPRETED, reason="NUMBA_DISABLE_JIT=1: nothing is compiled")
@pytest.mark.spec("SPEED-ORCH-13")
def test_a_scalar_that_is_no_integer_of_compiled_code_is_refused():
    @orchestration
    def read(orch, args, config):
        args.scalar(0)

    refused = {
        2.5: (TypeError, "scalar 0 is 2.5, no integer; .*scalar_float"),
        np.float32(0.5): (TypeError, "scalar 0 is 0.5, no integer"),
        (1 << 64) - 1: (OverflowError, "scalar 0 is 18446744073709551615, more than the signed 64"),
        scalar_to_uint64(-1): (OverflowError, "scalar 0 is 18446744073709551615"),
    }
    w = Worker(4)
    w.add_worker(Worker(3))
    with w:
        below = w.register(read)
        pass_on = lambda orch, args, config: orch.submit_next_level(below, args)  # noqa: E731
        for value, (kind, words) in refused.items():
            args = make_args(scalars=[value])
            with pytest.raises(kind, match=words):
                w.run(read, args)
            with pytest.raises(TaskError, match=f"{kind.__name__}: {words}"):
                w.run(pass_on, args)
        for way in (read, pass_on):
            w.run(way, make_args(scalars=[-1]))


@pytest.mark.spec("SPEED-ORCH-1")
def test_functions_made_with_njit_can_be_called_also_with_the_orchestrator(w):
    @numba.njit
    def submit_row(orch, handle, row, number):
        orch.submit_sub(handle, task(row, number))
        return number + 1

    x = w.share(np.zeros((3, 1), np.int64))

    def rows(orch, args, config):
        number = 5
        for i in range(len(x)):
            number = submit_row(orch, w.note, x[i], number)

    w.run(orchestration(rows))
    assert x.tolist() == [[5], [6], [7]]


# ---------------------------------------------------------------- scopes
@pytest.mark.spec("SPEED-ORCH-2")
def test_a_scope_ends_on_every_way_out_of_its_block(w):
    depths = w.share(np.zeros(8, np.int64))
    mem = w._session.engine.mem

    def leaves(orch, args, config):
        for i in range(6):
            with orch.scope():
                if i == 1:
                    continue
                with orch.scope(), orch.scope():
                    orch.alloc((8,), np.uint8)
                    if i == 2:
                        continue
                    orch.scope_begin()
                if i == 4:
                    break
        depths[0] = look(mem, L.SCOPE_DEPTH)
        try:
            with orch.scope():
                for i in range(3):
                    with orch.scope():
                        if i == 1:
                            raise ValueError("out of two scopes")
        except Exception:
            depths[1] = look(mem, L.SCOPE_DEPTH)
        with orch.scope():
            return depths[0] + depths[1]

    for way in ways(leaves):
        depths[...] = 0
        kept = []

        def orch_fn(*given, way=way, kept=kept):
            kept.append((way(*given), int(mem[L.SCOPE_DEPTH])))

        assert w.run(orch_fn).tasks == 4
        assert kept == [(2, 1)]


@pytest.mark.spec("SPEED-ORCH-2")
def test_an_exception_that_leaves_the_function_ends_its_scopes(w):
    mem = w._session.engine.mem

    def raises(orch, args, config):
        with orch.scope(), orch.scope():
            if len(args) == 2:
                raise KeyError("mine")

    for way in ways(raises):

        def orch_fn(*given, way=way):
            with pytest.raises(KeyError, match="mine"):
                way(*given)
            assert mem[L.SCOPE_DEPTH] == 1

        w.run(orch_fn, (1, 2))


# ---------------------------------------------------------------- the same errors
def runtime_errors(orch, args, config):
    x, what, handle, _, _ = args
    a = TaskArgs()
    if what == 0:
        orch.scope_end()
    elif what == 1:
        with orch.scope():
            orch.scope_end()
    elif what == 2:
        for _ in range(70):
            orch.scope_begin()
    elif what == 3:
        a.add_scalar(1)
        a.add_tensor(x)
    elif what == 4:
        orch.alloc((1 << 21,), np.int64)
    elif what == 5:
        orch.submit_next_level(handle)
    elif what == 6:
        raise RuntimeError("of my own")


def value_errors(orch, args, config):
    x, what, handle, _, n = args
    a, b = TaskArgs(), TaskArgs()
    if what == 0:
        a.add_tensor(x, 9)
    elif what == 1:
        orch.alloc((8,), n)
    elif what == 2:
        orch.alloc((4, n - 100), np.int8)
    elif what == 3:
        ContinuousTensor.make(0, (1 << 30, 1 << 30, n), np.float32)
    elif what in (4, 5):
        for i in range(2000):
            a.add_scalar(i)
        if what == 4:
            orch.submit_sub(handle, a)
        else:
            orch.submit_sub_group(handle, [b, a])
    elif what == 6:
        members = [a]
        members.pop()
        orch.submit_sub_group(handle, members)
    elif what == 7:
        orch.submit_sub_group(handle, [TaskArgs() for _ in range(3)])
    elif what == 8:
        ContinuousTensor.make(0, (4,), np.float32).numpy()
    elif what == 9:
        ContinuousTensor.make(4096, (4,), np.float32, True).numpy()


def lookup_errors(orch, args, config):
    x, what, _, foreign, _ = args
    if what == 0:
        task(x).tensor(1)
    elif what == 1:
        TaskArgs().scalar(-1)
    elif what == 2:
        task(x).set_tag(1, T.INOUT)
    elif what == 3:
        orch.submit_sub(foreign)


@pytest.mark.spec("SPEED-ORCH-3")
@pytest.mark.parametrize(
    ("function", "errors"),
    [
        (runtime_errors, [RuntimeError] * 7),
        (value_errors, [ValueError] * 10),
        (lookup_errors, [IndexError, IndexError, IndexError, KeyError]),
    ],
)
def test_what_is_refused_raises_the_same_exception(w, function, errors):
    with Worker(3, num_sub_workers=1) as other:
        x = w.share(np.zeros((3, 4), np.float32))
        foreign = other.register(add_one)
        for what, error in enumerate(errors):
            kind, words = refused_alike(w, function, (x, what, w.add_one, foreign, 50))
            assert issubclass(kind, error) and words
            assert w.run(lambda orch, *_: orch.submit_sub(w.add_one, task(x))).tasks == 1


@pytest.mark.spec("SPEED-ORCH-3")
def test_python_errors_of_compiled_code_are_pythons(w):
    def index(orch, args, config):
        args[0][args[1]]

    def division(orch, args, config):
        return 1 // (args[1] - 50)

    x = w.share(np.zeros((3, 4), np.float32))
    for function in (index, division):
        compiled, written = (outcome(lambda f=f: w.run(f, (x, 50))) for f in ways(function))
        assert compiled[0] is written[0]


@pytest.mark.spec("SPEED-ORCH-3")
def test_an_address_where_no_memory_can_be_is_refused_alike(w):
    def fill(orch, args, config):
        ContinuousTensor.make(args.scalar(0), (4,), np.int64).numpy()[0] = 1

    x = w.share(np.zeros(4, np.int64))
    for way in ways(fill):
        x[0] = 0
        w.run(way, make_args(scalars=[x.ctypes.data]))
        assert x[0] == 1
        for address in (8, 4095, 1 << 47):
            with pytest.raises(ValueError, match=f"at {address:#x}, where no program has"):
                w.run(way, make_args(scalars=[address]))


@pytest.mark.spec("SPEED-ORCH-3")
def test_a_worker_that_does_not_exist_and_memory_of_an_unnamed_worker_are_refused_alike():
    there = ContinuousTensor.make(4096, (4,), np.float32, True)
    with worker_with(2) as w:
        handle = w.register(add_one)

        def refused(orch, what, config):
            pair = [TaskArgs(), TaskArgs()]
            if what == 0:
                orch.submit_next_level(handle, None, None, worker=2)
            elif what == 1:
                a = task(there, tag=T.NO_DEP)
                orch.submit_next_level(handle, a, worker=1)
                orch.submit_next_level(handle, a)
            elif what == 2:
                orch.submit_next_level_group(handle, pair, None, workers=[1, 1])
            else:
                orch.submit_next_level_group(handle, pair, None, workers=[1, 0, -1])

        for what in range(4):
            assert refused_alike(w, refused, what)[0] is ValueError


@pytest.mark.spec("SPEED-ORCH-3")
def test_a_refusal_can_be_caught_in_the_function(w):
    def catches(orch, args, config):
        caught = 0
        for _ in range(3):
            try:
                orch.scope_end()
            except Exception:
                caught += 1
        return caught

    for way in ways(catches):
        seen = []
        w.run(lambda *given, way=way, seen=seen: seen.append(way(*given)))
        assert seen == [3]


@pytest.mark.spec("SPEED-ORCH-3")
def test_private_memory_is_refused(w):
    private = np.zeros(4, np.int64)

    def made_inside(orch, args, config):
        orch.submit_sub(w.add_one, task(np.zeros(4, np.int64)))

    def captured(orch, args, config):
        orch.submit_sub(w.add_one, task(private))

    for way in (*ways(made_inside), *ways(captured)):
        with pytest.raises(ValueError, match=r"cannot see the 32 bytes at .*: it is private"):
            w.run(way)


@pytest.mark.spec("SPEED-ORCH-3")
def test_memory_shared_otherwise_is_taken_and_what_came_too_late_is_not(w, region):
    def raise_all(orch, args, config):
        for i in range(3):
            orch.submit_sub(w.add_one, task(args[i : i + 1]))

    early = region()
    w.start()
    late = region()
    for way in ways(raise_all):
        w.run(way, early)
        with pytest.raises(ValueError, match="allocated after the workers were started"):
            w.run(way, late)
    assert early[:4].tolist() == [2, 2, 2, 0]


@pytest.fixture
def region():
    """Give a way to make shared arrays that no Worker knows."""
    made = []

    def make():
        made.append(create_region(4096).view(np.int64))
        return made[-1]

    yield make
    for one in made:  # compiled code that raises keeps a reference to its arguments
        release(one)


@pytest.mark.spec("SPEED-ORCH-1", "SPEED-ORCH-3")
def test_tasks_and_groups_over_memory_shared_otherwise_are_the_same(region):
    regions = [region() for _ in range(4)]
    with worker_with(2, num_sub_workers=2) as w:
        noting, adding = w.register(note), w.register(add)

        def send(orch, args, config):
            members = []
            for i in range(3):
                a = TaskArgs()
                a.add_tensor(ContinuousTensor.make(0, (4,), np.int64), T.OUTPUT)
                a.add_tensor(args[min(i, 1)][4 * i : 4 * i + 4], T.INOUT)
                a.add_scalar(7 + i)
                members.append(a)
            orch.submit_sub(noting, members[0])
            orch.submit_sub_group(noting, members[1:])
            for a in members:
                b = task(a.tensor(0), tag=T.INPUT)
                b.add_tensor(a.tensor(1), T.INOUT)
                orch.submit_sub(adding, b)
            there = [task(args[min(i, 1) + 2][4 * i : 4 * i + 4], 70 + i) for i in range(3)]
            orch.submit_next_level(noting, there[0], config, worker=1)
            orch.submit_next_level_group(noting, there[1:], config, workers=[1, -1])

        config = CallConfig(block_dim=3)
        *_, a, b, c, d = same_run(w, send, *regions, args=tuple(regions), config=config)
        assert (a[0], b[4], b[8]) == (7, 8, 9)
        assert (c[:2], d[4:6], d[8:10]) == ([70, 3], [71, 3], [72, 3])


@pytest.mark.spec("SPEED-ORCH-3")
def test_it_runs_only_during_a_run_and_on_its_thread(w):
    kept = []

    @orchestration
    def allocates(orch, args, config):
        orch.alloc((8,), np.uint8)

    def orch_fn(orch, args, config):
        kept.append(orch)
        with pytest.raises(RuntimeError, match="belongs to the thread"), ThreadPoolExecutor(1) as t:
            t.submit(allocates, orch, None, config).result()

    w.run(orch_fn)
    with pytest.raises(RuntimeError, match="run has ended"):
        allocates(kept[0], None, CallConfig())


# ---------------------------------------------------------------- failure
@pytest.mark.spec("SPEED-ORCH-4")
def test_once_a_failure_is_known_the_next_call_raises_it(w):
    mem = w._session.engine.mem

    def goes_on(orch, args, config):
        reached, call = args
        a = TaskArgs()
        a.add_scalar(1)
        orch.submit_sub(w.fails, a)
        while look(mem, L.RUN_ERROR) == 0:
            pass
        if call == 0:
            orch.submit_sub(w.fails)
        elif call == 1:
            orch.alloc((8,), np.uint8)
        else:
            orch.submit_sub_group(w.fails, [a])
        reached[0] = 1

    for way in ways(goes_on):
        for call in range(3):
            reached = np.zeros(1)
            with pytest.raises(TaskError, match="ValueError: task 1 cannot go on") as info:
                w.run(way, (reached, call))
            assert info.value.task == 0 and "fails" in info.value.remote_traceback
            assert reached[0] == 0


@pytest.mark.spec("SPEED-ORCH-4")
def test_a_task_that_fails_later_fails_the_run(w):
    def one(orch, args, config):
        orch.submit_sub(w.fails, args)

    for way in ways(one):
        with pytest.raises(TaskError, match="task 3 cannot go on"):
            w.run(way, make_args(scalars=[3]))


# ---------------------------------------------------------------- waiting
@pytest.mark.spec("SPEED-ORCH-5")
def test_a_full_ring_is_waited_for():
    with Worker(3, num_sub_workers=1, heap_ring_size=4096, task_window=16) as w:
        x = w.share(np.zeros(1, np.int64))
        adding = w.register(add_one)

        def many(orch, args, config):
            for _ in range(100):
                with orch.scope():
                    orch.alloc((3000,), np.uint8)
                    a = task(x)
                    a.add_tensor(ContinuousTensor.make(0, (1024,), np.uint8), T.OUTPUT)
                    orch.submit_sub(adding, a)

        for way in ways(many):
            x[0] = 0
            assert w.run(way).tasks == 200
            assert x[0] == 100


@pytest.mark.spec("SPEED-ORCH-5")
@pytest.mark.parametrize(("heap", "words"), [(4096, "HeapRing"), (1 << 20, "task window")])
def test_a_ring_that_stays_full_is_an_error_after_the_timeout(heap, words):
    def fills(orch, args, config):
        for _ in range(100):
            orch.alloc((1000,), np.uint8)

    with Worker(3, heap_ring_size=heap, task_window=8, alloc_timeout_s=0.05) as w:
        kind, text = refused_alike(w, fills)
        assert kind is RingFullError
        assert words in text


@pytest.mark.spec("SPEED-ORCH-6")
def test_a_task_starts_while_the_function_computes(w):
    x = w.share(np.zeros(64, np.int64))

    def submits_then_waits(orch, args, config):
        for i in range(len(x)):
            orch.submit_sub(w.add_one, task(x[i : i + 1]))
        for i in range(len(x)):
            while look(x, i) == 0:
                pass

    *_, seen = same_run(w, submits_then_waits, x)  # hangs if one is never seen to
    assert seen == [1] * len(x)


@pytest.mark.spec("SPEED-ORCH-6")
def test_other_threads_run_python_while_the_function_computes():
    with Worker(3, num_sub_workers=1, child_mode="thread") as w:
        x = w.share(np.zeros(2, np.int64))
        adding = w.register(add_one)

        @orchestration
        def waits(orch, args, config):
            orch.submit_sub(adding, task(x[:1]))
            while look(x, 0) == 0 or look(x, 1) == 0:
                pass

        def other():
            wait_until(lambda: x[0] == 1)
            x[1] = 1

        with Concurrently(other):
            w.run(waits)
        assert x.tolist() == [1, 1]


# ---------------------------------------------------------------- what it takes from around it
SCALE = 1


@pytest.mark.spec("SPEED-ORCH-7")
def test_what_is_taken_from_around_the_function_is_read_at_each_run(w, monkeypatch):
    x, y = w.share(np.zeros(3, np.int64)), w.share(np.zeros(3, np.int64))
    box = SimpleNamespace()

    def send(orch, args, config):
        a = task(box.target, number * SCALE + box.offset)
        for part in parts:
            a.add_scalar(part)
        orch.submit_sub(handle, a)

    for way in ways(send):
        monkeypatch.setitem(globals(), "SCALE", 1)
        handle, number, parts, box.offset, box.target = w.note, 5, [1, 2], 10, x
        x[...] = y[...] = 0
        w.run(way)
        assert x.tolist() == [15, 1, 2]
        monkeypatch.setitem(globals(), "SCALE", 100)
        number, parts, box.offset, box.target = 6, [7], 0, y
        w.run(way)
        assert y.tolist() == [600, 7, 0]
        handle = w.add_one
        w.run(way)
        assert y.tolist() == [601, 8, 1]


@pytest.mark.spec("SPEED-ORCH-7")
def test_a_handle_that_is_no_longer_live_is_refused(w):
    handle = w.register(lambda args: add_one(args))

    def send(orch, args, config):
        orch.submit_sub(handle, args)

    x = w.share(np.zeros(1, np.int64))
    w.run(orchestration(send), task(x))
    w.unregister(handle)
    refused_alike(w, send)
    assert x[0] == 1


@pytest.mark.spec("SPEED-ORCH-8")
def test_task_args_from_outside_have_afterwards_what_the_function_made_of_them(w):
    x = w.share(np.arange(4, dtype=np.float32))

    def changes(orch, args, config):
        mine = args
        mine.set_tag(0, T.INOUT)
        orch.submit_sub(w.add_one, args)
        args.add_tensor(x[1:], T.INPUT)
        args.add_scalar(args.tensor_count() + len(outer))
        outer.clear()
        for _i in range(20):
            outer.add_tensor(x[:1], T.OUTPUT)

    for way in ways(changes):
        x[...] = np.arange(4)
        args, outer = make_args((x, T.INPUT), (key(0), T.OUTPUT)), make_args(scalars=[4, 4.5])
        w.run(way, args)
        assert x.tolist() == [1, 2, 3, 4]
        assert [args.tag(i) for i in range(3)] == [T.INOUT, T.OUTPUT, T.INPUT]
        assert args.tensor(1).data != 0  # from a ring
        assert args.tensor(2).shapes == (3,)
        assert args.scalar(0) == 5
        assert (outer.tensor_count(), outer.scalar_count()) == (20, 0)


# ---------------------------------------------------------------- nested Workers
@pytest.mark.spec("SPEED-ORCH-9")
@pytest.mark.parametrize("mode", ["process", "thread"])
def test_a_nested_worker_runs_it_on_the_arguments_it_received(mode):
    child = Worker(level=3, num_sub_workers=2)
    adding = child.register(add)
    w = Worker(level=4, child_mode=mode)
    w.add_worker(child)

    def below(orch, args, config):
        total, rows = args.tensor(0), args.tensor(1).numpy()
        for i in range(args.scalar(0)):
            a = task(rows[i], tag=T.INPUT)
            a.add_tensor(total, T.INOUT)
            orch.submit_sub(adding, a)
        if args.scalar_float(1) > 2.0 and config.block_dim == 4:
            total.numpy()[2] = args.tensor_count() + args.scalar_count()

    handles = [w.register(way) for way in ways(below)]

    def above(orch, args, config):
        for i, handle in enumerate(handles):
            one = make_args((totals[i], T.INOUT), (x, T.INPUT), scalars=[3, 2.5])
            orch.submit_next_level(handle, one, CallConfig(block_dim=4))

    with w:
        x = w.share(np.arange(12, dtype=np.float32).reshape(4, 3))
        totals = w.share(np.zeros((2, 3), np.float32))
        w.run(above)
        assert totals[:, :2].tolist() == [[9, 12]] * 2


@pytest.mark.spec("SPEED-ORCH-9")
def test_it_can_be_registered_after_the_start():
    child = Worker(level=3, num_sub_workers=1)
    adding = child.register(add_one)
    w = Worker(level=4)
    w.add_worker(child)

    def below(orch, args, config):
        orch.submit_sub(adding, task(args.tensor(0)))

    with w:
        x = w.share(np.zeros(2, np.int64))
        w.start()
        handle = w.register(orchestration(below))
        w.run(lambda orch, *_: orch.submit_next_level(handle, task(x)))
        assert x.tolist() == [1, 1]


# ---------------------------------------------------------------- what cannot be compiled
def unknown_method(orch, args, config):
    orch.submit_sub(args)
    orch.fly()  # refused:


def no_handle(orch, args, config):
    orch.submit_sub(TaskArgs())  # refused: expects a CallableHandle


def a_list_as_shape(orch, args, config):
    orch.alloc([1, 2], np.int8)  # refused: tuple of integers


def complex_numbers(orch, args, config):
    a = TaskArgs()
    a.add_tensor(np.zeros(2, np.complex128))  # refused: complex128


def unknown_shape(orch, args, config):
    a = TaskArgs()
    return a.tensor(0).shapes  # refused: how many dimensions


def plain_function(orch, args, config):
    a = TaskArgs()
    add_one(a)  # refused: numba.njit


def module_of_tests(orch, args, config):
    return pytest.mark.spec  # refused:


def assigns(orch, args, config):
    global SCALE  # refused: SCALE
    SCALE = 3


def yields(orch, args, config):
    def numbers():
        yield 1  # refused: neither yields

    for number in numbers():
        orch.alloc((number,), np.uint8)


CANNOT = [unknown_method, no_handle, a_list_as_shape, complex_numbers, unknown_shape]
CANNOT += [plain_function, module_of_tests, assigns, yields]


@pytest.mark.spec("SPEED-ORCH-10")
@pytest.mark.skipif(INTERPRETED, reason="NUMBA_DISABLE_JIT=1: nothing is compiled")
@pytest.mark.parametrize("function", CANNOT)
def test_what_cannot_be_compiled_is_said_with_file_line_and_reason(w, function):
    lines, first = inspect.getsourcelines(function)
    [(line, words)] = [
        (number, text.partition("# refused:")[2].strip())
        for number, text in enumerate(lines, first)
        if "# refused:" in text
    ]
    with pytest.raises(OrchestrationError) as info:
        w.run(orchestration(function), w.add_one)
    error = info.value
    assert isinstance(error, TypeError)
    assert (error.filename, error.lineno) == (__file__, line)
    assert words in error.reason
    assert error.reason and len(error.reason) < 300 and "\n" not in error.reason
    assert str(error).startswith(f"{__file__}, line {line}: ")


@pytest.mark.spec("SPEED-ORCH-10")
@pytest.mark.skipif(INTERPRETED, reason="NUMBA_DISABLE_JIT=1: nothing is compiled")
def test_arguments_without_a_compiled_form_are_named(w):
    @orchestration
    def takes(orch, args, config):
        orch.live_tasks()

    with pytest.raises(OrchestrationError, match="a dict has no compiled form"):
        w.run(takes, {"x": 1})
    assert w.run(takes, 1).tasks == 0


@pytest.mark.spec("SPEED-ORCH-10")
def test_only_a_plain_function_of_three_parameters_can_be_one():
    with pytest.raises(TypeError, match="three parameters"):
        orchestration(lambda orch, *rest: None)
    with pytest.raises(TypeError, match="function made with def"):
        orchestration(Worker)


@pytest.mark.spec("SPEED-ORCH-11")
def test_over_anything_but_an_orchestrator_the_function_runs_as_it_was_written():
    seen = []

    @orchestration
    def notes(orch, args, config):
        seen.append(orch.submit_sub(args))

    class Recorder:
        def submit_sub(self, handle):
            return "recorded", handle

    notes(Recorder(), 5, CallConfig())
    assert seen == [("recorded", 5)]
    assert notes.py_func.__name__ == notes.__name__ == "notes"


@pytest.mark.spec("SPEED-ORCH-11")
def test_a_function_is_compiled_once_also_when_it_is_defined_again(w):
    compiled = []
    for i in range(3):

        @orchestration
        def allocates(orch, count, config):
            for _ in range(count + i):  # noqa: B023
                orch.alloc((8,), np.uint8)

        assert w.run(allocates, 1).tasks == 1 + i
        assert w.run(allocates, 5).tasks == 5 + i
        compiled += [version[0] for version in allocates._versions.values()]
    if not INTERPRETED:
        assert len({id(one) for one in compiled}) == 1
        assert len(compiled[0].signatures) == 1


# ---------------------------------------------------------------- signals
@pytest.mark.spec("SPEED-ORCH-12")
@pytest.mark.parametrize("what", ["waits", "submits", "catches"])
def test_what_a_signal_handler_raises_ends_the_run(what):
    with Worker(3, num_sub_workers=1, heap_ring_size=4096, alloc_timeout_s=1e6) as w:
        handle = w.register(lambda: None)

        def waits(orch, args, config):
            for _ in range(args):
                orch.alloc((4096,), np.uint8)

        def submits(orch, args, config):
            for _ in range(args):
                with orch.scope():
                    orch.submit_sub(handle)

        def catches(orch, args, config):
            try:
                for _ in range(args):
                    with orch.scope():
                        orch.submit_sub(handle)
            except Exception:
                orch.live_tasks()

        function = {"waits": waits, "submits": submits, "catches": catches}[what]
        for way in ways(function):
            w.run(way, 1)
            with pytest.raises(Terminated), terminated_after(0.2):
                w.run(way, 1 << 60)
            assert w.run(lambda orch, *_: orch.submit_sub(handle)).tasks == 1
