"""SEE-INPUT: writes to INPUT, by tasks of a Worker with ``check=True``."""

from __future__ import annotations

import concurrent.futures
import ctypes
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest

import simpler_ref as sr
from simpler_ref import HazardError, TaskError, Worker, leaf
from simpler_ref import TensorArgType as T
from simpler_ref.calls import checked
from simpler_ref.workers.guard import MOST_COPIED, PIECE

from ...support import wait_until
from .conftest import make


@pytest.fixture(scope="module", params=["process", "thread"])
def w(request):
    options = {"child_mode": request.param, "heap_ring_size": 1 << 20}
    with Worker(3, num_sub_workers=2, check=True, **options) as made:
        made.start()
        yield made


def poke(address, nbytes=1):
    octets = (ctypes.c_ubyte * nbytes).from_address(address)
    octets[:] = [one ^ 0xFF for one in octets]


def by_ctypes(args):
    poke(args.tensor(0).data + 16, 8)


def beyond_its_output(args):
    out = args.tensor(1)
    poke(out.data, out.nbytes() + 8)  # the INPUT comes next


@leaf
def compiled(x, y):
    x[3] = 5.0
    y[0] = 1.0


@leaf
def compiled_reads(x, y):
    y[0] = x[3]


def in_a_view(args):
    x = args.tensor(0).numpy()
    poke(x.__array_interface__["data"][0] + x.strides[0] * 2, 8)


def harmless(args):
    args.tensor(args.tensor_count() - 1).numpy()[:] = args.tensor(0).numpy().sum()


FAULTS = {
    "ctypes": (by_ctypes, [0, 1], "bytes 16 to 23 of tensor 0 (256 bytes)"),
    "past the end of another": (beyond_its_output, [1, 0], "bytes 0 to 7 of tensor 0"),
    "compiled": (compiled, [0, 1], "of tensor 0 (256 bytes)"),
    "a view": (in_a_view, ["column", 1], "bytes 32 to 39 of tensor 0"),
}


def submitted(w, function, which):
    """Run one task, whose second tensor alone may be written."""
    x = w.zeros((3, 32))
    places = {0: x[0], 1: x[1], "column": x[::2, ::8].T}
    tags, handle = [T.INPUT, T.OUTPUT_EXISTING], w.register(function)
    w.run(
        lambda orch, args, config: orch.submit_sub(
            handle, make(*((places[one], tag) for one, tag in zip(which, tags, strict=True)))
        )
    )


@pytest.mark.spec("SEE-INPUT-1")
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_write_is_found(w, name):
    function, which, words = FAULTS[name]
    with pytest.raises(TaskError) as caught:
        submitted(w, function, which)
    text, story = str(caught.value), caught.value.story
    line = submitted.__code__.co_firstlineno + 6
    assert f"  task 0 ({function.__name__}) was RUNNING on " in story
    assert f"\n  submitted at {__file__}:{line}" in story
    assert f", task 0 ({function.__name__}): HazardError: write to INPUT: " in text
    assert words in text and "changed while the task ran. Tag it INOUT if the task writes" in text
    assert text.endswith("or another task that reads it")
    submitted(w, harmless, [0, 1])


# ---------------------------------------------------------------- calls
@sr.task
def call_pokes(x: sr.In, y: sr.Out, at):
    poke(x.ctypes.data + at, 3)


@sr.task
def by_name(*, y: sr.InOut, x: sr.In):
    poke(x.ctypes.data)


@sr.task(compiled=True)
def code_reads(x: sr.In, y: sr.Out):
    y[0] = x[1]


@sr.task
def plain(x):
    poke(x.ctypes.data)


@sr.task
def call_reads(x: sr.In, y: sr.InOut):
    y += x.sum()


CALLS = {
    "by position": (lambda x, y: call_pokes(x, y, 8), "bytes 8 to 10 of argument 0"),
    "by name": (lambda x, y: by_name(x=x, y=y), "bytes 0 to 0 of x "),
    "without annotation": (lambda x, y: plain(x), "bytes 0 to 0 of argument 0"),
    "a view": (lambda x, y: call_pokes(x[::2], y, 0), "bytes 0 to 2 of argument 0"),
}


@pytest.mark.spec("SEE-INPUT-1")
@pytest.mark.parametrize("name", CALLS)
def test_a_planted_write_of_a_call_is_found(w, name):
    call, words = CALLS[name]
    x, y = w.zeros(64), w.zeros(64)
    line = call.__code__.co_firstlineno
    with pytest.raises(HazardError) as caught:
        call(x, y).result()
    error = caught.value
    assert words in str(error)
    assert "it with InOut if the task writes there; else the program does" in str(error)
    assert (error.kind, error.tasks) == ("write to INPUT", (error.__cause__.task,))
    assert error.places[0].startswith(f"{__file__}:{line}")
    assert f"\n  submitted at {__file__}:{line}" in error.__cause__.story


@pytest.mark.spec("SEE-INPUT-1", "SEE-INPUT-3")
def test_what_a_task_may_do_is_not_reported(w):
    x, y = w.share(np.arange(64.0)), w.zeros((2, 64))
    handle, code = w.register(harmless), w.register(compiled_reads)

    def orch_fn(orch, args, config):
        for _ in range(3):
            orch.submit_sub(handle, make((x, T.INPUT), (y[0], T.OUTPUT_EXISTING)))
            orch.submit_sub(code, make((y[0], T.INPUT), (x, T.INOUT)))

    w.run(orch_fn)
    for _ in range(20):  # readers and writers of the same bytes in turn
        call_reads(x, y[0, :32])
        call_reads(x, y[1])
        call_reads(y[0], x)
        code_reads(x, y[1])
        code_reads(y[0, ::2], x[::2])
    assert call_reads(y[0], x).result() is None
    assert x[0] > 0


@pytest.mark.spec("SEE-INPUT-1")
def test_without_the_check_nothing_is_compared():
    with Worker(num_sub_workers=1) as w:
        assert call_pokes(w.zeros(8), w.zeros(8), 0).result() is None


@sr.task
def poke_two(x: sr.In, first, last):
    poke(x.ctypes.data + first)
    poke(x.ctypes.data + last)


@pytest.mark.spec("SEE-INPUT-1")
def test_of_a_large_tensor_the_pieces_are_named(w):
    x = w.zeros(MOST_COPIED // 4)  # twice as much
    with pytest.raises(HazardError) as caught:
        poke_two(x, 3 * PIECE + 5, 5 * PIECE + 6).result()
    assert f"some of bytes {3 * PIECE} to {6 * PIECE - 1} of argument 0" in str(caught.value)
    rows = x.reshape(512, -1)[:, 1:]
    with pytest.raises(HazardError, match="some of bytes 0 to "):
        poke_two(rows, 0, 1).result()
    assert poke_two(rows, -8, -7).result() is None  # before its first element


# ---------------------------------------------------------------- who else may write
@pytest.mark.spec("SEE-INPUT-3")
def test_what_a_task_may_write_through_another_tensor_is_not_compared(w):
    x = w.zeros(64)
    handle, poking = w.register(harmless), w.register(by_ctypes)
    x[0] = 7
    w.run(lambda orch, *_: orch.submit_sub(handle, make((x, T.INPUT), (x[32:], T.INOUT))))
    w.run(lambda orch, *_: orch.submit_sub(handle, make((x[::2], T.INPUT), (x[1::2], T.INOUT))))
    with pytest.raises(TaskError, match="write to INPUT"):  # interleaved views share nothing
        w.run(lambda orch, *_: orch.submit_sub(poking, make((x[::2], T.INPUT), (x[1::2], T.INOUT))))


def either(args):
    """Read while the other one writes, or, with the scalar 1, write while that reads."""
    x, flags = args.tensor(0).numpy(), args.tensor(1).numpy()
    if args.scalar(0) == 0:
        flags[0] = 1
        wait_until(lambda: flags[1])
    else:
        wait_until(lambda: flags[0])
        x[:] = 7
        flags[1] = 1


@pytest.mark.spec("SEE-INPUT-3")
def test_a_task_with_no_dep_may_write_meanwhile_whichever_is_submitted_first(w):
    handle, tags = w.register(either), (T.INPUT, T.NO_DEP)
    for order in ((0, 1), (1, 0)):
        x, flags = w.zeros(8), w.zeros(2, np.int64)

        def orch_fn(orch, args, config, x=x, flags=flags, order=order):
            for i in order:
                given = make((x, tags[i]), (flags, T.NO_DEP), scalars=[i])
                orch.submit_sub(handle, given)

        w.run(orch_fn)
        assert x[0] == 7
        graph = w.record(orch_fn)
        flags[:] = 0
        graph.run()


@pytest.mark.spec("SEE-INPUT-3")
def test_members_of_a_group_may_write_what_others_read(w):
    handle = w.register(either)
    x, flags = w.zeros(8), w.zeros(2, np.int64)

    def orch_fn(orch, args, config):
        tags = T.INPUT, T.INOUT
        members = [make((x, tags[i]), (flags, T.INOUT), scalars=[i]) for i in range(2)]
        orch.submit_sub_group(handle, members)

    w.run(orch_fn)
    assert x[0] == 7


@pytest.mark.spec("SEE-INPUT-3")
def test_what_is_apart_from_no_dep_tensors_is_compared_and_the_next_run_begins_anew(w):
    x = w.zeros(64)
    handle, poking = w.register(harmless), w.register(by_ctypes)

    def apart(orch, args, config):
        orch.submit_sub(handle, make((x[:8], T.NO_DEP)))
        orch.submit_sub(poking, make((x[16:], T.INPUT)))

    for _ in range(2):
        with pytest.raises(TaskError, match="write to INPUT"):
            w.run(apart)
        w.run(lambda orch, *_: orch.submit_sub(handle, make((x, T.NO_DEP))))


# ---------------------------------------------------------------- before the start
def wait_in_front(is_open: sr.InOut):
    wait_until(lambda: is_open[0])


@sr.task
def reads_by_name(*, x: sr.In):
    return x.sum()


@contextmanager
def waiting_calls(w):
    """Keep both workers busy until the end of the block."""
    is_open = w.zeros(2)
    calls = [sr.task(retries=1)(wait_in_front)(is_open[i:][:1]) for i in range(2)]
    yield
    is_open[:] = 1
    assert [one.exception() for one in calls] == [None] * 2  # those with retries are not compared


READERS = {
    "by position": (lambda w, x: w.submit(np.sum, x), "argument 0 (512 bytes)"),
    "by name": (lambda w, x: reads_by_name(x=x), "x (512 bytes)"),
    "updated": (lambda w, x: call_reads(w.zeros(64), x[1::2]), "argument 1 (256"),
    "a view": (lambda w, x: w.submit(np.sum, x[::-2]), "argument 0 (256 bytes)"),
    "in a list": (lambda w, x: w.submit(len, ["text", x]), "an array within an argument (512"),
    "beside much else": (lambda w, x: w.submit(np.array_equal, bytes(5000), x), "argument 1 (512"),
    "compiled": (lambda w, x: code_reads(x, w.zeros(64)), "argument 0 (512 bytes)"),
}


@pytest.mark.spec("SEE-INPUT-6")
@pytest.mark.parametrize("name", READERS)
def test_what_the_program_writes_before_a_call_begins_is_found(w, name):
    call, words = READERS[name]
    x = w.share(np.arange(64.0))
    with waiting_calls(w):
        found = call(w, x)
        x[3] = 7.5
    with pytest.raises(HazardError) as caught:
        found.result()
    error = caught.value
    assert error.kind == "write before start" and words in str(error)
    assert "wait for the call's future first, or give the call a copy" in str(error)
    assert error.places[0].startswith(f"{__file__}:{call.__code__.co_firstlineno}")
    assert call(w, w.share(np.arange(64.0))).exception() is None


@pytest.mark.spec("SEE-INPUT-6")
def test_of_a_large_array_a_sample_is_compared(w):
    x = w.zeros(MOST_COPIED // 2)  # four times as much
    with waiting_calls(w):
        seen, unseen = w.submit(np.sum, x), w.submit(len, x[1:])
        x[:] = 1
        little = w.submit(np.sum, x)
        x[PIECE // 8] = 2  # the second piece
    assert [type(one.exception()) for one in (seen, unseen)] == [HazardError] * 2
    assert little.exception() is None


# ---------------------------------------------------------------- touched while written
@pytest.fixture(scope="module")
def closing():
    with Worker(num_sub_workers=2, check=True) as made:
        made.submit(len, "").result()
        yield made


@sr.task(retries=1)  # so that the flag is not compared
def _fill_when(is_open: sr.InOut, x: sr.InOut, value):
    wait_in_front(is_open)
    x[:] = value


def fill_when(is_open, x, value):
    return _fill_when(is_open[:1], x, value)  # a part of an array, whose page is not closed


TOUCHES = {
    "read": lambda x: x.sum(),
    "written": lambda x: x.fill(3),
    "an element": lambda x: x[-1, -1],
    "copied by ctypes": lambda x: ctypes.string_at(x.ctypes.data, 4),
    "compared by numpy": lambda x: np.array_equal(x, x),
}


@pytest.mark.spec("SEE-INPUT-7")
@pytest.mark.parametrize("shape", [(2, 3), (600, 1000)], ids=["small", "large"])
@pytest.mark.parametrize("name", TOUCHES)
def test_what_a_call_writes_is_not_to_be_touched_before_it_has_ended(closing, name, shape):
    is_open, x = closing.zeros(2), closing.zeros(shape)
    future = fill_when(is_open, x, 7)
    with pytest.raises(HazardError) as caught:
        TOUCHES[name](x)
        time.sleep(0)  # the error comes before the next line at the latest
        pytest.fail("nothing was seen")
    error = caught.value
    assert error.kind == "touch while written" and f"array of shape {shape}" in str(error)
    assert error.tasks == (closing._life.stream.number_of(future),)
    assert f"({__file__}:" in str(error) and "result() first" in str(error)
    is_open[:] = 1
    assert future.result() is None
    assert (x == 7).all()


WAITS = {
    "result": lambda w, future, x: future.result(),
    "done": lambda w, future, x: wait_until(future.done),
    "wait for the array": lambda w, future, x: w.wait(x),
    "wait for all": lambda w, future, x: w.wait(),
    "a run": lambda w, future, x: w.run(lambda orch, args, config: None),
    "concurrent.futures": lambda w, future, x: concurrent.futures.wait([future]),
}


@pytest.mark.spec("SEE-INPUT-7")
@pytest.mark.parametrize("name", WAITS)
def test_after_a_wait_the_program_uses_what_calls_have_written(closing, name):
    is_open, x = closing.zeros(2), closing.zeros(5000)
    future = fill_when(is_open, x, 2)
    is_open[:] = 1
    WAITS[name](closing, future, x)
    x += 1
    assert (x == 3).all()


@pytest.mark.spec("SEE-INPUT-7")
def test_what_is_beside_an_array_that_a_call_writes_is_open(closing):
    is_open, x = closing.zeros(2), closing.zeros((4, 5000))
    futures = [fill_when(is_open, x[1], 1), fill_when(is_open, x[3][5:], 2)]
    x[0] = x[2] = 5
    x[3, :5] = 6
    is_open[:] = 1
    for one in futures:
        one.result()
    assert x.sum() == 5000 * 11 + 4995 * 2 + 30


@pytest.mark.spec("SEE-INPUT-7")
def test_an_array_is_closed_until_all_calls_that_write_it_have_ended(closing):
    first, second, x = closing.zeros(2), closing.zeros(2), closing.zeros(10)
    futures = [fill_when(first, x, 1), fill_when(second, x, 2)]
    first[:] = 1
    futures[0].result()
    with pytest.raises(HazardError, match="touch while written"):
        x.sum()
        time.sleep(0)
    second[:] = 1
    futures[1].result()
    assert x.sum() == 20


@pytest.mark.spec("SEE-INPUT-7")
def test_a_touch_by_another_thread_is_raised_at_the_next_submit(closing):
    is_open, x = closing.zeros(2), closing.zeros(10)
    future = fill_when(is_open, x, 1)
    toucher = threading.Thread(target=x.sum)
    toucher.start()
    toucher.join()
    with pytest.raises(HazardError, match="touch while written"):
        wait_until(lambda: closing.submit(len, "ab").result() != 2)
    is_open[:] = 1
    future.result()


@pytest.mark.spec("SEE-INPUT-7")
def test_memory_of_a_dropped_array_is_open_again(closing):
    for _ in range(300):
        is_open, x = closing.zeros(2), closing.zeros(100_000)
        fill_when(is_open, x, 1)
        is_open[:] = 1
        del x
    closing.wait()
    assert not any(pages.owner is not None for pages in checked._pages.values())


@pytest.mark.spec("SEE-INPUT-7")
@pytest.mark.parametrize("fault", ["ctypes.string_at(8, 4)", "os.kill(os.getpid(), 11)"])
def test_a_fault_elsewhere_ends_the_program_as_ever(fault):
    program = (
        "import simpler_ref as sr, ctypes, os\n"
        "def f(x: sr.InOut): x[:] = 1\n"
        "if __name__ == '__main__':\n"
        "    with sr.Worker(num_sub_workers=1, check=True) as w:\n"
        "        w.submit(f, w.zeros(9)).result()\n"
        f"        {fault}\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60)
    assert done.returncode == -signal.SIGSEGV


@pytest.mark.spec("SEE-INPUT-7")
@pytest.mark.parametrize("use", ["y = x[0]", "x[1] = 7", "y = x + 1", "if x[0] == 1: pass"])
def test_the_line_that_has_touched_is_named_if_the_error_comes_after_it(closing, use):
    is_open, x = closing.zeros(2), closing.zeros(10)
    future = fill_when(is_open, x, 1)
    source = f"def run():\n    {use}\n    z = 1\n    z = 2\n    time.sleep(0)\n"
    names = {"x": x, "time": time}
    exec(compile(source, "program.py", "exec"), names)
    with pytest.raises(HazardError, match=r"\(program\.py:2"):
        names["run"]()
    is_open[:] = 1
    future.result()


class Looks:
    def __init__(self, x):
        self.x = x

    def __del__(self):
        _ = self.x.sum()
        time.sleep(0)


@pytest.mark.spec("SEE-INPUT-7")
def test_a_touch_whose_error_would_be_swallowed_is_raised_at_the_next_wait(closing):
    is_open, x = closing.zeros(2), closing.zeros(10)
    future = fill_when(is_open, x, 1)
    Looks(x)
    is_open[:] = 1
    with pytest.raises(HazardError, match="touch while written"):
        future.result()
    assert future.result() is None


@pytest.mark.spec("SEE-INPUT-7")
def test_what_a_cancelled_call_would_have_written_is_open(closing):
    is_open, x = closing.zeros(2), closing.zeros(10)
    before = [fill_when(is_open, closing.zeros(10), 1) for _ in range(3 * 16)]
    last = _fill_when(is_open[:1], x, 2)
    assert last.cancel()
    assert x.sum() == 0
    is_open[:] = 1
    for one in before:
        one.result()
