"""Calls that are refused: the right exception, a message with the value and the remedy, no harm."""

from __future__ import annotations

import mmap
import resource
import threading

import numpy as np
import pytest

from simpler_ref import (
    CallConfig,
    ContinuousTensor,
    DataType,
    RingFullError,
    TaskArgs,
    TaskError,
    Worker,
    WorkerLostError,
)
from simpler_ref import TensorArgType as T
from simpler_ref.jit import layout as L

from ..support import Gate
from .programs import Concurrently, Fork
from .test_failures import args_of, assert_works, mark, only

SHARE = r"Worker\.share\(array\) or Worker\.empty\(shape, dtype\)"


@pytest.fixture
def bench():
    with Bench() as made:
        yield made


class Bench:
    """A Worker with two processes that has run once, and must be able to after each test."""

    def __init__(self):
        self.w = Worker(level=3, num_sub_workers=2, heap_ring_size=1 << 16, alloc_timeout_s=30)

    def __enter__(self):
        self.w.init()
        self.marks = self.w.share(np.zeros(4, np.int64))
        self.ok = self.w.register(mark)
        assert_works(self.w, self.ok, self.marks)
        self.mem = self.w._session.engine.mem
        return self

    def __exit__(self, kind, *_):
        if kind is None and not self.w._life.closed:
            assert_works(self.w, self.ok, self.marks)
        self.w.close()

    def words(self):
        """Return a copy of what the Orch thread owns."""
        rings = self.mem[L.RING_BLOCK : L.ORCH].copy()
        own = self.mem[L.ORCH : L.SCHED].copy()
        own[L.ORCH_PASSES - L.ORCH] = 0
        return [*rings.tolist(), *own.tolist()]

    def refused_in_a_run(self, call, kind, match):
        """Call with an orch in the middle of a run: refused with nothing changed, and all goes on."""

        def graph(orch, args, config):
            with orch.scope():
                orch.submit_sub(self.ok, args_of((self.marks, T.INOUT), scalars=[1]))
                before = self.words()
                with pytest.raises(kind, match=match) as caught:
                    call(orch)
                assert type(caught.value) is kind
                assert self.words() == before
                orch.submit_sub(self.ok, args_of((self.marks, T.INOUT), scalars=[1]))

        self.marks[1] = 0
        assert self.w.run(graph).tasks == 2
        assert self.marks[1] == 2


# ---------------------------------------------------------------- tensors
def shared_mapping(nbytes=4096):
    return np.frombuffer(mmap.mmap(-1, nbytes), np.uint8)


@pytest.mark.spec("ORCH-MISUSE-2")
def test_memory_a_worker_cannot_see_is_refused(bench):
    private = np.zeros(1000, np.float32)
    with pytest.raises(
        ValueError, match=f"4000 bytes at 0x.*private to this process; pass {SHARE}"
    ):
        TaskArgs().add_tensor(private)
    args = TaskArgs()
    bench.refused_in_a_run(lambda orch: args.add_tensor(private), ValueError, "is private")
    assert len(args) == 0
    on_the_stack = np.zeros((2, 2), np.int32)[0]
    bench.refused_in_a_run(lambda orch: args.add_tensor(on_the_stack), ValueError, "is private")
    late = shared_mapping()
    bench.refused_in_a_run(
        lambda orch: args.add_tensor(late),
        ValueError,
        f"4096 bytes at 0x.*allocated after the workers were started; pass {SHARE}",
    )
    assert len(args) == 0


@pytest.mark.spec("ORCH-MISUSE-2")
def test_shared_memory_mapped_before_the_start_is_taken_and_later_memory_by_another_worker():
    early = shared_mapping()
    with Worker(level=3, num_sub_workers=1) as w:

        def fill(args):
            args.tensor(0).numpy()[:] = args.scalar(0)

        h = w.register(fill)
        w.run(only(h, args_of((early, T.INOUT), scalars=[7])))
        assert set(early) == {7}
        late = shared_mapping()
        with pytest.raises(ValueError, match="after the workers were started"):
            TaskArgs().add_tensor(late)
    with Worker(level=3, num_sub_workers=1) as w:
        h = w.register(fill)
        w.run(only(h, args_of((late, T.INOUT), scalars=[8])))
        assert set(late) == {8}


@pytest.mark.spec("ORCH-MISUSE-2")
def test_arguments_made_outside_of_a_run_are_looked_at_anew_by_the_worker_of_each_run():
    def add_one(args):
        args.tensor(0).numpy()[:] += 1

    with Worker(level=3, num_sub_workers=1) as early:
        first = early.register(add_one)
        early.run(lambda *_: None)  # what comes now, its workers do not see
        with Worker(level=3, num_sub_workers=1) as w:
            second = w.register(add_one)
            x = w.share(np.zeros(4, np.float32))
            args = args_of((x, T.INOUT))

            def twice(handle):
                return lambda orch, *_: [orch.submit_sub(handle, args) for _ in range(2)]

            for _ in range(2):
                w.run(twice(second))
                with pytest.raises(ValueError, match="after the workers were started"):
                    early.run(twice(first))
            assert x.tolist() == [4.0] * 4


def test_a_mapping_that_replaced_another_at_its_address_is_not_taken_for_it():
    page = mmap.PAGESIZE
    old = mmap.mmap(-1, 64 * page)
    address = np.frombuffer(old, np.uint8).ctypes.data
    with Worker(level=3, num_sub_workers=1) as w:
        w.start()
        old.close()
        kept = []
        for _ in range(200):
            new = mmap.mmap(-1, 64 * page)
            kept.append(new)
            array = np.frombuffer(new, np.uint8)
            if array.ctypes.data == address:
                break
        assert array.ctypes.data == address, "the address was not handed out again"
        with pytest.raises(ValueError, match="after the workers were started"):
            TaskArgs().add_tensor(array)


@pytest.mark.spec("ORCH-MISUSE-3")
@pytest.mark.parametrize(
    "make, kind, match",
    [
        (lambda w: w.empty(8, np.float64), TypeError, r"dtype\('float64'\).*convert to one of"),
        (lambda w: w.empty(8, np.complex64), TypeError, "complex64"),
        (lambda w: w.empty(8, "S3"), TypeError, "S3"),
        (lambda w: w.empty(8, ">i4"), TypeError, ">i4"),
        (lambda w: w.empty((1, 2, 1, 2, 1, 2), np.int8), ValueError, "at most 5.*has 6.*reshape"),
        (lambda w: w.empty((4, 4), np.int8).T, ValueError, f"not contiguous; pass {SHARE[:12]}"),
        (lambda w: w.empty(8, np.int8)[::2], ValueError, "strides.*not contiguous"),
        (lambda w: w.empty(8, np.int8)[::-1], ValueError, "strides.*not contiguous"),
        (lambda w: [1, 2, 3], TypeError, f"got list; pass {SHARE[:12]}"),
        (lambda w: None, TypeError, "got NoneType"),
        (lambda w: 3.5, TypeError, "got float"),
        (lambda w: b"bytes", TypeError, "got bytes"),
    ],
)
def test_what_is_no_tensor_is_refused_when_it_is_added(bench, make, kind, match):
    args = args_of((bench.marks, T.INPUT))
    thing = make(bench.w)
    bench.refused_in_a_run(lambda orch: args.add_tensor(thing), kind, match)
    assert args.tensor_count() == 1


def test_errors_of_add_tensor_have_no_inner_error_attached(bench):
    with pytest.raises(ValueError) as caught:
        TaskArgs().add_tensor(np.zeros(3, np.int8))
    assert caught.value.__context__ is None


@pytest.mark.parametrize(
    "make, kind, match",
    [
        (lambda: ContinuousTensor.make(-1, (1,), DataType.INT8), ValueError, "-1"),
        (lambda: ContinuousTensor.make(1 << 64, (1,), DataType.INT8), ValueError, str(1 << 64)),
        (lambda: ContinuousTensor.make(0, (-1,), DataType.INT8), ValueError, r"\(-1,\)"),
        (lambda: ContinuousTensor.make(0, (1 << 32,), DataType.INT8), ValueError, "4294967296"),
        (lambda: ContinuousTensor.make(0, (1,) * 6, DataType.INT8), ValueError, "at most 5"),
        (lambda: ContinuousTensor.make(0, (1 << 31,) * 3, DataType.INT8), ValueError, "address"),
        (lambda: ContinuousTensor.make(0, (1,), 77), ValueError, "77"),
        (lambda: ContinuousTensor.make(0, (1,), "float99"), TypeError, "float99"),
    ],
)
def test_a_tensor_by_hand_must_be_one(make, kind, match):
    with pytest.raises(kind, match=match):
        make()


class FakeDevice:
    def __init__(self, kind="cpu"):
        self.type = kind

    def __str__(self):
        return self.type


class FakeTorchTensor:
    """What of torch's CPU tensors the package relies on; no package needed."""

    def __init__(self, array, device="cpu", dtype=None):
        self._array = array
        self.device = FakeDevice(device)
        self.shape = array.shape
        self.dtype = f"torch.{dtype or array.dtype}"

    def data_ptr(self):
        return self._array.ctypes.data

    def element_size(self):
        return self._array.itemsize

    def numel(self):
        return self._array.size

    def is_contiguous(self):
        return self._array.flags.c_contiguous


def test_a_torch_tensor_in_shared_memory_is_taken_and_others_are_refused(bench):
    shared = bench.w.share(np.zeros((3, 4), np.int64))

    def graph(orch, args, config):
        orch.submit_sub(bench.ok, args_of((FakeTorchTensor(shared[0]), T.INOUT), scalars=[2]))

    bench.w.run(graph)
    assert shared[0].tolist() == [0, 0, 1, 0]
    half = TaskArgs()
    half.add_tensor(FakeTorchTensor(shared.view(np.uint16), dtype="bfloat16"))
    assert half.tensor(0).dtype == DataType.BFLOAT16
    args = TaskArgs()
    for tensor, kind, match in (
        (FakeTorchTensor(np.zeros(3, np.int32)), ValueError, r"private.*share_memory_\(\) before"),
        (FakeTorchTensor(shared, device="cuda:0"), ValueError, "cuda:0.*pass a CPU tensor"),
        (FakeTorchTensor(shared.T), ValueError, r"contiguous; call .contiguous\(\)"),
        (FakeTorchTensor(shared, dtype="float64"), TypeError, "torch.float64.*convert"),
    ):
        bench.refused_in_a_run(lambda orch, t=tensor: args.add_tensor(t), kind, match)
    assert len(args) == 0


# ---------------------------------------------------------------- scalars, tags, indices
@pytest.mark.spec("ORCH-MISUSE-4")
def test_arguments_out_of_order_or_range_are_refused(bench):
    args = args_of((bench.marks, T.INPUT), scalars=[1])
    for call, kind, match in (
        (lambda: args.add_tensor(bench.marks), RuntimeError, "cannot add tensor after scalar"),
        (lambda: args.add_scalar(1 << 64), OverflowError, f"{1 << 64} does not fit 64 bits"),
        (lambda: args.add_scalar(-(1 << 63) - 1), OverflowError, "does not fit 64 bits"),
        (lambda: args.add_scalar("word"), (TypeError, ValueError), "word"),
        (lambda: args.add_scalar(None), TypeError, "NoneType"),
        (lambda: args.add_scalar(1j), TypeError, "complex"),
        (lambda: args.tensor(1), IndexError, "tensor index 1 is out of range: there are 1"),
        (lambda: args.tensor(-1), IndexError, "tensor index -1"),
        (lambda: args.scalar(1), IndexError, "scalar index 1 is out of range: there are 1"),
        (lambda: args.tag(1), IndexError, "tag index 1 is out of range: there are 1"),
        (lambda: args.set_tag(2, T.INPUT), IndexError, "tag index 2"),
        (lambda: args.set_tag(0, 9), ValueError, "9 is no TensorArgType; use INPUT, OUTPUT"),
    ):
        with pytest.raises(kind, match=match):
            call()
    assert (args.tensor_count(), args.scalar_count(), args.tag(0)) == (1, 1, T.INPUT)
    tags = TaskArgs()
    for tag in (7, -1, "INPUT", None, [], 1.5):
        with pytest.raises(ValueError, match=r"is no TensorArgType; use INPUT, OUTPUT, INOUT"):
            tags.add_tensor(bench.marks, tag)
    assert len(tags) == 0


def test_scalars_of_every_sign_and_size_that_fits_travel_bit_by_bit(bench):
    numbers = [0, 1, -1, (1 << 64) - 1, -(1 << 63), (1 << 63) - 1]
    got = bench.w.empty(len(numbers), np.uint64)

    def copy(args):
        for i in range(args.scalar_count()):
            args.tensor(0).numpy()[i] = args.scalar(i) % (1 << 64)

    h = bench.w.register(copy)
    bench.w.run(only(h, args_of((got, T.OUTPUT_EXISTING), scalars=numbers)))
    assert got.tolist() == [n % (1 << 64) for n in numbers]


# ---------------------------------------------------------------- handles
def test_a_handle_of_a_closed_worker_is_foreign_to_the_next():
    with Worker(level=3, num_sub_workers=1) as old:
        handle = old.register(mark)
    with Worker(level=3, num_sub_workers=1) as new:
        with pytest.raises(KeyError, match="does not belong"):
            new.run(only(handle))
        again = new.register(mark)
        assert again.hashid == handle.hashid
        with pytest.raises(KeyError, match="does not belong"):
            new.run(only(handle))


def test_one_callable_under_two_handles_lives_until_the_second_is_given_back(bench):
    first, second = bench.w.register(mark), bench.w.register(mark)
    assert first is not second
    bench.w.unregister(first)
    marks = bench.marks
    bench.w.run(only(second, args_of((marks, T.INOUT), scalars=[3])))
    bench.refused_in_a_run(lambda orch: orch.submit_sub(first), KeyError, "not live")


def test_what_cannot_be_called_is_not_registered(bench):
    for thing in (None, 3, "name", object()):
        with pytest.raises(TypeError, match=f"expects a callable, got {type(thing).__name__}"):
            bench.w.register(thing)
    bench.refused_in_a_run(lambda orch: bench.w.register(3), TypeError, "expects a callable")


# ---------------------------------------------------------------- when and where
def _refused_on_this_thread(orch, bench):
    for call in (
        lambda: orch.submit_sub(bench.ok),
        lambda: orch.alloc(8, np.int8),
        orch.scope_begin,
        orch.scope_end,
    ):
        with pytest.raises(RuntimeError, match=r"belongs to the thread that called Worker\.run"):
            call()


@pytest.mark.spec("ORCH-INV-1")
def test_another_thread_cannot_use_the_orch(bench):
    def graph(orch, args, config):
        before = bench.words()
        with Concurrently(lambda: _refused_on_this_thread(orch, bench)):
            pass
        assert bench.words() == before

    bench.w.run(graph)


@pytest.mark.spec("ORCH-SCOPE-3", "ORCH-SCOPE-4")
def test_scopes_that_do_not_match_are_refused(bench):
    def graph(orch, args, config):
        with pytest.raises(RuntimeError, match="scope_end without scope_begin"):
            orch.scope_end()
        orch.scope_begin()
        orch.scope_end()
        with pytest.raises(RuntimeError, match="scope_end without scope_begin"):
            orch.scope_end()
        with (
            pytest.raises(RuntimeError, match=r"scope_end without scope_begin.*inside its with"),
            orch.scope(),
        ):
            orch.scope_end()
        guard = orch.scope()
        with guard, pytest.raises(RuntimeError, match="open already"):
            guard.__enter__()
        with orch.scope():  # ends what was left open inside it
            orch.scope_begin()
            orch.scope_begin()
        with pytest.raises(ValueError, match="mine"), orch.scope():
            orch.scope_end()
            raise ValueError("mine")
        assert orch._mem[L.SCOPE_DEPTH] == 1
        for _ in range(64):
            orch.scope_begin()
        before = bench.words()
        with pytest.raises(RuntimeError, match=r"maximum nesting depth exceeded: 64"):
            orch.scope_begin()
        with pytest.raises(RuntimeError, match=r"maximum nesting depth exceeded"):
            orch.scope().__enter__()
        assert bench.words() == before
        orch.submit_sub(bench.ok, args_of((bench.marks, T.INOUT), scalars=[2]))

    bench.w.run(graph)  # all 64 are still open at its end
    assert bench.marks[2] == 1


@pytest.mark.parametrize(
    "shape, dtype, kind, match",
    [
        ((2,), "float77", TypeError, "float77"),
        ((2,), np.float64, TypeError, "float64"),
        ((1,) * 6, np.int8, ValueError, "at most 5 dimensions, this one has 6"),
        (-1, np.int8, ValueError, r"\(-1,\)"),
        ((2, -3), np.int8, ValueError, r"\(2, -3\)"),
        ((1 << 20,), np.int8, RuntimeError, "exceeds per-ring heap size.*1.0 MiB.*heap_ring_size="),
        ("ab", np.int8, TypeError, "shape .ab. must be a sequence of integers"),
        (2.5, np.int8, TypeError, "shape 2.5 must be a sequence of integers"),
    ],
)
def test_an_alloc_that_makes_no_sense_is_refused(bench, shape, dtype, kind, match):
    bench.refused_in_a_run(lambda orch: orch.alloc(shape, dtype), kind, match)


@pytest.mark.spec("ORCH-MISUSE-8")
def test_what_must_not_happen_during_a_run_is_refused(bench):
    w = bench.w
    for call, match in (
        (lambda: w.run(lambda *_: None), "a run is in progress.*cannot be nested"),
        (w.close, "close during a run: let the run end first"),
        (w.start, "start during a run"),
        (w.init, "already initialized"),
    ):
        bench.refused_in_a_run(lambda orch, c=call: c(), RuntimeError, match)

        def on_a_thread(orch, call=call, match=match):
            def refused():
                with pytest.raises(RuntimeError, match=match):
                    call()

            with Concurrently(refused):
                pass
            raise LookupError("done")

        bench.refused_in_a_run(on_a_thread, LookupError, "done")


def test_two_threads_cannot_run_one_worker_at_once(bench):
    with Gate() as inside, Gate() as leave:

        def long(orch, args, config):
            inside.open(1)
            leave.wait()
            orch.submit_sub(bench.ok, args_of((bench.marks, T.INOUT), scalars=[3]))

        with Concurrently(lambda: bench.w.run(long)):
            inside.wait()
            for _ in range(3):
                with pytest.raises(RuntimeError, match="a run is in progress"):
                    bench.w.run(lambda *_: None)
            leave.open()
        assert bench.marks[3] == 1


def test_many_threads_may_try_and_each_run_is_whole(bench):
    done, refused = [], []
    barrier = threading.Barrier(4)

    def life():
        cell = bench.w.share(np.zeros(1, np.int64))
        barrier.wait(30)
        runs = 0
        while runs < 30:

            def graph(orch, args, config):
                for _ in range(3):
                    orch.submit_sub(bench.ok, args_of((args, T.INOUT), scalars=[0]))

            try:
                assert bench.w.run(graph, cell).tasks == 3
                runs += 1
            except RuntimeError as error:
                assert "in progress" in str(error)
                refused.append(1)
        done.append(int(cell[0]))

    threads = [Concurrently(life) for _ in range(4)]
    for thread in threads:
        thread.__enter__()
    for thread in threads:
        thread.__exit__(None)
    assert done == [90] * 4


def test_callables_registered_before_init_are_known_to_workers_started_by_hand():
    w = Worker(level=3, num_sub_workers=1)
    handle = w.register(mark)
    w.init()
    w.start()
    marks = w.share(np.zeros(4, np.int64))
    assert_works(w, handle, marks)
    w.close()


@pytest.mark.spec("ORCH-MISUSE-11")
@pytest.mark.parametrize(
    "keywords, kind, match",
    [
        ({"level": 1}, ValueError, "level 1 not supported"),
        ({"level": 2, "num_sub_workers": 1}, ValueError, "level 2 Worker is one chip"),
        ({"device_ids": 2}, TypeError, r"device_ids=2: give a sequence of numbers, \[0\] for one"),
        ({"level": 0}, ValueError, "level 0 not supported"),
        ({"level": -3}, ValueError, "level -3 not supported"),
        ({"level": True}, ValueError, "level True not supported"),
        ({"level": "3"}, ValueError, "level '3' not supported"),
        ({"level": 3.0}, ValueError, "level 3.0 not supported"),
        ({"num_sub_workers": -1}, ValueError, "num_sub_workers=-1 is out of range: 0 … 1024"),
        ({"num_sub_workers": 1025}, ValueError, "num_sub_workers=1025"),
        ({"num_sub_workers": 1.5}, TypeError, "num_sub_workers.*1.5"),
        ({"num_sub_workers": "2"}, TypeError, "num_sub_workers.*'2'"),
        ({"num_sub_workers": None}, TypeError, "num_sub_workers.*None"),
        ({"heap_ring_size": 0}, ValueError, "heap_ring_size=0"),
        ({"heap_ring_size": -5}, ValueError, "heap_ring_size=-5"),
        ({"heap_ring_size": 1 << 60}, ValueError, "heap_ring_size="),
        ({"heap_ring_size": 1e6}, TypeError, "heap_ring_size.*1000000.0"),
        ({"alloc_timeout_s": -0.1}, ValueError, "alloc_timeout_s=-0.1"),
        ({"alloc_timeout_s": float("nan")}, ValueError, "alloc_timeout_s=nan"),
        ({"alloc_timeout_s": "1"}, TypeError, "alloc_timeout_s.*'1'"),
        ({"ring_depth": 0}, ValueError, "ring_depth=0 is out of range: 1 … 4"),
        ({"ring_depth": 5}, ValueError, "ring_depth=5"),
        ({"task_window": 0}, ValueError, "task_window=0"),
        ({"task_window": -1}, ValueError, "task_window=-1"),
        ({"task_window": 1.0}, TypeError, "task_window.*1.0"),
        ({"arena_size": 0}, ValueError, "arena_size=0"),
        ({"start_timeout_s": -1}, ValueError, "start_timeout_s=-1"),
        ({"workers": 3}, TypeError, "workers"),
        ({"sub_workers": 3}, TypeError, "sub_workers"),
    ],
)
def test_a_worker_that_cannot_be_is_refused(keywords, kind, match):
    with pytest.raises(kind, match=match):
        Worker(**{"level": 3, **keywords})


def test_numbers_of_numpy_are_numbers():
    with Worker(
        level=np.int64(3),
        num_sub_workers=np.int32(1),
        heap_ring_size=np.uint32(1 << 16),
        alloc_timeout_s=np.float32(2),
    ) as w:
        marks = w.share(np.zeros(4, np.int64))
        assert_works(w, w.register(mark), marks)


def test_more_memory_than_can_be_mapped_is_an_error_with_a_remedy():
    def program():
        limits = resource.getrlimit(resource.RLIMIT_AS)
        w = Worker(level=3, num_sub_workers=1, heap_ring_size=1 << 40, arena_size=1 << 30)
        resource.setrlimit(resource.RLIMIT_AS, (1 << 36, limits[1]))
        remedy = "cannot map.*ask for less: heap_ring_size, arena_size and task_window"
        with pytest.raises(MemoryError, match=remedy):
            w.init()
        resource.setrlimit(resource.RLIMIT_AS, limits)
        w.init()
        assert_works(w, w.register(mark), w.share(np.zeros(4, np.int64)))
        w.close()

    with Fork(program) as fork:
        assert fork.wait() == 0


def test_what_cannot_be_run_is_refused(bench):
    for thing in (None, 3, bench.ok):
        with pytest.raises(TypeError, match="run expects an orchestration function, got"):
            bench.w.run(thing)
    with pytest.raises(TypeError, match="positional argument"):
        bench.w.run(lambda orch: None)


@pytest.mark.spec("ORCH-MISUSE-12")
@pytest.mark.parametrize(
    "fields, match",
    [
        ({"enable_pmu": 1}, "enable_pmu is on without output_prefix"),
        ({"enable_l2_swimlane": 5, "output_prefix": "x"}, "enable_l2_swimlane is 5.*0 … 4"),
        ({"block_dim": -1}, "block_dim is -1"),
        ({"block_dim": 1 << 40}, "block_dim is"),
        ({"output_prefix": "x" * 1024}, "longer than 1023 bytes"),
    ],
)
def test_a_config_that_makes_no_sense_is_refused_before_anything_runs(bench, fields, match):
    ran = []
    with pytest.raises(ValueError, match=match):
        bench.w.run(lambda *_: ran.append(1), None, CallConfig(**fields))
    assert ran == []


def test_memory_of_the_arena_that_cannot_be_is_refused(bench):
    for call, kind, match in (
        (lambda: bench.w.empty(-1, np.int8), ValueError, "negative dimension"),
        (lambda: bench.w.empty((2, -2), np.int8), ValueError, "negative dimension"),
        (lambda: bench.w.empty(1 << 50, np.int8), MemoryError, "largest free span.*arena_size"),
        (lambda: bench.w.empty((1 << 40, 1 << 40), np.int8), MemoryError, "largest free span"),
        (lambda: bench.w.empty(2, "float99"), TypeError, "float99"),
        (lambda: bench.w.empty(2, object), TypeError, "object"),
        (lambda: bench.w.share(np.array([object()])), TypeError, "object"),
    ):
        with pytest.raises(kind, match=match):
            call()


def test_an_array_is_no_address(bench):
    with pytest.raises(TypeError, match=r"src=array.* its address is array\.ctypes\.data"):
        bench.w.copy_to(4096, bench.w.empty(4), 16)


def test_the_exceptions_are_the_built_in_ones_programs_match_on():
    assert issubclass(TaskError, RuntimeError)
    assert issubclass(WorkerLostError, RuntimeError)
    assert issubclass(RingFullError, RuntimeError)


# ---------------------------------------------------------------- in a worker
def test_a_leaf_cannot_use_the_worker_that_runs_it():
    with Worker(level=3, num_sub_workers=1) as w:

        def reenter():
            for call in (lambda: w.run(lambda *_: None), lambda: w.empty(3), w.start):
                with pytest.raises(
                    RuntimeError, match=r"belongs to process .* needs a Worker of its own"
                ):
                    call()
            w.close()  # gives up what a fork has of it, which is nothing

        w.run(only(w.register(reenter)))


def test_a_tensor_without_memory_says_so_in_the_worker(bench):
    def look(args):
        args.tensor(0).numpy()

    h = bench.w.register(look)
    unborn = ContinuousTensor.make(0, (4,), DataType.INT8)
    with pytest.raises(TaskError, match="ValueError: this tensor has no memory yet"):
        bench.w.run(only(h, args_of((unborn, T.INPUT))))
