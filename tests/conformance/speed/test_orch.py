"""SPEED-ORCH: compiled orchestration, each way beside the function as it was written."""

from __future__ import annotations

import inspect
import mmap
from contextlib import nullcontext
from types import SimpleNamespace

import numba
import numpy as np
import pytest
from numba.extending import register_jitable

from simpler_ref import (
    CallConfig,
    ContinuousTensor,
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
from tests.by_hand import ByHand
from tests.support import Terminated, key, make_args, terminated_after


@pytest.fixture(scope="module")
def w():
    with Worker(3, num_sub_workers=2, heap_ring_size=1 << 20) as made:
        made.add_one, made.note, made.fails = map(made.register, (add_one, note, fails))
        made.start()
        yield made


def ways(function):
    """Return an orchestration function compiled, and as it was written."""
    made = orchestration(function)
    return made, made.py_func


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


def note(args):
    """Put the scalars into the tensor."""
    count = args.scalar_count()
    args.tensor(0).numpy()[:count] = [args.scalar(i) for i in range(count)]


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
SUBMIT, GROUP, ALLOC, BEGIN, END, WITH, OUTPUT = range(7)


@pytest.mark.slow("compiles a large function")
@pytest.mark.spec("SPEED-ORCH-1")
def test_random_programs_leave_the_graph_that_the_function_as_written_leaves():
    def program(orch, plan, config):
        """Each row of the plan is what to do, how many tensors, then memory and tag of each."""
        buffers, opened = [orch.alloc((4,), np.int64)], 0
        for row in range(len(plan)):
            what, count = plan[row, 0], plan[row, 1]
            if what == ALLOC:
                buffers.append(orch.alloc(4, np.int64))
            elif what == BEGIN and opened < 5:
                orch.scope_begin()
                opened += 1
            elif what == END and opened > 0:
                orch.scope_end()
                opened -= 1
            members = [TaskArgs(), TaskArgs()]
            for a in members:
                if what == OUTPUT:
                    a.add_tensor(ContinuousTensor.make(0, (count,), np.int64), T.OUTPUT)
                for i in range(count):
                    which = plan[row, 2 + 2 * i] % (len(shared) + len(buffers))
                    if which < len(shared):
                        a.add_tensor(shared[which], plan[row, 3 + 2 * i])
                    else:
                        a.add_tensor(buffers[which - len(shared)], plan[row, 3 + 2 * i])
                a.add_scalar(row)
                a.add_scalar(row * 0.5)
            if what == GROUP:
                orch.submit_sub_group(handle, members)
            elif what == WITH:
                with orch.scope():
                    orch.submit_sub(handle, members[0])
                    if count == 2:
                        continue
                    orch.submit_sub(handle, members[1])
            elif what in (SUBMIT, OUTPUT):
                orch.submit_sub(handle, members[0])

    shared = np.frombuffer(mmap.mmap(-1, 4096), np.int64)[:24].reshape(6, 4)
    rng = np.random.default_rng()
    for _ in range(5 if INTERPRETED else 10):
        kinds = rng.choice([*[SUBMIT] * 6, GROUP, GROUP, ALLOC, BEGIN, END, WITH, OUTPUT], 25)
        plan = rng.integers(0, [7, 4, *[1 << 16, 5] * 4], (25, 10))
        plan[:, 0] = kinds
        pictures = []
        for way in ways(program):
            with ByHand() as hand:
                handle = hand.sub
                way(hand.orch, plan, CallConfig())
                pictures.append(hand.picture())
        assert pictures[0] == pictures[1], plan.tolist()


@pytest.mark.skipif(INTERPRETED, reason="NUMBA_DISABLE_JIT=1: nothing is compiled")
@pytest.mark.spec("SPEED-ORCH-13")
def test_a_scalar_that_is_no_integer_of_compiled_code_is_refused(w):
    @orchestration
    def read(orch, args, config):
        args.scalar(0)

    for value, kind, words in [
        (2.5, TypeError, "scalar 0 is 2.5, no integer; .*scalar_float"),
        (np.float32(0.5), TypeError, "scalar 0 is 0.5, no integer"),
        ((1 << 64) - 1, OverflowError, "scalar 0 is 18446744073709551615, more than the signed 64"),
        (scalar_to_uint64(-1), OverflowError, "scalar 0 is 18446744073709551615"),
    ]:
        with pytest.raises(kind, match=words):
            w.run(read, make_args(scalars=[value]))
    w.run(read, make_args(scalars=[-1]))


# ---------------------------------------------------------------- scopes
@pytest.mark.spec("SPEED-ORCH-2")
def test_a_scope_ends_on_every_way_out_of_its_block(w):
    mem = w._session.engine.mem

    def leaves(orch, args, config):
        depths, raises = args
        for i in range(5):
            with orch.scope():
                if i == 1:
                    continue
                with orch.scope(), orch.scope():
                    if i == 2:
                        continue
                    orch.scope_begin()
                if i == 3:
                    break
        depths[0] = look(mem, L.SCOPE_DEPTH)
        try:
            with orch.scope(), orch.scope():
                raise ValueError("out of two scopes")
        except Exception:
            depths[1] = look(mem, L.SCOPE_DEPTH)
        with orch.scope(), orch.scope():
            if raises:
                raise KeyError("out of the function")
            return

    for way in ways(leaves):
        for raises in (False, True):
            depths = np.zeros(2, np.int64)

            def orch_fn(orch, args, config, way=way, raises=raises):
                with pytest.raises(KeyError) if raises else nullcontext():
                    way(orch, args, config)
                assert mem[L.SCOPE_DEPTH] == 1

            w.run(orch_fn, (depths, raises))
            assert depths.tolist() == [1, 1]


# ---------------------------------------------------------------- the same errors
PRIVATE = np.zeros(4, np.float32)
"""Memory that no worker sees."""


def refused(orch, args, config):
    what, handle, n = args
    a, b = TaskArgs(), TaskArgs()
    if what == 0:
        a.add_tensor(ContinuousTensor.make(0, (4,), np.float32), 9)
    elif what == 1:
        orch.alloc((8,), n)
    elif what == 2:
        ContinuousTensor.make(0, (1 << 30, 1 << 30, n), np.float32)
    elif what == 3:
        for i in range(2000):
            a.add_scalar(i)
        orch.submit_sub_group(handle, [b, a])
    elif what == 4:
        orch.submit_sub_group(handle, [TaskArgs() for _ in range(3)])
    elif what == 5:
        ContinuousTensor.make(4096, (4,), np.float32, True).numpy()
    elif what == 6:
        orch.submit_sub(handle, task(PRIVATE))
    elif what == 7:
        for _ in range(70):
            orch.scope_begin()
    elif what == 8:
        with orch.scope():
            orch.scope_end()
    elif what == 9:
        orch.alloc((1 << 21,), np.int64)
    elif what == 10:
        orch.submit_next_level(handle)


@pytest.mark.spec("SPEED-ORCH-3")
def test_what_is_refused_raises_the_same_exception(w):
    for what in range(11):
        kind, words = refused_alike(w, refused, (what, w.add_one, 50))
        assert kind is (ValueError if what < 7 else RuntimeError), (what, words)


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


# ---------------------------------------------------------------- waiting
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

    w.run(orchestration(submits_then_waits))  # hangs if one is never seen to
    assert x.tolist() == [1] * len(x)


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
    handle = w.register(lambda args: None)
    w.unregister(handle)
    assert refused_alike(w, send)[0] is KeyError, "it is no longer live"


@pytest.mark.spec("SPEED-ORCH-8")
def test_task_args_from_outside_have_afterwards_what_the_function_made_of_them(w):
    x = w.share(np.arange(4, dtype=np.float32))

    def changes(orch, args, config):
        args.set_tag(0, T.INOUT)
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
        assert (args.tensor(2).shapes, args.scalar(0)) == ((3,), 5)
        assert (outer.tensor_count(), outer.scalar_count()) == (20, 0)


# ---------------------------------------------------------------- nested Workers
@pytest.mark.spec("SPEED-ORCH-9")
@pytest.mark.parametrize("mode", ["process", pytest.param("thread", marks=pytest.mark.long)])
def test_a_nested_worker_runs_it_on_the_arguments_it_received(mode):
    child = Worker(level=3, num_sub_workers=2)
    adding, w = child.register(add_one), Worker(level=4, child_mode=mode)
    w.add_worker(child)

    def below(orch, args, config):
        rows = args.tensor(0).numpy()
        for i in range(args.scalar(0)):
            orch.submit_sub(adding, task(rows[i]))
        if args.scalar_float(1) > 2.0 and config.block_dim == 4:
            rows[3, 0] = args.tensor_count() + args.scalar_count()

    early, late = ways(below)
    with w:
        x, handles = w.share(np.zeros((2, 4, 3), np.float32)), [w.register(early)]
        w.start()
        handles.append(w.register(late))

        def above(orch, args, config):
            for handle, one in zip(handles, x, strict=True):
                given = make_args((one, T.INOUT), scalars=[3, 2.5])
                orch.submit_next_level(handle, given, CallConfig(block_dim=4))

        w.run(above)
        assert x.tolist() == [[[1] * 3] * 3 + [[3, 0, 0]]] * 2


# ---------------------------------------------------------------- what cannot be compiled
def unknown_method(orch, args, config):
    orch.submit_sub(args)
    orch.fly()  # refused:


def assigns(orch, args, config):
    global SCALE  # refused: SCALE
    SCALE = 3


@pytest.mark.spec("SPEED-ORCH-10")
@pytest.mark.skipif(INTERPRETED, reason="NUMBA_DISABLE_JIT=1: nothing is compiled")
@pytest.mark.parametrize("function", [unknown_method, assigns])
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
    with pytest.raises(TypeError, match="three parameters"):
        orchestration(lambda orch, *rest: None)


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


# ---------------------------------------------------------------- signals
@pytest.mark.spec("SPEED-ORCH-12")
@pytest.mark.parametrize("what", ["waits", "submits"])
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

        way = orchestration({"waits": waits, "submits": submits}[what])
        w.run(way, 1)
        with pytest.raises(Terminated), terminated_after(0.2):
            w.run(way, 1 << 60)
        assert w.run(lambda orch, *_: orch.submit_sub(handle)).tasks == 1
