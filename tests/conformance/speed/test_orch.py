"""SPEED-ORCH: compiled orchestration, each way beside the function as it was written."""

from __future__ import annotations

import inspect
import math
import threading
from collections import namedtuple

import numba
import numpy as np
import pytest

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
from simpler_ref.jit import layout as L
from simpler_ref.jit.atomics import load
from simpler_ref.jit.kernel import INTERPRETED
from simpler_ref.task_interface import scalar_to_uint64
from tests.support import Terminated, key, make_args, terminated_after, wait_until


def ways(function):
    """Return an orchestration function compiled, and as it was written."""
    made = orchestration(function)
    return made, made.py_func


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
def test_a_stencil_gives_the_same_tasks_edges_rings_and_results():
    with Worker(3, num_sub_workers=2) as w:
        start = np.arange(48, dtype=np.float32).reshape(6, 8)
        x, y = w.share(start), w.share(np.zeros((6, 8), np.float32))
        adding = w.register(add)

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
                        orch.submit_sub(adding, a)
                a = TaskArgs()
                a.add_tensor(half, T.INOUT)
                a.add_tensor(y[0], T.INOUT)
                orch.submit_sub(adding, a)

        seen = []
        for way in ways(stencil):
            x[...], y[...] = start, 0
            timing = w.run(way, 3)
            seen.append((timing.tasks, timing.edges, timing.ring_peak_bytes, y.copy()))
        assert seen[0][:3] == seen[1][:3]
        assert (seen[0][3][1:] == seen[1][3][1:]).all()
        assert timing.tasks == 3 * (16 + 2)


@pytest.mark.spec("SPEED-ORCH-1")
def test_outputs_get_memory_and_their_address_stands_in_the_args():
    with Worker(3, num_sub_workers=1) as w:
        total = w.share(np.zeros(3, np.int64))
        noting, adding = w.register(note), w.register(add)

        def produce(orch, args, config):
            for i in range(2):
                a = TaskArgs()
                a.add_tensor(ContinuousTensor.make(0, (3,), DataType.INT64), T.OUTPUT)
                a.add_scalar(i)
                a.add_scalar(i + 10)
                a.add_scalar(True)
                orch.submit_sub(noting, a)
                b = TaskArgs()
                b.add_tensor(a.tensor(0))
                b.add_tensor(total, T.INOUT)
                orch.submit_sub(adding, b)

        for way in ways(produce):
            total[...] = 0
            timing = w.run(way)
            assert total.tolist() == [1, 21, 2]
            assert (timing.tasks, timing.edges) == (4, 3)


@pytest.mark.spec("SPEED-ORCH-1")
def test_groups_give_the_same_tasks_and_edges():
    with Worker(3, num_sub_workers=3) as w:
        x = w.share(np.zeros((3, 4), np.int64))
        noting = w.register(note)

        def grouped(orch, args, config):
            for _ in range(2):
                members = []
                for i in range(3):
                    a = TaskArgs()
                    a.add_tensor(x[i], T.INOUT)
                    a.add_scalar(i)
                    a.add_scalar(i * i)
                    members.append(a)
                orch.submit_sub_group(noting, members)
                first, second = members[0], TaskArgs()
                second.add_tensor(ContinuousTensor.make(0, (4,), np.int64), T.OUTPUT)
                second.add_scalar(2)
                orch.submit_sub_group(noting, (first, second))
                last = TaskArgs()
                last.add_tensor(second.tensor(0), T.INPUT)
                last.add_scalar(9)
                orch.submit_sub(noting, last)

        seen = []
        for way in ways(grouped):
            x[...] = 0
            timing = w.run(way)
            assert x[:, :2].tolist() == [[0, 0], [1, 1], [2, 4]]
            seen.append((timing.tasks, timing.edges, timing.ring_peak_bytes))
        assert seen[0] == seen[1]
        assert seen[0][0] == 6


@pytest.mark.spec("SPEED-ORCH-1")
def test_next_level_tasks_go_where_they_are_sent_with_their_configuration():
    class Notes:
        def run(self, callable, view, config):
            view.tensor(0).numpy()[:2] = view.scalar(0), config.block_dim

    with_block = CallConfig(block_dim=7)
    w = Worker(3)
    for _ in range(3):
        w.add_next_level(Notes())
    with w:
        handle = w.register(add_one)

        def send(orch, args, config):
            for worker in range(3):
                a = TaskArgs()
                a.add_tensor(args[worker], T.INOUT)
                a.add_scalar(worker)
                orch.submit_next_level(handle, a, config, worker=worker)
                orch.submit_next_level(handle, a, with_block)
            b = TaskArgs()
            b.add_tensor(args[3], T.INOUT)
            b.add_scalar(config.block_dim + 1)
            c = TaskArgs()
            c.add_tensor(args[4], T.INOUT)
            c.add_scalar(5)
            orch.submit_next_level_group(handle, [b, c], config, workers=(2, -1))

        x = w.share(np.zeros((5, 3), np.int64))
        seen = []
        for way in ways(send):
            x[...] = 0
            timing = w.run(way, x, CallConfig(block_dim=3))
            seen.append((timing.tasks, timing.edges, x.tolist()))
        assert seen[0] == seen[1]
        assert seen[0][2] == [[0, 7, 0], [1, 7, 0], [2, 7, 0], [4, 3, 0], [5, 3, 0]]


Tile = namedtuple("Tile", "array handle scale")


@pytest.mark.spec("SPEED-ORCH-1")
def test_arguments_are_arrays_numbers_handles_tensors_and_tuples_of_them():
    with Worker(3, num_sub_workers=1) as w:
        x = w.share(np.zeros((4, 3), np.int64))
        handle = w.register(note)
        tensor = ContinuousTensor.make(x[3].ctypes.data, (3,), DataType.INT64)

        def use(orch, args, config):
            tile, numbers, one, nothing = args
            a = TaskArgs()
            a.add_tensor(tile.array[1], T.INOUT)
            for number in numbers:
                a.add_scalar(number * tile.scale)
            if nothing is None:
                orch.submit_sub(tile.handle, a)
            b = TaskArgs()
            b.add_tensor(one, T.INOUT)
            b.add_scalar(one.nbytes() + one.ndims)
            b.add_scalar(one.shapes[0])
            b.add_scalar(one.dtype)
            orch.submit_sub(tile.handle, b)

        for way in ways(use):
            x[...] = 0
            w.run(way, (Tile(x, handle, 10), [1, 2, 3], tensor, None))
            assert x.tolist() == [[0] * 3, [10, 20, 30], [0] * 3, [25, 3, 7]]


@pytest.mark.spec("SPEED-ORCH-1")
@pytest.mark.parametrize(
    "value",
    [
        *(0, 7, -1, True, 2.5, -0.0, math.inf, np.float32(0.1)),
        *(np.uint64((1 << 64) - 1), np.uint64(5), np.int8(-3)),
    ],
)
def test_a_scalar_travels_as_the_same_bits(value):
    def keep(args):
        bits, kind = args._scalar(0)
        args.tensor(0).numpy()[:] = int.from_bytes(bits, "little"), kind

    with Worker(3, num_sub_workers=1) as w:
        x = w.share(np.zeros(2, np.uint64))
        handle = w.register(keep)

        def send(orch, number, config):
            a = TaskArgs()
            a.add_tensor(x, T.INOUT)
            a.add_scalar(number)
            orch.submit_sub(handle, a)

        seen = []
        for way in ways(send):
            w.run(way, value)
            seen.append(x.tolist())
        assert seen[0] == seen[1]


def _given(values):
    args = TaskArgs()
    for value in values:
        args.add_scalar(value)
    return args


@pytest.mark.spec("SPEED-ORCH-1", "SPEED-ORCH-13")
def test_scalars_are_read_as_they_were_added():
    values = [-1, 3, 2.5, np.float32(0.1), (1 << 63) + 7, scalar_to_uint64(0.75), -(1 << 63)]

    def keep(args):
        floats = [float(args.scalar(i)) for i in range(args.scalar_count())]
        args.tensor(0).numpy().view(np.float64)[:] = floats

    def read(orch, args, config):
        a = TaskArgs()
        a.add_tensor(x, T.INOUT)
        a.add_scalar(args.scalar(0))
        a.add_scalar(args.scalar(1) + args.scalar(6))
        for i in range(args.scalar_count()):
            a.add_scalar(args.scalar_float(i))
        a.add_scalar(a.scalar(0))
        a.add_scalar(a.scalar_float(4))
        orch.submit_sub(handle, a)

    with Worker(3, num_sub_workers=1) as w:
        x, handle = w.empty((11,), np.int64), w.register(keep)
        expected = [-1, 3 - 2**63, *values[:5], 0.75, -(2**63), -1, 2.5]
        for way in ways(read):
            x[:] = 0
            w.run(way, _given(values))
            assert x.view(np.float64).tolist() == [float(one) for one in expected]


@pytest.mark.skipif(INTERPRETED, reason="NUMBA_DISABLE_JIT=1: nothing is compiled")
@pytest.mark.spec("SPEED-ORCH-13")
@pytest.mark.parametrize("nested", [False, True])
def test_a_scalar_that_is_no_integer_of_compiled_code_is_refused(nested):
    @orchestration
    def read(orch, args, config):
        args.scalar(0)

    refused = {
        2.5: (TypeError, "scalar 0 is 2.5, no integer; .*scalar_float"),
        np.float32(0.5): (TypeError, "scalar 0 is 0.5, no integer"),
        (1 << 64) - 1: (OverflowError, "scalar 0 is 18446744073709551615, more than the signed 64"),
        scalar_to_uint64(-1): (OverflowError, "scalar 0 is 18446744073709551615"),
    }
    if not nested:
        with Worker(3, num_sub_workers=1) as w:
            for value, (kind, words) in refused.items():
                with pytest.raises(kind, match=words):
                    w.run(read, _given([value]))
            w.run(read, _given([-1]))
        return
    inner = Worker(3)
    w = Worker(4)
    w.add_worker(inner)
    with w:
        handle = w.register(read)

        def pass_on(orch, args, config):
            orch.submit_next_level(handle, args)

        for value, (kind, words) in refused.items():
            with pytest.raises(TaskError, match=f"{kind.__name__}: {words}"):
                w.run(pass_on, _given([value]))
        w.run(pass_on, _given([-1]))


@pytest.mark.spec("SPEED-ORCH-1")
def test_functions_made_with_njit_can_be_called_also_with_the_orchestrator():
    @numba.njit
    def submit_row(orch, handle, row, number):
        a = TaskArgs()
        a.add_tensor(row, T.INOUT)
        a.add_scalar(number)
        orch.submit_sub(handle, a)
        return number + 1

    with Worker(3, num_sub_workers=1) as w:
        x = w.share(np.zeros((3, 1), np.int64))
        handle = w.register(note)

        def rows(orch, args, config):
            number = 5
            for i in range(len(x)):
                number = submit_row(orch, handle, x[i], number)

        w.run(orchestration(rows))
        assert x.tolist() == [[5], [6], [7]]


# ---------------------------------------------------------------- scopes
@pytest.mark.spec("SPEED-ORCH-2")
def test_a_scope_ends_on_every_way_out_of_its_block():
    with Worker(3, num_sub_workers=1) as w:
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

            def orch_fn(orch, args, config, way=way, kept=kept):
                kept.append((way(orch, args, config), int(mem[L.SCOPE_DEPTH])))

            timing = w.run(orch_fn)
            assert kept == [(2, 1)]
            assert timing.tasks == 4


@pytest.mark.spec("SPEED-ORCH-2")
def test_an_exception_that_leaves_the_function_ends_its_scopes():
    with Worker(3, num_sub_workers=1) as w:
        mem = w._session.engine.mem

        def raises(orch, args, config):
            with orch.scope(), orch.scope():
                if len(args) == 2:
                    raise KeyError("mine")

        for way in ways(raises):

            def orch_fn(orch, args, config, way=way):
                with pytest.raises(KeyError, match="mine"):
                    way(orch, args, config)
                assert mem[L.SCOPE_DEPTH] == 1

            w.run(orch_fn, (1, 2))


# ---------------------------------------------------------------- the same errors
def _twice(orch, args, config):
    orch.scope_end()


def _inside(orch, args, config):
    with orch.scope():
        orch.scope_end()


def _deep(orch, args, config):
    for _ in range(70):
        orch.scope_begin()


def _late_tensor(orch, args, config):
    a = TaskArgs()
    a.add_scalar(1)
    a.add_tensor(args[0])


def _no_tensor(orch, args, config):
    a = TaskArgs()
    a.add_tensor(args[0])
    a.tensor(1)


def _no_scalar(orch, args, config):
    TaskArgs().scalar(-1)


def _no_tag(orch, args, config):
    a = TaskArgs()
    a.add_tensor(args[0], 9)


def _no_tag_to_set(orch, args, config):
    a = TaskArgs()
    a.add_tensor(args[0])
    a.set_tag(1, T.INOUT)


def _no_dtype(orch, args, config):
    orch.alloc((8,), args[2])


def _negative(orch, args, config):
    orch.alloc((4, args[2] - 100), np.int8)


def _endless(orch, args, config):
    ContinuousTensor.make(0, (1 << 30, 1 << 30, args[2]), np.float32)


def _too_large(orch, args, config):
    orch.alloc((1 << 21,), np.int64)


def _too_many(orch, args, config):
    a = TaskArgs()
    for i in range(2000):
        a.add_scalar(i)
    orch.submit_sub(args[1], a)


def _too_many_in_a_group(orch, args, config):
    a, b = TaskArgs(), TaskArgs()
    for i in range(2000):
        a.add_scalar(i)
    orch.submit_sub_group(args[1], [b, a])


def _empty_group(orch, args, config):
    members = [TaskArgs()]
    members.pop()
    orch.submit_sub_group(args[1], members)


def _large_group(orch, args, config):
    orch.submit_sub_group(args[1], [TaskArgs() for _ in range(3)])


def _gaps(orch, args, config):
    a = TaskArgs()
    a.add_tensor(args[0][:, :2], T.INPUT)
    orch.submit_sub(args[1], a)


def _foreign(orch, args, config):
    orch.submit_sub(args[3])


def _wrong_pool(orch, args, config):
    orch.submit_next_level(args[1])


def _no_memory(orch, args, config):
    ContinuousTensor.make(0, (4,), np.float32).numpy()


def _of_a_chip(orch, args, config):
    ContinuousTensor.make(4096, (4,), np.float32, True).numpy()


def _index(orch, args, config):
    args[0][args[2]]


def _division(orch, args, config):
    return 1 // (args[2] - 50)


def _own(orch, args, config):
    raise RuntimeError("of my own")


REFUSED = {
    _twice: RuntimeError,
    _inside: RuntimeError,
    _deep: RuntimeError,
    _late_tensor: RuntimeError,
    _no_tensor: IndexError,
    _no_scalar: IndexError,
    _no_tag: ValueError,
    _no_tag_to_set: IndexError,
    _no_dtype: ValueError,
    _negative: ValueError,
    _endless: ValueError,
    _too_large: RuntimeError,
    _too_many: ValueError,
    _too_many_in_a_group: ValueError,
    _empty_group: ValueError,
    _large_group: ValueError,
    _gaps: ValueError,
    _foreign: KeyError,
    _wrong_pool: RuntimeError,
    _no_memory: ValueError,
    _of_a_chip: ValueError,
    _own: RuntimeError,
}


@pytest.mark.spec("SPEED-ORCH-3")
@pytest.mark.parametrize("function", REFUSED, ids=lambda f: f.__name__.strip("_"))
def test_what_is_refused_raises_the_same_exception(function):
    with (
        Worker(3, num_sub_workers=2, heap_ring_size=1 << 20) as w,
        Worker(3, num_sub_workers=1) as v,
    ):
        x = w.share(np.zeros((3, 4), np.float32))
        handle, foreign = w.register(add_one), v.register(add_one)
        kind, words = refused_alike(w, function, (x, handle, 50, foreign))
        assert issubclass(kind, REFUSED[function]), words
        assert words
        assert w.run(lambda orch, *_: orch.submit_sub(handle, make_args((x, T.INOUT)))).tasks == 1


@pytest.mark.spec("SPEED-ORCH-3")
@pytest.mark.parametrize("function", [_index, _division], ids=["index", "division"])
def test_python_errors_of_compiled_code_are_pythons(function):
    with Worker(3, num_sub_workers=1) as w:
        x = w.share(np.zeros((3, 4), np.float32))
        compiled, written = (outcome(lambda f=f: w.run(f, (x, None, 50))) for f in ways(function))
        assert compiled[0] is written[0]


def _fill(orch, args, config):
    ContinuousTensor.make(args.scalar(0), (4,), np.int64).numpy()[0] = 1


@pytest.mark.spec("SPEED-ORCH-3")
def test_an_address_where_no_memory_can_be_is_refused_alike():
    with Worker(3, num_sub_workers=1) as w:
        x = w.share(np.zeros(4, np.int64))
        for compiled_or_not in ways(_fill):
            x[0] = 0
            w.run(compiled_or_not, make_args(scalars=[x.ctypes.data]))
            assert x[0] == 1
            for address in (8, 4095, 1 << 47):
                with pytest.raises(ValueError, match=f"at {address:#x}, where no program has"):
                    w.run(compiled_or_not, make_args(scalars=[address]))


@pytest.mark.spec("SPEED-ORCH-3")
def test_a_worker_that_does_not_exist_and_memory_of_an_unnamed_worker_are_refused_alike():
    class Idle:
        def run(self, callable, view, config):
            pass

    w = Worker(3)
    for _ in range(2):
        w.add_next_level(Idle())
    handle = w.register(add_one)
    there = ContinuousTensor.make(4096, (4,), np.float32, True)

    def no_such(orch, args, config):
        orch.submit_next_level(handle, None, None, worker=2)

    def unnamed(orch, args, config):
        a = TaskArgs()
        a.add_tensor(there, T.NO_DEP)
        orch.submit_next_level(handle, a, worker=1)
        orch.submit_next_level(handle, a)

    def twice(orch, args, config):
        orch.submit_next_level_group(handle, [TaskArgs(), TaskArgs()], None, workers=[1, 1])

    def three(orch, args, config):
        orch.submit_next_level_group(handle, [TaskArgs(), TaskArgs()], None, workers=[1, 0, -1])

    with w:
        for function in (no_such, unnamed, twice, three):
            assert refused_alike(w, function)[0] is ValueError


@pytest.mark.spec("SPEED-ORCH-3")
def test_a_refusal_can_be_caught_in_the_function():
    with Worker(3, num_sub_workers=1) as w:

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
def test_private_memory_is_refused():
    with Worker(3, num_sub_workers=1) as w:
        handle = w.register(add_one)

        def made_inside(orch, args, config):
            a = TaskArgs()
            a.add_tensor(np.zeros(4, np.int64), T.INOUT)
            orch.submit_sub(handle, a)

        private = np.zeros(4, np.int64)

        def captured(orch, args, config):
            a = TaskArgs()
            a.add_tensor(private, T.INOUT)
            orch.submit_sub(handle, a)

        for function in (made_inside, captured):
            for way in ways(function):
                with pytest.raises(
                    ValueError, match=r"cannot see the 32 bytes at .*: it is private"
                ):
                    w.run(way)


@pytest.mark.spec("SPEED-ORCH-3")
def test_memory_shared_otherwise_is_taken_and_what_came_too_late_is_not():
    from simpler_ref.engine.shared_arrays import create_region
    from simpler_ref.system.regions import release

    early = create_region(4096).view(np.int64)
    with Worker(3, num_sub_workers=1) as w:
        handle = w.register(add_one)

        def raise_all(orch, args, config):
            for i in range(3):
                a = TaskArgs()
                a.add_tensor(args[i : i + 1], T.INOUT)
                orch.submit_sub(handle, a)

        w.start()
        late = create_region(4096).view(np.int64)
        for way in ways(raise_all):
            w.run(way, early)
            with pytest.raises(ValueError, match="allocated after the workers were started"):
                w.run(way, late)
        assert early[:4].tolist() == [2, 2, 2, 0]
    for region in (early, late):  # compiled code that raises keeps a reference to its arguments
        release(region)


@pytest.mark.spec("SPEED-ORCH-1", "SPEED-ORCH-3")
def test_tasks_and_groups_over_memory_shared_otherwise_are_the_same():
    from simpler_ref.engine.shared_arrays import create_region
    from simpler_ref.system.regions import release

    class Notes:
        def run(self, callable, view, config):
            view.tensor(0).numpy()[:2] = view.scalar(0), config.block_dim

    regions = [create_region(4096).view(np.int64) for _ in range(4)]
    w = Worker(3, num_sub_workers=2)
    for _ in range(2):
        w.add_next_level(Notes())
    with w:
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
                b = TaskArgs()
                b.add_tensor(a.tensor(0))
                b.add_tensor(a.tensor(1), T.INOUT)
                orch.submit_sub(adding, b)
            there = []
            for i in range(3):
                c = TaskArgs()
                c.add_tensor(args[min(i, 1) + 2][4 * i : 4 * i + 4], T.INOUT)
                c.add_scalar(70 + i)
                there.append(c)
            orch.submit_next_level(noting, there[0], config, worker=1)
            orch.submit_next_level_group(noting, there[1:], config, workers=[1, -1])

        seen = []
        for way in ways(send):
            for region in regions:
                region[:] = 0
            timing = w.run(way, tuple(regions), CallConfig(block_dim=3))
            seen.append((timing.tasks, timing.edges, [one[:16].tolist() for one in regions]))
        assert seen[0] == seen[1]
        assert seen[0][2][0][0] == 7 and seen[0][2][1][4:9:4] == [8, 9]
        assert [seen[0][2][2][:2], seen[0][2][3][4:6], seen[0][2][3][8:10]] == [
            [70, 3],
            [71, 3],
            [72, 3],
        ]
    for region in regions:
        release(region)


@pytest.mark.spec("SPEED-ORCH-3")
def test_it_runs_only_during_a_run_and_on_its_thread():
    with Worker(3, num_sub_workers=1) as w:
        kept = []

        @orchestration
        def allocates(orch, args, config):
            orch.alloc((8,), np.uint8)

        def orch_fn(orch, args, config):
            kept.append(orch)
            errors = []

            def elsewhere():
                errors.append(outcome(lambda: allocates(orch, None, config)))

            thread = threading.Thread(target=elsewhere)
            thread.start()
            thread.join()
            kept.append(errors[0])

        w.run(orch_fn)
        assert kept[1][0] is RuntimeError and "belongs to the thread" in kept[1][1]
        with pytest.raises(RuntimeError, match="run has ended"):
            allocates(kept[0], None, CallConfig())


# ---------------------------------------------------------------- failure
@pytest.mark.spec("SPEED-ORCH-4")
@pytest.mark.parametrize("call", ["submit", "alloc", "group"])
def test_once_a_failure_is_known_the_next_call_raises_it(call):
    with Worker(3, num_sub_workers=1) as w:
        failing = w.register(fails)
        submits, allocates = call == "submit", call == "alloc"
        mem = w._session.engine.mem

        def goes_on(orch, args, config):
            a = TaskArgs()
            a.add_scalar(1)
            orch.submit_sub(failing, a)
            while look(mem, L.RUN_ERROR) == 0:
                pass
            if submits:
                orch.submit_sub(failing)
            elif allocates:
                orch.alloc((8,), np.uint8)
            else:
                orch.submit_sub_group(failing, [a])
            args[0] = 1

        for way in ways(goes_on):
            reached = np.zeros(1)
            with pytest.raises(TaskError, match="ValueError: task 1 cannot go on") as info:
                w.run(way, reached)
            assert info.value.task == 0 and "fails" in info.value.remote_traceback
            assert reached[0] == 0


@pytest.mark.spec("SPEED-ORCH-4")
def test_a_task_that_fails_later_fails_the_run():
    with Worker(3, num_sub_workers=1) as w:
        failing = w.register(fails)

        def one(orch, args, config):
            a = TaskArgs()
            a.add_scalar(3)
            orch.submit_sub(failing, a)

        for way in ways(one):
            with pytest.raises(TaskError, match="task 3 cannot go on"):
                w.run(way)


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
                    a = TaskArgs()
                    a.add_tensor(x, T.INOUT)
                    a.add_tensor(ContinuousTensor.make(0, (1024,), np.uint8), T.OUTPUT)
                    orch.submit_sub(adding, a)

        for way in ways(many):
            x[0] = 0
            assert w.run(way).tasks == 200
            assert x[0] == 100


@pytest.mark.spec("SPEED-ORCH-5")
@pytest.mark.parametrize("what", ["heap", "window"])
def test_a_ring_that_stays_full_is_an_error_after_the_timeout(what):
    heap = 4096 if what == "heap" else 1 << 20
    with Worker(3, heap_ring_size=heap, task_window=8, alloc_timeout_s=0.05) as w:

        def fills(orch, args, config):
            for _ in range(100):
                orch.alloc((1000,), np.uint8)

        kind, words = refused_alike(w, fills)
        assert kind is RingFullError
        assert ("HeapRing" if what == "heap" else "task window") in words


@pytest.mark.spec("SPEED-ORCH-6")
def test_a_task_starts_while_the_function_computes():
    with Worker(3, num_sub_workers=2) as w:
        x = w.share(np.zeros(64, np.int64))
        adding = w.register(add_one)

        def submits_then_waits(orch, args, config):
            for i in range(len(x)):
                a = TaskArgs()
                a.add_tensor(x[i : i + 1], T.INOUT)
                orch.submit_sub(adding, a)
            for i in range(len(x)):
                while look(x, i) == 0:
                    pass

        for way in ways(submits_then_waits):
            x[...] = 0
            w.run(way)  # hangs if one is never seen to
            assert x.tolist() == [1] * len(x)


@pytest.mark.spec("SPEED-ORCH-6")
def test_other_threads_run_python_while_the_function_computes():
    with Worker(3, num_sub_workers=1, child_mode="thread") as w:
        x = w.share(np.zeros(2, np.int64))
        adding = w.register(add_one)

        @orchestration
        def waits(orch, args, config):
            a = TaskArgs()
            a.add_tensor(x[:1], T.INOUT)
            orch.submit_sub(adding, a)
            while look(x, 0) == 0 or look(x, 1) == 0:
                pass

        def other():
            wait_until(lambda: x[0] == 1)
            x[1] = 1

        thread = threading.Thread(target=other)
        thread.start()
        w.run(waits)
        thread.join()
        assert x.tolist() == [1, 1]


# ---------------------------------------------------------------- what it takes from around it
SCALE = 1


@pytest.mark.spec("SPEED-ORCH-7")
def test_what_is_taken_from_around_the_function_is_read_at_each_run(monkeypatch):
    class Box:
        pass

    with Worker(3, num_sub_workers=1) as w:
        x, y = w.share(np.zeros(3, np.int64)), w.share(np.zeros(3, np.int64))
        box = Box()
        box.offset, box.target = 10, x
        first, second = w.register(note), w.register(add_one)
        handle, number, parts = first, 5, [1, 2]

        def send(orch, args, config):
            a = TaskArgs()
            a.add_tensor(box.target, T.INOUT)
            a.add_scalar(number * SCALE + box.offset)
            for part in parts:
                a.add_scalar(part)
            orch.submit_sub(handle, a)

        for way in ways(send):
            monkeypatch.setitem(globals(), "SCALE", 1)
            handle, number, parts, box.offset, box.target = first, 5, [1, 2], 10, x
            x[...] = y[...] = 0
            w.run(way)
            assert x.tolist() == [15, 1, 2]
            monkeypatch.setitem(globals(), "SCALE", 100)
            number, parts, box.offset, box.target = 6, [7], 0, y
            w.run(way)
            assert y.tolist() == [600, 7, 0]
            handle = second
            w.run(way)
            assert y.tolist() == [601, 8, 1]


@pytest.mark.spec("SPEED-ORCH-7")
def test_a_handle_that_is_no_longer_live_is_refused():
    with Worker(3, num_sub_workers=1) as w:
        handle = w.register(add_one)

        def send(orch, args, config):
            orch.submit_sub(handle, args)

        compiled, written = ways(send)
        x = w.share(np.zeros(1, np.int64))
        w.run(compiled, make_args((x, T.INOUT)))
        w.unregister(handle)
        assert outcome(lambda: w.run(compiled)) == outcome(lambda: w.run(written))
        assert x[0] == 1


@pytest.mark.spec("SPEED-ORCH-8")
def test_task_args_from_outside_have_afterwards_what_the_function_made_of_them():
    with Worker(3, num_sub_workers=1) as w:
        x = w.share(np.arange(4, dtype=np.float32))
        handle = w.register(add_one)

        def changes(orch, args, config):
            mine = args
            mine.set_tag(0, T.INOUT)
            orch.submit_sub(handle, args)
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
            a = TaskArgs()
            a.add_tensor(rows[i], T.INPUT)
            a.add_tensor(total, T.INOUT)
            orch.submit_sub(adding, a)
        if args.scalar_float(1) > 2.0 and config.block_dim == 4:
            total.numpy()[2] = args.tensor_count() + args.scalar_count()

    handles = [w.register(way) for way in ways(below)]

    def above(orch, args, config):
        for i, handle in enumerate(handles):
            task = make_args((totals[i], T.INOUT), (x, T.INPUT), scalars=[3, 2.5])
            orch.submit_next_level(handle, task, CallConfig(block_dim=4))

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
        a = TaskArgs()
        a.add_tensor(args.tensor(0), T.INOUT)
        orch.submit_sub(adding, a)

    with w:
        x = w.share(np.zeros(2, np.int64))
        w.start()
        handle = w.register(orchestration(below))
        w.run(lambda orch, *_: orch.submit_next_level(handle, make_args((x, T.INOUT))))
        assert x.tolist() == [1, 1]


# ---------------------------------------------------------------- what cannot be compiled
def line_of(function, text):
    lines, first = inspect.getsourcelines(function)
    return first + next(i for i, line in enumerate(lines) if text in line)


def _unknown_method(orch, args, config):
    orch.submit_sub(args)
    orch.fly()  # here


def _no_handle(orch, args, config):
    orch.submit_sub(TaskArgs())  # here


def _a_list_as_shape(orch, args, config):
    orch.alloc([1, 2], np.int8)  # here


def _complex(orch, args, config):
    a = TaskArgs()
    a.add_tensor(np.zeros(2, np.complex128))  # here


def _unknown_shape(orch, args, config):
    a = TaskArgs()
    return a.tensor(0).shapes  # here


def _plain_function(orch, args, config):
    a = TaskArgs()
    add_one(a)  # here


def _module_of_tests(orch, args, config):
    return pytest.mark.spec  # here


def _assigns(orch, args, config):
    global SCALE  # here
    SCALE = 3


def _yields(orch, args, config):
    def numbers():
        yield 1  # here

    for number in numbers():
        orch.alloc((number,), np.uint8)


CANNOT = {
    _unknown_method: "",
    _no_handle: "expects a CallableHandle",
    _a_list_as_shape: "tuple of integers",
    _complex: "complex128",
    _unknown_shape: "how many dimensions",
    _plain_function: "numba.njit",
    _module_of_tests: "",
    _assigns: "SCALE",
    _yields: "neither yields",
}


@pytest.mark.spec("SPEED-ORCH-10")
@pytest.mark.skipif(INTERPRETED, reason="NUMBA_DISABLE_JIT=1: nothing is compiled")
@pytest.mark.parametrize("function", CANNOT, ids=lambda f: f.__name__.strip("_"))
def test_what_cannot_be_compiled_is_said_with_file_line_and_reason(function):
    with Worker(3, num_sub_workers=1) as w:
        handle = w.register(add_one)
        with pytest.raises(OrchestrationError) as info:
            w.run(orchestration(function), handle)
    error = info.value
    assert isinstance(error, TypeError)
    assert error.filename == __file__
    assert error.lineno == line_of(function, "# here")
    assert CANNOT[function] in error.reason
    assert error.reason and len(error.reason) < 300 and "\n" not in error.reason
    assert str(error).startswith(f"{__file__}, line {error.lineno}: ")


@pytest.mark.spec("SPEED-ORCH-10")
@pytest.mark.skipif(INTERPRETED, reason="NUMBA_DISABLE_JIT=1: nothing is compiled")
def test_arguments_without_a_compiled_form_are_named():
    with Worker(3, num_sub_workers=1) as w:

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
def test_a_function_is_compiled_once_also_when_it_is_defined_again():
    with Worker(3, num_sub_workers=1) as w:
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
@pytest.mark.parametrize("what", ["waits", "submits", "submits and catches"])
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

        def submits_and_catches(orch, args, config):
            try:
                for _ in range(args):
                    with orch.scope():
                        orch.submit_sub(handle)
            except Exception:
                orch.live_tasks()

        function = {"waits": waits, "submits": submits}.get(what, submits_and_catches)
        for way in ways(function):
            w.run(way, 1)
            with pytest.raises(Terminated), terminated_after(0.3):
                w.run(way, 1 << 60)
            assert w.run(lambda orch, *_: orch.submit_sub(handle)).tasks == 1
