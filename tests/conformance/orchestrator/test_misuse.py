"""ORCH-MISUSE: calls that are refused."""

import mmap
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from simpler_ref import ContinuousTensor, DataType, Rows, TaskArgs, Worker
from simpler_ref.jit import layout as L
from simpler_ref.task_interface import TensorArgType as T
from tests.support import DEADLINE_S, key, make_args, wait_until
from tests.system.programs import in_a_fork

KIB = 1024


def nothing(args):
    pass


def run(w, body):
    """Run a function of the orchestrator alone."""
    return w.run(lambda orch, *_: body(orch))


@pytest.fixture(scope="module")
def other():
    """Give another Worker."""
    with Worker(3, num_sub_workers=1) as made:
        made.start()
        yield made


MANY = make_args(*[(key(0, 1), T.OUTPUT)] * 376)
LARGE = make_args((key(0, KIB), T.OUTPUT), (key(0, 5 * KIB), T.OUTPUT), scalars=[1])


@pytest.mark.spec("ORCH-MISUSE-1")
def test_a_refused_call_changes_no_word_of_the_engine_and_no_argument(other):
    small = {"heap_ring_size": 4 * KIB, "task_window": 64, "values_size": 1}
    with Worker(3, num_sub_workers=1, **small) as w:  # its words are compared
        foreign, handle, stale = other.register(nothing), w.register(nothing), w.register(print)
        w.unregister(stale)
        w.start()
        w._session.scheduler.stop()  # so that nobody else writes either

        def body(orch):
            refused = {
                "no handle": lambda: orch.submit_sub(print, make_args()),
                "no handle, no args": lambda: orch.submit_sub(None),
                "foreign handle": lambda: orch.submit_sub(foreign),
                "stale handle": lambda: orch.submit_sub(stale),
                "no TaskArgs": lambda: orch.submit_sub(handle, [1, 2]),
                "too many arguments": lambda: orch.submit_sub(handle, MANY),
                "outputs too large": lambda: orch.submit_sub(handle, LARGE),
                "alloc too large": lambda: orch.alloc(5 * KIB, "uint8"),
                "alloc of no type": lambda: orch.alloc(5, "float65"),
                "alloc of objects": lambda: orch.alloc(5, object),
                "alloc of 65 dimensions": lambda: orch.alloc((1,) * 65, "uint8"),
                "alloc of a negative size": lambda: orch.alloc((-1,), "uint8"),
                "scope_end": orch.scope_end,
                "run": lambda: w.run(lambda *_: None),
                "register": lambda: w.register(3),
                "unregister": lambda: w.unregister(stale),
                "start": w.start,
                "close": w.close,
            }
            orch.alloc(100, "uint8")
            orch.submit_sub(handle, make_args((key(64), T.INOUT)))
            orch.drain()
            mem = orch._mem
            wait_until(lambda: mem[int(mem[L.A_WORKERS]) + L.W_PARKED] == 1)
            for name, call in refused.items():
                before = mem.copy()
                with pytest.raises((TypeError, ValueError, KeyError, RuntimeError)):
                    call()
                assert np.flatnonzero(mem != before).tolist() == [], name

        wires = [[*args._tensors, *args._scalars] for args in (MANY, LARGE)]
        assert run(w, body).tasks == 2
        assert [[*args._tensors, *args._scalars] for args in (MANY, LARGE)] == wires


@pytest.mark.spec("ORCH-MISUSE-2")
def test_a_private_array_is_refused_and_the_message_says_how_to_share_it(w):
    def body(orch):
        args = TaskArgs()
        with pytest.raises(ValueError, match=r"cannot see.*private.*Worker\.share"):
            args.add_tensor(np.zeros(100_000, np.int32))
        with pytest.raises(ValueError, match=r"Worker\.share"):
            args.add_tensor(np.zeros(3, np.int32), T.OUTPUT)
        assert len(args) == 0
        args.add_tensor(w.share(np.zeros(3, np.int32)))
        assert len(args) == 1

    body(None)
    run(w, body)


@pytest.mark.spec("ORCH-MISUSE-2")
def test_shared_memory_from_after_the_start_is_refused_and_from_before_accepted():
    """So it is where a process forked in the block opens the Worker."""
    early = np.frombuffer(mmap.mmap(-1, 4096), np.int32)  # shared, and inherited by the workers

    def program():
        handle = w.register(lambda args: args.tensor(0).numpy().__iadd__(1))
        w.init()
        w.start()
        late = np.frombuffer(mmap.mmap(-1, 4096), np.int32)

        def body(orch):
            with pytest.raises(ValueError, match=r"after the workers were started.*share"):
                TaskArgs().add_tensor(late)
            with pytest.raises(ValueError, match="cannot see"):
                TaskArgs().add_tensor(foreign)
            orch.submit_sub(handle, make_args((early, T.INOUT)))

        with Worker(3) as later:
            foreign = later.share(np.zeros(4, np.int32))
            run(w, body)
        w.close()

    for forked in (True, False):
        with Worker(3, num_sub_workers=1) as w:
            in_a_fork(program) if forked else program()
    assert (early == 2).all()


@pytest.mark.spec("ORCH-MISUSE-2")
def test_an_address_given_by_hand_is_believed(w):
    private, seen = np.zeros(4, np.int32), w.share(np.zeros(2, np.int64))

    def look(args):
        seen[:] = args.tensor(0).data, args.tensor(1).data

    def body(orch):
        by_hand = ContinuousTensor.make(private.ctypes.data, (4,), DataType.INT32)
        no_memory = ContinuousTensor.make(0xDEADBEEF00, (4,), DataType.INT32)
        orch.submit_sub(handle, make_args((by_hand, T.INPUT), (no_memory, T.INOUT)))
        orch.submit_sub(handle, make_args((by_hand, T.INPUT), (no_memory, T.INPUT)))

    handle = w.register(look)
    assert (run(w, body).edges, seen.tolist()) == (1, [private.ctypes.data, 0xDEADBEEF00])


@pytest.mark.spec("ORCH-MISUSE-3")
def test_arrays_of_python_objects_and_what_is_no_array_are_refused(w):
    args, square = TaskArgs(), w.empty((4, 4), np.int32)
    for dtype in (object, [("name", object), ("size", int)]):
        with pytest.raises(TypeError, match=r"elements of type .*Python objects; convert them"):
            args.add_tensor(np.zeros(4, dtype))
    for wrong in (None, [1, 2], "x", 5, b"abc"):
        with pytest.raises(TypeError):
            args.add_tensor(wrong)
    for more, text in (  # than its memory
        (np.ma.masked_array(square, square == 0), "MaskedArray .* pass x.data and x.mask"),
        (square.view(np.matrix), r"matrix .* pass np.asarray\(x\)"),
    ):
        with pytest.raises(TypeError, match=text):
            args.add_tensor(more)
    assert len(args) == 0
    good = square, square[1:3], square[2], w.empty((1,) * 5, np.bool_), w.empty((), "i1")
    for tensor in good:
        args.add_tensor(tensor)
    assert len(args) == 5


@pytest.mark.spec("ORCH-MISUSE-3")
@pytest.mark.parametrize("cut", [lambda x: x[::2], lambda x: np.broadcast_to(x, 4)])
def test_a_read_only_array_is_not_written(w, cut):
    x = w.zeros(4, np.int32)
    view = cut(x)
    view.setflags(write=False)
    args = TaskArgs()
    for tag in [T.OUTPUT, T.INOUT, T.OUTPUT_EXISTING] * 2:
        with pytest.raises(ValueError, match=rf"tagged {tag.name}: the array is read-only"):
            args.add_tensor(view, tag)
        assert len(args) == 0
    for tag in (T.INPUT, T.NO_DEP):
        args.add_tensor(view, tag)
    for _ in range(2):
        args.add_tensor(x, T.INOUT)
        x.setflags(write=False)
        with pytest.raises(ValueError, match="is read-only"):
            args.add_tensor(x, T.INOUT)
        x.setflags(write=True)
    assert len(args) == 4


@pytest.mark.spec("ORCH-MISUSE-3")
def test_no_column_has_read_only_arrays_that_tasks_write(w):
    handle = w.register(nothing)
    x, y = w.zeros((3, 4), np.int32), w.zeros((3, 4), np.int32)
    view = x[:]
    view.setflags(write=False)
    mixed = [T.INPUT, T.INOUT, T.INPUT]

    def body(orch):
        for column in (view, Rows(view, [0, 2, 1])):
            for tag in (T.INOUT, mixed):
                refused = r"^tensors\[1\].*INOUT: the array is read-only"
                with pytest.raises(ValueError, match=refused):
                    orch.submit_sub_many(handle, [y, column], [T.INPUT, tag])
            orch.submit_sub_many(handle, [y, column], [T.INPUT, T.INPUT])

    assert run(w, body).tasks == 6


@pytest.mark.spec("ORCH-MISUSE-4")
def test_a_tensor_after_a_scalar_and_an_index_out_of_range_are_refused():
    args = TaskArgs()
    args.add_tensor(key(64))
    args.add_scalar(1)
    with pytest.raises(RuntimeError, match="cannot add tensor after scalar"):
        args.add_tensor(key(128))
    assert (args.tensor_count(), args.scalar_count()) == (1, 1)
    for call in (args.tensor, args.scalar, args.tag, lambda i: args.set_tag(i, T.INPUT)):
        for index in (1, -1, 100):
            with pytest.raises(IndexError, match=f"{index} is out of range"):
                call(index)
        for index in ("x", None, 1.5):
            with pytest.raises(TypeError, match=f"index {index!r} is not a whole number"):
                call(index)
    args.clear()
    args.add_tensor(key(128))


@pytest.mark.spec("ORCH-MISUSE-5")
@pytest.mark.parametrize(("tensors", "scalars"), [(375, 2), (0, 1877), (128, 128), (200, 877)])
def test_arguments_up_to_the_mailbox_travel_and_one_more_is_refused(w, tensors, scalars):
    seen = w.share(np.zeros(3, np.int64))

    def look(args):
        last = args.scalar_count() - 1
        seen[:] = args.tensor_count(), args.scalar_count(), args.scalar(last)

    def arguments(tensors, scalars):
        return make_args(*[(key(64), T.NO_DEP)] * tensors, scalars=range(scalars))

    def body(orch):
        one_more = (L.MAILBOX_ARGS_CAPACITY - 8 - 40 * tensors) // 8 + 1
        before = orch._mem[L.ORCH : L.ORCH_PASSES].tolist()
        for counts in ((tensors, one_more), (tensors, one_more + 100_000), (10_000, 0)):
            nbytes = 8 + 40 * counts[0] + 8 * counts[1]
            with pytest.raises(ValueError, match=rf"{nbytes} bytes.*15024.*fewer"):
                orch.submit_sub(handle, arguments(*counts))
        assert orch._mem[L.ORCH : L.ORCH_PASSES].tolist() == before
        orch.submit_sub(handle, arguments(tensors, scalars))

    handle = w.register(look)
    assert (run(w, body).tasks, seen.tolist()) == (1, [tensors, scalars, scalars - 1])


ORCH_CALLS = {
    "submit": lambda orch, handle: orch.submit_sub(handle),
    "submit with arguments": lambda orch, handle: orch.submit_sub(handle, make_args()),
    "alloc": lambda orch, handle: orch.alloc(8, "uint8"),
    "scope": lambda orch, handle: orch.scope().__enter__(),
    "scope_begin": lambda orch, handle: orch.scope_begin(),
    "scope_end": lambda orch, handle: orch.scope_end(),
    "drain": lambda orch, handle: orch.drain(),
    "allocate_domain": lambda orch, handle: orch.allocate_domain("d", [0], 64),
    "malloc": lambda orch, handle: orch.malloc(0, 8),
    "free": lambda orch, handle: orch.free(0, 4096),
    "copy_to": lambda orch, handle: orch.copy_to(0, 4096, 4096, 8),
    "copy_from": lambda orch, handle: orch.copy_from(0, 4096, 4096, 8),
}


@pytest.mark.spec("ORCH-MISUSE-7")
@pytest.mark.parametrize("name", ORCH_CALLS)
def test_an_orch_kept_beyond_its_run_refuses_every_call(w, name):
    handle, kept = w.register(nothing), []

    def refused(orch=None):
        if orch is not None:
            orch.scope_begin()
        mem = kept[0]._mem
        before = mem[L.RING_BLOCK : L.ORCH_PASSES].tolist()
        ended = r"run has ended.*only while the orchestration function"
        with pytest.raises(RuntimeError, match=ended):
            ORCH_CALLS[name](kept[0], handle)
        assert mem[L.RING_BLOCK : L.ORCH_PASSES].tolist() == before

    run(w, kept.append)
    refused()
    assert run(w, refused).tasks == 0  # during a later run too
    with pytest.raises(ZeroDivisionError):
        run(w, lambda orch: (kept.insert(0, orch), 1 / 0))
    refused()
    run(w, refused)


@pytest.mark.spec("ORCH-MISUSE-8")
def test_run_inside_an_orch_function_of_the_same_worker_is_refused(w, other):
    handle = w.register(nothing)

    def body(orch):
        with pytest.raises(RuntimeError, match="run"):
            w.run(lambda *_: None)
        with ThreadPoolExecutor(1) as thread:
            refusal = thread.submit(w.run, lambda *_: None).exception(DEADLINE_S)
        assert isinstance(refusal, RuntimeError)
        other.run(lambda *_: None)  # another Worker's is fine
        orch.submit_sub(handle)

    assert run(w, body).tasks == run(w, lambda orch: orch.submit_sub(handle)).tasks == 1


@pytest.mark.spec("ORCH-MISUSE-9")
def test_use_before_init_or_after_close_and_a_second_init_are_refused():
    def refused(calls, words):
        for call in calls:
            with pytest.raises(RuntimeError, match=words):
                call()

    w = Worker(3, num_sub_workers=1)
    handle = w.register(nothing)
    calls = [
        *(w.start, w.worker_pids, w.progress, lambda: w.run(lambda *_: None)),
        *(lambda: w.empty(3), lambda: w.share(np.zeros(3))),
    ]
    refused(calls, r"not initialized: call init\(\) first, or use it in a with block")
    w.init()
    w.start()
    w.start()
    refused([w.init], "already initialized")
    assert run(w, lambda orch: orch.submit_sub(handle)).tasks == 1
    w.close()
    never = Worker(3)
    never.close()
    calls += [w.init, w.__enter__, lambda: w.register(nothing), lambda: w.unregister(handle)]
    refused([*calls, never.init], "closed; make a new one")


@pytest.mark.spec("ORCH-MISUSE-10")
def test_a_submit_without_sub_workers_is_refused_instead_of_waiting():
    other = Worker(3)
    handle = other.register(nothing)

    def body(orch):
        refused = r"no sub workers; give Worker\(num_sub_workers=…\)"
        for args in ((), (make_args((key(64), T.INOUT)),)):
            with pytest.raises(RuntimeError, match=refused):
                orch.submit_sub(handle, *args)
        orch.alloc(8, "uint8")

    with other:
        assert run(other, body).tasks == 1


@pytest.mark.spec("ORCH-MISUSE-11")
def test_worker_refuses_what_it_does_not_know_and_values_out_of_range():
    with pytest.raises(TypeError, match="num_workers"):
        Worker(3, num_workers=2)
    with pytest.raises(TypeError):
        Worker(3, 2)
    for name, values in {
        "num_sub_workers": (-1, 10**6),
        "heap_ring_size": (0, -1024, 1 << 60),
        "alloc_timeout_s": (-0.1, float("nan"), float("inf")),
        "ring_depth": (0, 5, -1),
        "task_window": (0, -1, 1 << 40),
        "arena_size": (0, -1),
        "values_size": (0, -1, 1 << 50),
        "start_timeout_s": (-1,),
    }.items():
        for value in values:
            with pytest.raises(ValueError, match=name):
                Worker(3, **{name: value})
