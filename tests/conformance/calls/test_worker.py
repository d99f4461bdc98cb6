"""CALL-WORKER: workers and what they keep."""

import io
import logging
import os
import sys
import threading
from contextlib import redirect_stderr, redirect_stdout

import pytest

import simpler_ref as sr

from ...system.workers import shared_words
from .tasks import MODES, add, die, wait_at


def remember(*values):
    sr.local.values = values
    sr.local.sum = add(*values).result()


@sr.task
def recall():
    return sr.local.values, sr.local.sum


@sr.task
def count():
    sr.local.count = getattr(sr.local, "count", 0) + 1
    return os.getpid(), threading.get_ident(), sr.local.count


@pytest.mark.spec("CALL-WORKER-1")
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_each_worker_is_initialized_before_its_first_task_and_what_tasks_keep_is_its_own(mode):
    sr.local.count = 1000
    try:
        with sr.Worker(num_sub_workers=2, initializer=remember, initargs=[2, 3], **mode):
            assert [recall().result() for _ in range(20)] == [((2, 3), 5)] * 20
            seen = {}
            for _ in range(50):
                pid, thread, number = count().result()
                seen.setdefault((pid, thread), []).append(number)
        assert all(numbers == list(range(1, len(numbers) + 1)) for numbers in seen.values())
        assert sr.local.count == 1000
    finally:
        del sr.local.count
    with pytest.raises(AttributeError, match=r"local\.count: set it in Worker\(initializer"):
        print(sr.local.count)


def refuse():
    raise OSError("no licence left")


@pytest.mark.spec("CALL-WORKER-1")
@pytest.mark.parametrize("mode", MODES[:2], ids=str)
def test_an_initializer_that_raises_makes_the_start_fail(mode, capfd):
    more = r"did not start: OSError: no licence left\nTrace"
    with sr.Worker(num_sub_workers=4, initializer=refuse, **mode) as w:
        for begin in (w.start, lambda: add(1, 2), lambda: w.run(lambda *_: None)):
            with pytest.raises(sr.WorkerStartError, match=more) as raised:
                begin()
            text = str(raised.value)
            assert "in refuse" in text and "simpler_ref" not in text, "frames of the user alone"
            assert len(raised.traceback) <= 6
    assert capfd.readouterr().err == ""


@pytest.mark.spec("CALL-WORKER-1", "CALL-WORKER-4", "CALL-FAIL-4")
def test_an_initializer_that_raises_in_a_successor_starts_no_other_and_fails_what_waits(capfd):
    words = shared_words(2)

    def initialize():
        words[1] += 1
        if words[0]:
            raise OSError("no licence left")

    with sr.Worker(num_sub_workers=1, initializer=initialize) as w:
        assert [count().result()[2] for _ in range(3)] == [1, 2, 3]
        words[0] = 1
        lost, behind = w.submit(die), add(1, 2)
        needs = add(lost, 1)
        assert isinstance(lost.exception(), sr.WorkerLostError)
        assert isinstance(needs.exception(), sr.WorkerLostError)
        told = "no others could be started.*no licence left"
        with pytest.raises(sr.WorkerLostError, match=f"(?s){told}") as caught:
            behind.result()
        assert isinstance(caught.value.__cause__, sr.WorkerStartError)
        assert words[1] == 2
        with pytest.raises(sr.WorkerStartError, match="no licence left"):
            add(1, 2)
        assert words[1] == 3
        words[0] = 0
        assert count().result()[2] == 1, "it keeps nothing of the one before"
        assert words[1] == 4
    with sr.Worker(num_sub_workers=2, initializer=initialize) as w:
        who().result()
        words[0] = 1
        lost, behind = kill_me(), [who() for _ in range(5)]
        assert isinstance(lost.exception(), sr.WorkerLostError)
        for one in behind:
            with pytest.raises(sr.WorkerLostError, match="no licence left"):
                one.result()
        words[0] = 0
        assert who().result()[0] == w.worker_pids()[1]


@pytest.mark.spec("CALL-WORKER-1")
def test_what_is_no_initializer_is_refused():
    async def later():
        pass

    with pytest.raises(TypeError, match="initializer=5 is not callable"):
        sr.Worker(initializer=5)
    with pytest.raises(TypeError, match="initializer"):
        sr.Worker(initializer=later)
    with pytest.raises(TypeError, match="there is none"):
        sr.Worker(initargs=(1,))
    with pytest.raises(ValueError, match="give num_sub_workers"):
        sr.Worker(3, initializer=refuse)
    for wrong in (3, "ab", None):
        with pytest.raises(TypeError, match=f"initargs={wrong!r} is no sequence of arguments"):
            sr.Worker(num_sub_workers=1, initializer=print, initargs=wrong)


def where(_=None):
    return os.getpid(), threading.get_ident()


who, who_of_two = sr.task(workers=1)(where), sr.task(workers=[2, 0])(where)


@sr.task(workers=1, retries=1)
def die_once(words: sr.InOut):
    words[0] += 1
    if words[0] == 1:
        die.py_func()
    return os.getpid()


hold, kill_me = (sr.task(workers=1)(one.py_func) for one in (wait_at, die))


@pytest.fixture(params=[pytest.param(1, marks=pytest.mark.long), 4])
def three(request):
    """Give a Worker with three processes."""
    with sr.Worker(num_sub_workers=3, mailbox_depth=request.param) as w:
        w.start()
        yield w


@pytest.mark.spec("CALL-WORKER-4")
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_calls_for_one_worker_run_there_and_others_beside_them(mode):
    with sr.Worker(num_sub_workers=3, **mode) as w:
        gate = w.zeros(1)
        first, calls = hold(gate), [who() for _ in range(20)]
        others = {w.submit(where).result() for _ in range(20)}
        assert not any(one.done() for one in (first, *calls))
        taken = [one.cancel() for one in calls[10:]]
        assert taken[-1] and calls[-1].cancelled()
        gate[0] = 1
        (found,) = {one.result() for one in calls[:10]}
        assert found not in others
        if mode.get("child_mode") != "thread":
            assert found[0] == w.worker_pids()[1]


@pytest.mark.spec("CALL-WORKER-4")
def test_calls_for_several_workers_take_them_in_turn(three):
    last, _, first = (three.worker_pids()[one] for one in (2, 1, 0))
    assert [who_of_two().result()[0] for _ in range(6)] == [last, first] * 3
    found = [pid for pid, _ in three.map(who_of_two, range(1000))]
    assert set(found) == {last, first}


@pytest.mark.spec("CALL-WORKER-4")
def test_calls_for_a_worker_that_dies_run_on_its_successor(three):
    dead, lost = three.worker_pids()[1], kill_me()
    after = [who() for _ in range(50)]
    assert isinstance(lost.exception(), sr.WorkerLostError)
    found = {one.result()[0] for one in after}
    assert found == {three.worker_pids()[1]} and dead not in found
    once = three.zeros(1)
    assert die_once(once).result() == three.worker_pids()[1] not in found, "run again"


@pytest.mark.spec("CALL-WORKER-4")
@pytest.mark.parametrize(
    "workers, error",
    [(-1, ValueError), ([], ValueError), ([1, 1], ValueError)]
    + [(wrong, TypeError) for wrong in ("1", 1.0, True, [0, "1"])],
)
def test_what_is_no_number_of_a_worker_is_refused(workers, error):
    with pytest.raises(error, match="workers are"):
        sr.task(workers=workers)
    with sr.Worker(num_sub_workers=2, child_mode="thread") as w:
        for call in (who_of_two, lambda: list(w.map(who_of_two, [1]))):
            with pytest.raises(ValueError, match=r"sub worker 2.* are 0 to 1.*num_sub_workers=3"):
                call()
        assert w.progress()[1] == 0


# ---------------------------------------------------------------- what tasks print
class Cell(io.StringIO):
    """The output of a cell: as that of a notebook, it comes from the program's own process alone."""

    def take(self):
        taken = self.getvalue()
        self.seek(0)
        self.truncate()
        return taken


def say(*words, end="\n"):
    print(*words, end=end)
    return words[-1]


@pytest.mark.spec("CALL-WORKER-5")
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_what_a_call_prints_is_there_before_its_result_and_in_order(mode, capfd):
    def number(i):
        for line in range(100):
            print(i, line)

    with redirect_stdout(Cell()) as cell, sr.Worker(num_sub_workers=2, **mode) as w:
        for i in range(10):
            print(w.submit(say, "task", i).result())
            assert cell.take() == f"task {i}\n{i}\n"
        w.submit(say, "no end", end="").result()
        w.submit(say, "of a line: é").result()
        assert cell.take() == "no endof a line: é\n"
        with redirect_stdout(Cell()) as second:
            w.submit(say, "to the stream of the moment").result()
        assert (cell.take(), second.take()) == ("", "to the stream of the moment\n")
        for i in range(20):
            w.submit(number, i)
    lines = cell.take().splitlines()
    for i in range(20):
        assert [line for line in lines if line.split()[0] == str(i)] == [
            f"{i} {line}" for line in range(100)
        ]


@pytest.mark.spec("CALL-WORKER-5")
def test_what_a_worker_prints_before_it_dies_is_not_lost_and_to_files_it_writes_itself(capfd):
    with redirect_stdout(Cell()) as cell, sr.Worker(num_sub_workers=1) as w:
        lost = w.submit(lambda: (print("before the end"), die()))
        assert isinstance(lost.exception(), sr.WorkerLostError)
        assert cell.take() == "before the end\n"
        assert w.submit(say, "the successor").result() == "the successor"
        assert cell.take() == "the successor\n"
    with sr.Worker(num_sub_workers=1) as w:
        w.submit(say, "to the file").result()
        assert "simpler-output" not in [thread.name for thread in threading.enumerate()]
    assert capfd.readouterr().out == "to the file\n"


@pytest.mark.spec("CALL-WORKER-5")
def test_logs_and_errors_are_written_to_the_programs_stream():
    with redirect_stderr(Cell()) as errors, sr.Worker(num_sub_workers=1) as w:
        handler = logging.StreamHandler()

        def report():
            handler.emit(logging.makeLogRecord({"msg": "a record"}))
            print("a line", file=sys.stderr)

        handle = w.register(report)
        w.submit(report).result()
        assert errors.take() == "a record\na line\n"
        w.run(lambda orch, *_: orch.submit_sub(handle))
        assert errors.take() == "a record\na line\n"
