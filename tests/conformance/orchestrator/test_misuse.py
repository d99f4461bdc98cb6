"""ORCH-MISUSE: calls that are refused."""

import mmap
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simpler_ref import CallConfig, ContinuousTensor, DataType, TaskArgs, Worker
from simpler_ref.jit import layout as L
from simpler_ref.task_interface import TensorArgType as T
from tests.support import Driver, auto, key, make_args, reads, wait_until, writes

KIB = 1024


def nothing(args):
    pass


def run(w, body):
    """Run a function of the orchestrator alone."""
    return w.run(lambda orch, *_: body(orch))


# ---------------------------------------------------------------- nothing changed
def stale_handle(w):
    handle = w.register(lambda: "stale")
    w.unregister(handle)
    return handle


REFUSED = {
    "no handle": lambda orch, handle, w, other: orch.submit_sub(print, make_args()),
    "no handle, no args": lambda orch, handle, w, other: orch.submit_sub(None),
    "foreign handle": lambda orch, handle, w, other: orch.submit_sub(other["foreign"]),
    "stale handle": lambda orch, handle, w, other: orch.submit_sub(other["stale"]),
    "no TaskArgs": lambda orch, handle, w, other: orch.submit_sub(handle, [1, 2]),
    "too many arguments": lambda orch, handle, w, other: orch.submit_sub(
        handle, make_args(*[(key(64 * i), T.INOUT) for i in range(376)])
    ),
    "outputs too large": lambda orch, handle, w, other: orch.submit_sub(
        handle, make_args((key(64), T.INOUT), (key(0, 5 * KIB), T.OUTPUT))
    ),
    "alloc too large": lambda orch, handle, w, other: orch.alloc(5 * KIB, "uint8"),
    "alloc of no type": lambda orch, handle, w, other: orch.alloc(5, "float64"),
    "alloc of six dimensions": lambda orch, handle, w, other: orch.alloc((1,) * 6, "uint8"),
    "alloc of a negative size": lambda orch, handle, w, other: orch.alloc((-1,), "uint8"),
    "scope_end": lambda orch, handle, w, other: orch.scope_end(),
    "run": lambda orch, handle, w, other: w.run(lambda *_: None),
    "register": lambda orch, handle, w, other: w.register(3),
    "unregister": lambda orch, handle, w, other: w.unregister(other["stale"]),
    "start": lambda orch, handle, w, other: w.start(),
    "close": lambda orch, handle, w, other: w.close(),
}


@pytest.mark.spec("ORCH-MISUSE-1")
def test_a_refused_call_changes_no_word_of_the_engine():
    with (
        Worker(3) as foreign,
        Worker(3, num_sub_workers=1, heap_ring_size=4 * KIB, task_window=64) as w,
    ):
        other = {"foreign": foreign.register(nothing), "stale": stale_handle(w)}
        handle = w.register(nothing)
        w.start()
        w._session.scheduler.stop()  # so that nobody else writes either
        mem = w._session.engine.mem
        parked = int(mem[L.A_WORKERS]) + L.W_PARKED

        def body(orch):
            orch.alloc(100, "uint8")
            orch.submit_sub(handle, make_args((key(64), T.INOUT)))
            wait_until(lambda: w.progress()[0] == 1 or kernels_pass(w))
            wait_until(lambda: mem[parked] == 1)
            for name, call in REFUSED.items():
                before = mem.copy()
                with pytest.raises((TypeError, ValueError, KeyError, RuntimeError)):
                    call(orch, handle, w, other)
                assert np.flatnonzero(mem != before).tolist() == [], name

        assert run(w, body).tasks == 2


def kernels_pass(w):
    """Run a pass, since no thread does; say False."""
    mem = w._session.engine.mem
    w._session.engine.kernels.help_scheduler(mem, -1, -1, int(mem[L.WIRING_TAKEN]), 10**6)
    return False


@pytest.mark.spec("ORCH-MISUSE-1")
def test_a_refused_call_changes_no_argument():
    with Worker(3, num_sub_workers=1, heap_ring_size=4 * KIB) as w:
        handle = w.register(nothing)

        def body(orch):
            for tensors in (
                [(key(0, KIB), T.OUTPUT), (key(0, 5 * KIB), T.OUTPUT)],
                [(key(0, 1), T.OUTPUT)] * 376,
            ):
                args = make_args(*tensors, scalars=[1])
                before = list(args._tensors), list(args._scalars)
                with pytest.raises((RuntimeError, ValueError)):
                    orch.submit_sub(handle, args)
                assert (list(args._tensors), list(args._scalars)) == before

        run(w, body)


@pytest.mark.spec("ORCH-MISUSE-1")
@given(
    depth=st.integers(0, 3),
    tasks=st.lists(st.integers(0, 3000), max_size=5),
    fails=st.booleans(),
    bad=st.sampled_from(["large", "many", "blocked"]),
)
def test_a_refused_kernel_call_changes_no_word(depth, tasks, fails, bad):
    driver = Driver(heap=8 * KIB, window=8)
    for _ in range(depth):
        driver.open_scope()
    for size in tasks:
        driver.try_submit([auto(size), writes(64 * size + 64), reads(64)])
    if fails and tasks:
        driver.settle()
        driver.post_done(0, ValueError("no"))
        driver.settle()
    before = driver.words()
    if bad == "large":
        codes = driver.try_submit([auto(8 * KIB), auto(1)]), driver.try_alloc(8 * KIB + 1)
    elif bad == "many":
        codes = (driver.try_submit([writes(64)] * 375, range(3)),)
    else:
        while driver.try_submit([writes(64)]) >= 0:
            pass
        before = driver.words()
        codes = driver.try_submit([writes(128), auto(1)]), driver.try_alloc(1)
    assert all(code < 0 for code in codes)
    assert driver.changed_since(before) == []


# ---------------------------------------------------------------- arrays
@pytest.mark.spec("ORCH-MISUSE-2")
@pytest.mark.parametrize("in_run", [False, True])
def test_a_private_array_is_refused_and_the_message_says_how_to_share_it(in_run):
    with Worker(3, num_sub_workers=1) as w:

        def body(orch):
            args = TaskArgs()
            with pytest.raises(ValueError, match=r"cannot see.*private.*Worker\.share"):
                args.add_tensor(np.zeros(100_000, np.int32))
            with pytest.raises(ValueError, match=r"Worker\.share"):
                args.add_tensor(np.zeros(3, np.int32), T.OUTPUT)
            assert len(args) == 0
            args.add_tensor(w.share(np.zeros(3, np.int32)))
            assert len(args) == 1

        if in_run:
            run(w, body)
        else:
            body(None)


@pytest.mark.spec("ORCH-MISUSE-2")
def test_shared_memory_from_after_the_start_is_refused_and_from_before_accepted():
    early = np.frombuffer(mmap.mmap(-1, 4096), np.int32)  # shared, and inherited by the workers
    with Worker(3, num_sub_workers=1) as w:

        def add(args):
            args.tensor(0).numpy()[:] += 1

        handle = w.register(add)
        w.start()
        late = np.frombuffer(mmap.mmap(-1, 4096), np.int32)

        def body(orch):
            with pytest.raises(ValueError, match=r"after the workers were started.*share"):
                TaskArgs().add_tensor(late)
            with Worker(3) as other, pytest.raises(ValueError, match="cannot see"):
                TaskArgs().add_tensor(other.share(np.zeros(4, np.int32)))
            orch.submit_sub(handle, make_args((early, T.INOUT)))

        run(w, body)
        assert (early == 1).all()


@pytest.mark.spec("ORCH-MISUSE-2")
def test_an_address_given_by_hand_is_believed():
    private = np.zeros(4, np.int32)
    with Worker(3, num_sub_workers=1) as w:
        seen = w.share(np.zeros(2, np.int64))

        def look(args):
            seen[:] = args.tensor(0).data, args.tensor(1).data

        handle = w.register(look)

        def body(orch):
            by_hand = ContinuousTensor.make(private.ctypes.data, (4,), DataType.INT32)
            no_memory = ContinuousTensor.make(0xDEADBEEF00, (4,), DataType.INT32)
            orch.submit_sub(handle, make_args((by_hand, T.INPUT), (no_memory, T.INOUT)))
            orch.submit_sub(handle, make_args((by_hand, T.INPUT), (no_memory, T.INPUT)))

        assert run(w, body).edges == 1
        assert seen.tolist() == [private.ctypes.data, 0xDEADBEEF00]


@pytest.mark.spec("ORCH-MISUSE-3")
def test_arrays_of_unknown_type_too_many_dimensions_or_with_gaps_are_refused():
    with Worker(3) as w:
        args = TaskArgs()
        for dtype in (np.float64, np.complex64, ">i4", "U3", "datetime64[s]"):
            with pytest.raises(TypeError, match="cannot be passed to a task"):
                args.add_tensor(w.empty((4,), dtype))
        with pytest.raises(ValueError, match=r"at most 5 dimensions.*6"):
            args.add_tensor(w.empty((1, 1, 1, 1, 1, 1), np.int8))
        square = w.empty((4, 4), np.int32)
        for view in (square.T, square[:, 1:], square[::2], square[::-1]):
            with pytest.raises(ValueError, match="not contiguous"):
                args.add_tensor(view)
        for wrong in (None, [1, 2], "x", 5, b"abc"):
            with pytest.raises(TypeError):
                args.add_tensor(wrong)
        assert len(args) == 0
        for good in (
            square,
            square[1:3],
            square[2],
            w.empty((1,) * 5, np.bool_),
            w.empty((), "i1"),
        ):
            args.add_tensor(good)
        assert len(args) == 5


# ---------------------------------------------------------------- TaskArgs
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
    args.clear()
    args.add_tensor(key(128))


@pytest.mark.spec("ORCH-MISUSE-4")
def test_an_index_out_of_range_is_an_error_in_the_worker_too():
    with Worker(3, num_sub_workers=1) as w:

        def look(args):
            getattr(args, "tensor" if args.scalar(0) else "scalar")(args.scalar(1))

        handle = w.register(look)
        for what, index in ((1, 1), (0, 2), (1, 2**31)):
            with pytest.raises(RuntimeError, match=f"IndexError: .*{index} is out of range"):
                args = make_args((key(64), T.NO_DEP), scalars=[what, index])
                run(w, lambda orch, args=args: orch.submit_sub(handle, args))


@pytest.mark.spec("ORCH-MISUSE-5")
@pytest.mark.parametrize(("tensors", "scalars"), [(375, 2), (0, 1877), (128, 128), (200, 877)])
def test_arguments_up_to_the_mailbox_travel_and_one_more_is_refused(tensors, scalars):
    used = 8 + 40 * tensors + 8 * scalars
    with Worker(3, num_sub_workers=1) as w:
        seen = w.share(np.zeros(3, np.int64))

        def look(args):
            last = args.scalar_count() - 1
            seen[:] = args.tensor_count(), args.scalar_count(), args.scalar(last)

        handle = w.register(look)

        def body(orch):
            one_more = scalars + 1 + (L.MAILBOX_ARGS_CAPACITY - used) // 8
            before = w._session.engine.mem[L.ORCH : L.ORCH_PASSES].tolist()
            for more in (one_more, one_more + 100_000):
                args = make_args(*[(key(64), T.NO_DEP)] * tensors, scalars=range(more))
                numbers = rf"{8 + 40 * tensors + 8 * more} bytes.*15024.*fewer"
                with pytest.raises(ValueError, match=numbers):
                    orch.submit_sub(handle, args)
            with pytest.raises(ValueError, match=r"400008 bytes.*15024.*fewer"):
                orch.submit_sub(handle, make_args(*[(key(64), T.NO_DEP)] * 10_000))
            assert w._session.engine.mem[L.ORCH : L.ORCH_PASSES].tolist() == before
            args = make_args(*[(key(64), T.NO_DEP)] * tensors, scalars=range(scalars))
            orch.submit_sub(handle, args)

        assert run(w, body).tasks == 1
        assert seen.tolist() == [tensors, scalars, scalars - 1]


# ---------------------------------------------------------------- handles
@pytest.mark.spec("ORCH-MISUSE-6")
def test_what_is_no_handle_of_this_worker_is_refused():
    with Worker(3, num_sub_workers=1) as first, Worker(3, num_sub_workers=1) as second:
        good, foreign = first.register(nothing), second.register(nothing)
        stale = stale_handle(first)

        def body(orch):
            expected = r"expects a CallableHandle returned by Worker\.register, got "
            for wrong in (nothing, 3, None, good.digest, [good]):
                with pytest.raises(TypeError, match=expected + type(wrong).__name__):
                    orch.submit_sub(wrong)
            with pytest.raises(TypeError, match=r"got str; write handle = worker\.register"):
                orch.submit_sub("sha256:…")
            with pytest.raises(KeyError, match="to this Worker: register its callable here"):
                orch.submit_sub(foreign, make_args())
            with pytest.raises(KeyError, match="is not live on this Worker: it was unregistered"):
                orch.submit_sub(stale, make_args())
            for args in (3, [key(64)], {"x": 1}):
                with pytest.raises(TypeError, match="args must be a TaskArgs"):
                    orch.submit_sub(good, args)
            orch.submit_sub(good, make_args())

        assert run(first, body).tasks == 1
        for method, wrong, error in (
            *((first.unregister, wrong, TypeError) for wrong in (nothing, None, "nothing", [])),
            (first.unregister, foreign, KeyError),
            (first.unregister, stale, KeyError),
        ):
            with pytest.raises(error):
                method(wrong)
        with pytest.raises(AttributeError, match="cannot be changed"):
            foreign.digest = good.digest


# ---------------------------------------------------------------- when
STALE_CALLS = {
    "submit": lambda orch, handle: orch.submit_sub(handle),
    "submit with arguments": lambda orch, handle: orch.submit_sub(handle, make_args()),
    "alloc": lambda orch, handle: orch.alloc(8, "uint8"),
    "scope": lambda orch, handle: orch.scope().__enter__(),
    "scope_begin": lambda orch, handle: orch.scope_begin(),
    "scope_end": lambda orch, handle: orch.scope_end(),
    "malloc": lambda orch, handle: orch.malloc(0, 8),
    "free": lambda orch, handle: orch.free(0, 4096),
    "copy_to": lambda orch, handle: orch.copy_to(0, 4096, 4096, 8),
    "copy_from": lambda orch, handle: orch.copy_from(0, 4096, 4096, 8),
}


@pytest.mark.spec("ORCH-MISUSE-7")
@pytest.mark.parametrize("name", STALE_CALLS)
def test_an_orch_kept_beyond_its_run_refuses_every_call(name):
    call = STALE_CALLS[name]
    with Worker(3, num_sub_workers=1) as w:
        handle = w.register(nothing)
        kept = []
        run(w, kept.append)

        def refused(orch=None):
            if orch is not None:
                orch.scope_begin()
            mem, ended = (
                w._session.engine.mem,
                r"run has ended.*only while the orchestration function",
            )
            before = mem[L.RING_BLOCK : L.ORCH_PASSES].tolist()
            with pytest.raises(RuntimeError, match=ended):
                call(kept[0], handle)
            assert mem[L.RING_BLOCK : L.ORCH_PASSES].tolist() == before

        refused()
        assert run(w, refused).tasks == 0  # during a later run too
        with pytest.raises(ZeroDivisionError):
            run(w, lambda orch: (kept.insert(0, orch), 1 / 0))
        refused()
        run(w, refused)


@pytest.mark.spec("ORCH-MISUSE-8")
def test_run_inside_an_orch_function_of_the_same_worker_is_refused():
    with Worker(3, num_sub_workers=1) as w, Worker(3) as other:
        handle = w.register(nothing)
        errors = []

        def in_thread():
            try:
                w.run(lambda *_: None)
            except RuntimeError as error:
                errors.append(error)

        def body(orch):
            with pytest.raises(RuntimeError, match="run"):
                w.run(lambda *_: None)
            thread = threading.Thread(target=in_thread)
            thread.start()
            thread.join()
            other.run(lambda *_: None)  # another Worker's is fine
            orch.submit_sub(handle)

        assert run(w, body).tasks == 1
        assert len(errors) == 1
        assert run(w, lambda orch: orch.submit_sub(handle)).tasks == 1


@pytest.mark.spec("ORCH-MISUSE-9")
def test_use_before_init_or_after_close_and_a_second_init_are_refused():
    w = Worker(3, num_sub_workers=1)
    handle = w.register(nothing)
    calls = [
        lambda: w.run(lambda *_: None),
        w.start,
        lambda: w.empty(3),
        lambda: w.share(np.zeros(3)),
        w.worker_pids,
        w.progress,
    ]
    for call in calls:
        hint = r"not initialized: call init\(\) first, or use it in a with block"
        with pytest.raises(RuntimeError, match=hint):
            call()
    w.init()
    for call in (w.init, w.start, w.start, w.init, w.__enter__):
        if call == w.start:
            call()
        else:
            with pytest.raises(RuntimeError, match="already initialized"):
                call()
    assert run(w, lambda orch: orch.submit_sub(handle)).tasks == 1
    w.close()
    w.close()
    never = Worker(3)
    never.close()
    refused = [*calls, w.init, w.__enter__, lambda: w.register(nothing), never.init]
    for call in (*refused, lambda: w.unregister(handle)):
        with pytest.raises(RuntimeError, match="closed; make a new one"):
            call()


@pytest.mark.spec("ORCH-MISUSE-10")
def test_a_submit_without_sub_workers_is_refused_instead_of_waiting():
    no_workers = r"no sub workers; give Worker\(num_sub_workers=…\)"
    with Worker(3, alloc_timeout_s=1e6) as w:
        handle = w.register(nothing)

        def body(orch):
            with pytest.raises(RuntimeError, match=no_workers):
                orch.submit_sub(handle)
            with pytest.raises(RuntimeError, match=no_workers):
                orch.submit_sub(handle, make_args((key(64), T.INOUT)))
            orch.alloc(8, "uint8")

        assert run(w, body).tasks == 1


@pytest.mark.spec("ORCH-MISUSE-11")
def test_worker_refuses_what_it_does_not_know_and_values_out_of_range():
    with pytest.raises(TypeError, match="num_workers"):
        Worker(3, num_workers=2)
    with pytest.raises(TypeError):
        Worker(3, 2)
    with pytest.raises(TypeError):
        Worker()
    for level in (1, 0, -3):
        with pytest.raises(ValueError, match=f"level {level} not supported"):
            Worker(level)
    for name, values in {
        "num_sub_workers": (-1, 10**6),
        "heap_ring_size": (0, -1024, 1 << 60),
        "alloc_timeout_s": (-0.1, float("nan"), float("inf")),
        "ring_depth": (0, 5, -1),
        "task_window": (0, -1, 1 << 40),
        "arena_size": (0, -1),
        "start_timeout_s": (-1,),
    }.items():
        for value in values:
            with pytest.raises(ValueError, match=name):
                Worker(3, **{name: value})


@pytest.mark.spec("ORCH-MISUSE-12")
@pytest.mark.parametrize("field", CallConfig._FIELDS[2:])
def test_a_diagnostic_without_output_prefix_is_refused_by_run(field):
    called = []
    with Worker(3) as w:
        config = CallConfig(**{field: 1})
        with pytest.raises(ValueError, match=f"{field}.*output_prefix"):
            w.run(lambda *_: called.append(1), None, config)
        assert called == []
        config.output_prefix = "/tmp/x"
        with pytest.raises(NotImplementedError, match=f"{field}=1: no diagnostics"):
            w.run(lambda *_: called.append(1), None, config)
        assert called == []
