"""CALL-FAR: calls at endpoints."""

import asyncio
import concurrent.futures
import operator
import os
import random
import signal
import threading
import time

import numpy as np
import pytest

import simpler_ref as sr
from simpler_ref import RemoteCallable, RemoteWorkerSpec, TaskError, WorkerLostError
from simpler_ref.errors import ControlError, TaskCancelledError, TaskTimeoutError, WorkerStartError
from simpler_ref.jit.kernel import INTERPRETED
from tests.endpoints import Moody, Sleepy
from tests.support import make_args, wait_until

from ... import far_calls, far_side
from ...far_calls import add, axpy, copy, fill, forms, keep, pid, scale, total, wait_for
from .tasks import opened


@pytest.fixture(scope="module")
def w(request):
    """Give a Worker with two endpoints, or as many as asked for, to all tests that lose none."""
    endpoints, subs = getattr(request, "param", (2, 1))
    with opened(endpoints, subs) as w:
        assert sorted(w.map(keep, range(10))) == list(range(10))
        large = np.zeros(300_000)
        assert all(keep(large).exception() is None for _ in range(2 * endpoints))
        yield w


one_endpoint = pytest.mark.parametrize("w", [(1, 3)], indirect=True, ids=["one endpoint"])


def moved(w, name="copies_stored"):
    """Return how many copies were stored at endpoints, or another sum."""
    return sum(one[name] for one in w.transfers())


# ---------------------------------------------------------------- as on this machine
@pytest.mark.spec("CALL-FAR-1")
def test_a_program_of_calls_runs_at_endpoints_unchanged(w):
    x = w.share(np.arange(1000.0))
    y = w.zeros_like(x)
    for _ in range(10):
        axpy(y, x, 0.5)
    assert total(y).result() == 5 * x.sum()
    assert sum(w.map(total, w.tiles(x, 125))) == x.sum()
    assert np.array_equal(y, 5 * x)
    assert pid().result() not in {os.getpid(), *w.worker_pids()}
    assert list(w.map(lambda i: i * i, range(50))) == [i * i for i in range(50)]
    assert list(w.starmap(add, [(1, 2), ("a", "b")])) == [3, "ab"]
    assert add(add("a", "b"), b=add("c", "d")).result() == "abcd"
    several = [add(i, i) for i in range(5)]
    assert concurrent.futures.wait(several, timeout=60) == (set(several), set())
    told = []
    several[1].add_done_callback(lambda one: told.append(one.result()))
    assert told == [2]

    async def ask():
        return await add(20, 22)

    assert asyncio.run(ask()) == 42


@pytest.mark.spec("CALL-FAR-1")
@pytest.mark.parametrize("rows", [2, 300])
def test_arrays_of_a_call_that_share_all_their_bytes_keep_their_layouts(w, rows):
    x = w.share(np.arange(3 * rows, dtype=np.int64).reshape(rows, 3))
    for one, *others in ((x, x.T, x.reshape(-1), x.view(np.uint8)), (x.T, x, x.view(np.float64))):
        expected = forms.py_func(one.copy(), *(other.copy() for other in others))
        before = x.copy()
        assert forms(one, *others).result() == expected
        assert np.array_equal(x, before + 1)


@pytest.mark.spec("CALL-FAR-1")
def test_runs_and_calls_take_turns(w):
    values, handle = w.zeros(8, np.float64), w.register(far_calls.add_one)
    nothing = w.register(RemoteCallable(far_side.name(far_side.nothing)))

    def orch_fn(orch, args, config):
        orch.submit_sub(handle, make_args((values, sr.TensorArgType.INOUT)))
        orch.submit_next_level(nothing, sr.TaskArgs())

    for k in range(3):
        fill(values, float(k))
        several = [add(i, k) for i in range(10)]
        w.run(orch_fn)
        assert (values.tolist(), total(values).result()) == ([k + 1.0] * 8, 8 * (k + 1))
        assert [one.result() for one in several] == [i + k for i in range(10)]


@pytest.mark.spec("CALL-FAR-1")
def test_a_worker_with_sub_workers_of_its_own_calls_these():
    with sr.Worker(level=4, num_sub_workers=1) as w:
        w.add_remote_worker(RemoteWorkerSpec(num_sub_workers=1, serialized=True))
        assert w.submit(os.getppid).result() != os.getpid()
        assert w.submit(os.getpid).result() in w.worker_pids()


@pytest.mark.spec("CALL-FAR-1")
def test_a_plain_call_does_not_run_here_if_the_fleets_endpoints_have_no_sub_workers():
    spec = RemoteWorkerSpec(serialized=True, device_ids=[0])
    with sr.Worker(fleet=spec, endpoints=1) as w:
        for call in (pid, lambda: w.submit(os.getpid)):
            with pytest.raises(RuntimeError, match=r"RemoteWorkerSpec\(num_sub_workers=…\)"):
                call()
    with sr.Worker(level=4) as w:
        w.add_remote_worker(spec)
        with pytest.raises(RuntimeError, match="num_sub_workers"):
            w.submit(pid)


@pytest.mark.spec("CALL-FAR-1")
def test_a_time_limit_holds_at_an_endpoint_and_the_end_waits_for_what_is_written():
    with opened(1) as w:
        with pytest.raises(TaskTimeoutError, match=r"limit of 0\.2 s"):
            far_calls.sleep_long().result()
        assert add(1, 1).result() == 2
        x = w.zeros(3, np.float64)
        fill(x, 7.0)
    assert x.tolist() == [7] * 3


@pytest.mark.spec("CALL-FAR-1")
def test_compiled_tasks_and_those_with_named_and_starred_arguments_run_at_endpoints(w):
    x = w.share(np.arange(100.0))
    assert far_calls.compiled_total(x, 2).result() == 2 * x.sum()
    refused = "can't multiply" if INTERPRETED else "cannot be compiled"
    with pytest.raises(TypeError, match=refused):
        far_calls.compiled_total(x, add("a", "b")).result()
    assert far_calls.describe(1, 2, 3, k=[4], z=None).result() == "1 (2, 3) [4] {'z': None}"


# ---------------------------------------------------------------- functions
@pytest.mark.spec("CALL-FAR-2")
def test_functions_that_no_module_has_travel_once(w):
    made = []

    @sr.task
    def local(x: sr.InOut, k):
        x += k + len(made)

    x = w.zeros(4, np.int64)
    for _ in range(4):
        local(x, 2).result()
    before = sum(one["frames_sent"] for one in w.endpoints())
    for _ in range(5):
        local(x, 2).result()
    assert x.tolist() == [18] * 4
    assert sum(one["frames_sent"] for one in w.endpoints()) - before == 5


@pytest.mark.spec("CALL-FAR-2", "REMOTE-REG-11")
def test_what_cannot_be_sent_fails_its_call_and_says_why(w):
    lock = threading.Lock()
    with pytest.raises(TypeError, match=r"cannot be sent to an endpoint.*cannot pickle '_thread"):
        w.submit(lambda: lock).result()
    shared = w.share(np.arange(4.0))
    with pytest.raises(TypeError, match="give it the array as an argument"):
        w.submit(lambda: shared.sum()).result()
    with pytest.raises(TypeError, match="give it the array as an argument"):
        list(w.map(lambda i: shared[i], range(4)))
    assert w.submit(lambda array: float(array.sum()), shared).result() == 6


# ---------------------------------------------------------------- arrays
@pytest.mark.spec("CALL-FAR-3")
def test_what_a_call_has_written_is_there_however_its_end_is_noticed(w):
    x = w.zeros(1000, np.float64)
    for notice in (
        lambda one: one.result(),
        lambda one: one.exception(),
        lambda one: concurrent.futures.wait([one]),
        lambda one: total(x).result(),
        lambda one: w.run(lambda *_: None),
        lambda one: [time.sleep(0.001) for _ in iter(one.done, True)],
    ):
        x[:] = 1
        notice(axpy(x, x, 2))
        assert x.tolist() == [3] * 1000


@one_endpoint
@pytest.mark.spec("CALL-FAIL-1", "CALL-FAR-3", "CALL-HAZARD-4")
def test_a_call_that_fails_leaves_its_arrays_as_they_were_and_spoils_no_others(w):
    """The copy that it has spoilt is gone, and that of another array comes to its place."""
    x, y = w.share(np.arange(4.0)), w.ones(4)
    with pytest.raises(ZeroDivisionError):
        far_calls.spoil(x).result()
    assert (x.tolist(), [total(y).result() for _ in range(3)]) == ([0, 1, 2, 3], [4] * 3)
    fill(x, 3.0)
    scale(x, 2.0).result()
    assert x.tolist() == [6] * 4


@pytest.mark.spec("CALL-FAR-3")
def test_views_of_any_kind_are_read_and_written(w):
    x = w.share(np.arange(80.0).reshape(10, 8))
    expected = np.arange(80.0).reshape(10, 8)
    for view in (
        *(lambda x: x[::2], lambda x: x[::-1], lambda x: x[2:7, 3:], lambda x: x.T),
        *(lambda x: x[:, ::-2], lambda x: x[3], lambda x: x[:0], lambda x: x[4, 4:5]),
    ):
        view(expected)[...] *= 3
        scale(view(x), 3.0)
        assert total(view(x)).result() == view(expected).sum()
        assert np.array_equal(x, expected)
    assert total(np.broadcast_to(x[0], (3, 8))).result() == 3 * expected[0].sum()
    records = w.share(np.zeros(3, [("a", "i4"), ("b", "f8")]))
    far_calls.set_field(records, 5).result()
    assert records["b"].tolist() == [5.0] * 3


@pytest.mark.spec("CALL-FAR-4")
def test_copies_stay_while_calls_use_an_array(w, tmp_path):
    gate = tmp_path / "gate"
    x, y = w.share(np.ones(1000)), w.zeros(1000)
    before = moved(w)
    held = wait_for(x, str(gate))  # so all others are submitted while it is under way
    for _ in range(8):
        axpy(y, x, 1.0)
    gate.touch()
    assert (held.result(), total(y).result()) == (1000, 8000)
    assert moved(w) - before <= 4  # y where x is, or both to the other one; y again for the total


@pytest.mark.spec("CALL-FAR-1", "CALL-FAR-4")
def test_a_call_that_waits_is_cancelled_and_keeps_no_copy(w, tmp_path):
    gate = tmp_path / "gate"
    x, y = w.zeros(100, np.float64), w.zeros(100, np.float64)
    assert total(x).result() == 0
    reader = far_calls.total_after(x, wait_for(y, str(gate)))
    assert reader.cancel()
    x[:] = 1
    other = total(x)
    gate.touch()
    assert other.result() == 100
    with pytest.raises(TaskCancelledError):
        reader.result()


# ---------------------------------------------------------------- values and errors
@pytest.mark.spec("CALL-FAR-5")
def test_values_of_any_kind_and_size_travel_both_ways(w):
    large = np.arange(300_000.0)
    for value in (None, True, -1, 1 << 62, 1 << 70, 0.5, "text", [1, {"a": (2,)}], b"x" * 100_000):
        assert (keep(value).result(), add(keep([value]), []).result()) == (value, [value])
    assert np.array_equal(keep(large).result(), large)
    assert np.array_equal(add(keep(large), large).result(), 2 * large)
    assert type(keep(np.float64(2)).result()) is np.float64
    assert keep(bytearray(20 << 20)).result() == bytearray(20 << 20)


@pytest.mark.spec("CALL-FAR-5")
def test_a_call_may_have_more_than_a_frame_takes(w):
    arrays = [w.full(20_000, k, np.float64) for k in range(40)]
    before = moved(w, "served_in"), moved(w, "served_out")
    far_calls.add_to_all(1.0, arrays[0], *arrays[1:]).result()
    assert [one[-1] for one in arrays] == [k + 1 for k in range(40)]
    assert moved(w, "served_in") > before[0] and moved(w, "served_out") > before[1]


@pytest.mark.spec("CALL-FAR-6")
def test_an_error_keeps_its_type_and_has_the_traceback(w):
    with pytest.raises(KeyError, match="no such") as caught:
        far_calls.refuse("no such").result()
    cause = caught.value.__cause__
    assert "in refuse" in cause.text and cause.callable_name == "refuse"
    with pytest.raises(far_calls.OwnError) as caught:
        far_calls.refuse_with_own(3).result()
    assert caught.value.code == 3
    after = add(far_calls.refuse("first"), 1)
    with pytest.raises(KeyError, match="first"):
        after.result()
    assert list(w.map(far_calls.divide, [1, 2])) == [1.0, 0.5]
    results = w.map(far_calls.divide, [0, 1])
    with pytest.raises(ZeroDivisionError):
        next(results)
    assert next(results) == 1.0


@pytest.mark.spec("CALL-FAR-2", "CALL-FAR-6", "CALL-FAR-7")
def test_an_endpoint_imports_only_what_it_allows_and_unpickles_nothing_unless_it_agrees():
    allowed = RemoteWorkerSpec(num_sub_workers=1, modules=[far_calls.__name__])
    with sr.Worker(fleet=allowed, endpoints=1) as w:
        with pytest.raises(ControlError, match="does not import from"):
            w.submit(os.getpid).result()
        with pytest.raises(RuntimeError, match="takes no serialised callables"):
            w.submit(lambda: 1).result()
        x = w.share(np.arange(4.0))
        scale(x, 2.0)
        assert (total(x).result(), add(add(1, 2), 0.5).result()) == (12, 3.5)
        with pytest.raises(TaskError, match=r"cannot be pickled.*put it into a module"):
            far_calls.keep_locked(3).result()
        assert keep(None).result() is None
        for number in (2**63 - 1, -(2**63), True):
            assert keep(number).result() == number
        for other in ("text", 1 + 2j, 2**63, np.float64(2), np.int64(2), np.bool_(True)):
            with pytest.raises(TaskError, match="serialized=True"):
                keep(other).result()
        with pytest.raises(TaskError, match="serialized=True"):
            far_calls.text().result()
        with pytest.raises(TaskError, match="no such") as caught:
            far_calls.refuse_number(1).result()
        assert not isinstance(caught.value, KeyError)
        assert "in refuse_number" in caught.value.remote_traceback
        assert list(w.map(far_calls.divide, [1, 2, 4])) == [1.0, 0.5, 0.25]


# ---------------------------------------------------------------- places
@pytest.mark.spec("CALL-FAR-8")
def test_independent_calls_go_to_all_endpoints_and_follow_their_arrays(w):
    before = [one["tasks"] for one in w.endpoints()]
    assert len({pid().result() for _ in range(4)}) == 2
    assert all(one["tasks"] > count for one, count in zip(w.endpoints(), before, strict=True))
    x = w.zeros(200_000, np.float64)
    places = [far_calls.add_one_and_say_where(x) for _ in range(6)]
    assert (len({one.result() for one in places}), x[0]) == (1, 6)


@pytest.mark.spec("CALL-FAR-8")
def test_calls_follow_their_long_values(w):
    value, before = w.submit(np.full, 50_000, 0), moved(w, "values_stored")
    assert value.result()[0] == 0  # so its length is known
    for _ in range(10):
        value = far_calls.grow(value)
    assert (value.result()[0], moved(w, "values_stored")) == (10, before)


@pytest.mark.spec("CALL-WORKER-4")
@pytest.mark.parametrize(
    ("w", "count"), [((2, 1), 2), pytest.param((2, 2), 4, marks=pytest.mark.long)], indirect=["w"]
)
def test_workers_are_counted_through_all_endpoints(w, count):
    made = [sr.task(workers=k)(os.getpid) for k in range(count)]
    found = [one().result() for one in made]
    assert (len(set(found)), [one().result() for one in made]) == (count, found)
    with pytest.raises(ValueError, match=f"are 0 to {count - 1}"):
        w.submit(sr.task(workers=count)(os.getpid))


# ---------------------------------------------------------------- lost endpoints
@pytest.mark.slow("starts a session anew")
@pytest.mark.spec("CALL-FAR-10")
def test_a_program_that_only_asks_whether_calls_have_ended_gets_a_new_session():
    with opened(1, mailbox_depth=1) as w:
        assert add(1, 1).result() == 2
        os.kill(w.endpoints()[0]["pid"], signal.SIGKILL)
        wait_until(lambda: not w.endpoints()[0]["alive"])
        waits = add(1, 2)
        wait_until(waits.done)
        assert waits.result() == 3


@pytest.mark.spec("CALL-FAR-10")
@pytest.mark.slow("starts two endpoints, and loses one")
@pytest.mark.parametrize("kind", [Sleepy, pytest.param(Moody, marks=pytest.mark.long)])
def test_calls_of_a_lost_endpoint_run_elsewhere_also_while_a_session_is_started(tmp_path, kind):
    fleet = kind(tmp_path / "moody")
    with opened(2, fleet=fleet, mailbox_depth=1) as w:
        assert len({pid().result() for _ in range(4)}) == 2
        fleet.file.touch()
        gate = str(tmp_path / "gate")
        values = [w.full(4, k, np.float64) for k in range(6)]
        held = [wait_for(one, gate) for one in values]
        pid_of_lost = w.endpoints()[0]["pid"]
        os.kill(pid_of_lost, signal.SIGKILL)
        wait_until(lambda: not os.path.exists(f"/proc/{pid_of_lost}"))
        (tmp_path / "gate").touch()
        lost = [error for one in held if (error := one.exception(timeout=30.0))]
        assert len(lost) <= 1
        assert all(isinstance(one, WorkerLostError) for one in lost)
        assert [add(i, 1).result() for i in range(4)] == [1, 2, 3, 4]
        assert not w.endpoints()[0]["alive"]
        if kind is Sleepy:
            fleet.file.unlink()
            return
        with pytest.raises(TaskError, match="lost"):
            sr.task(workers=0)(os.getpid)().result()


@pytest.mark.slow("starts a session anew")
@pytest.mark.spec("CALL-FAR-10")
@pytest.mark.parametrize("ends", [True, pytest.param(False, marks=pytest.mark.long)])
def test_calls_run_at_other_endpoints_while_a_session_is_started(tmp_path, ends):
    fleet = Sleepy(tmp_path / "asleep")
    with opened(2, fleet=fleet) as w:
        there, elsewhere = (sr.task(workers=i)(operator.add) for i in range(2))
        assert [there(1, 1).result(), elsewhere(1, 1).result()] == [2, 2]
        fleet.file.touch()
        os.kill(w.endpoints()[0]["pid"], signal.SIGKILL)
        wait_until(lambda: not w.endpoints()[0]["alive"])
        waits = there(1, 1)
        assert not w.endpoints()[0]["alive"], "its successor is being started"
        for plus in (elsewhere, add):  # where another one can, none waits for it
            assert [plus(i, 1).result(timeout=30.0) for i in range(4)] == [1, 2, 3, 4]
        with pytest.raises(concurrent.futures.TimeoutError):
            waits.result(timeout=0.1)
        late = total(w.ones(4, np.float64)), there(2, 1)
        if not ends:  # the session is not started before the Worker is closed
            waits.cancel(), late[1].cancel()
            return
        fleet.file.unlink()
        assert [waits.result(), late[0].result(), late[1].result()] == [2, 4, 3]
        assert all(one["alive"] for one in w.endpoints())


@pytest.mark.long
@pytest.mark.spec("CALL-FAR-10")
def test_when_all_endpoints_stay_lost_calls_say_so(tmp_path):
    fleet = Moody(tmp_path / "moody")
    with opened(1, fleet=fleet) as w:
        assert add(1, 2).result() == 3
        fleet.file.touch()
        os.kill(w.endpoints()[0]["pid"], signal.SIGKILL)
        wait_until(lambda: not w.endpoints()[0]["alive"])
        for _ in range(2):
            with pytest.raises(WorkerStartError, match="not in the mood"):
                add(1, 2)
        fleet.file.unlink()
        assert add(1, 2).result() == 3


@pytest.mark.spec("CALL-FAR-11")
def test_arrays_that_share_some_bytes_are_refused_if_one_is_written(w):
    x = w.share(np.arange(10.0))
    with pytest.raises(ValueError, match="arrays 0 and 1 of the call share some bytes"):
        copy(x[1:], x[:-1])
    copy(x[1::2], x[::2]).result()
    assert x.tolist() == [0, 0, 2, 2, 4, 4, 6, 6, 8, 8]
    assert far_calls.total_of_both(x[1:], x[:-1]).result() == 72
    axpy(x, x, 1.0).result()
    assert x[2] == 4


# ---------------------------------------------------------------- several at a time
@pytest.mark.spec("CALL-FAR-1")
@one_endpoint
def test_an_endpoint_runs_calls_at_the_same_time_that_come_one_after_another(w, tmp_path):
    for k in range(3):
        here, met = [str(tmp_path / f"{k}.{i}") for i in range(3)], []
        for i, mine in enumerate(here):
            met.append(far_calls.meet(mine, here))
            if i < 2:
                wait_until(lambda mine=mine: os.path.exists(mine))
        assert [one.result() for one in met] == here
    before = w.transfers()[0]["copies"]
    several = [keep(np.full(50_000, k)) for k in range(12)]
    for k, one in enumerate(several):
        assert np.array_equal(one.result(), np.full(50_000, k))
    assert w.transfers()[0]["copies"] <= before


@pytest.mark.spec("CALL-FAR-1")
@one_endpoint
def test_calls_that_wait_or_cannot_be_sent_ahead_are_in_nobodys_way(w, tmp_path):
    gate, lock = tmp_path / "gate", threading.Lock()
    held = wait_for(w.ones(4, np.float64), str(gate))
    after = add(held, 1)
    wait_until((tmp_path / "gate.pid").exists)
    wrong = [w.submit(lambda: lock) for _ in range(2)]
    right = [add(i, i) for i in range(3)]
    assert w.submit(gate.touch).exception() is None
    assert (held.result(), after.result()) == (4, 5)
    for one in wrong:
        with pytest.raises(TypeError, match="cannot be sent to an endpoint"):
            one.result()
    assert [one.result() for one in right] == [0, 2, 4]


@pytest.mark.slow("an endpoint dies, and another takes its place")
@pytest.mark.spec("CALL-FAR-10")
@pytest.mark.parametrize("retries", [0, pytest.param(1, marks=pytest.mark.long)])
def test_a_lost_endpoint_fails_what_it_was_sent_or_it_runs_again(tmp_path, retries):
    gate = tmp_path / "gate"
    with opened(1, subs=2) as w:
        add(1, 1).result()
        frames_sent = w.endpoints()[0]["frames_sent"]
        x, y = w.ones(4, np.float64), w.ones(4, np.float64)
        held = sr.task(retries=retries)(far_calls.wait_for_gate)(x, str(gate))
        again = sr.task(retries=retries)(operator.add)
        others = [again(i, 1) for i in range(4)]
        wait_until((tmp_path / "gate.pid").exists)
        sent = frames_sent + 2 * 2 + 5  # two functions, five calls
        try:
            wait_until(lambda: w.endpoints()[0]["frames_sent"] == sent)
            os.kill(int((tmp_path / "gate.pid").read_text()), signal.SIGKILL)
        finally:
            gate.touch()
        if retries:
            assert (held.result(), [one.result() for one in others]) == (4, [1, 2, 3, 4])
        else:
            for one in [held, *others]:
                with pytest.raises(WorkerLostError, match=r"endpoint.*lost before") as caught:
                    one.result()
                assert caught.value.callable_name in ("wait_for_gate", "add")
            scale(x, 2.0).result()
            assert x.tolist() == [2] * 4
            assert far_calls.die_once(y, str(tmp_path / "died")).result() == 4
            assert total(y).result() == 8
        assert add(1, 2).result() == 3


@pytest.mark.spec("CALL-FAR-3", "CALL-FAR-4")
@pytest.mark.parametrize("seed", range(2))
def test_random_programs_do_what_they_do_in_sequence(w, seed):
    arrays, chance = [w.share(np.arange(48.0) + k) for k in range(3)], random.Random(seed)
    models, pending = [one.copy() for one in arrays], []

    def view(a):
        """Return a random part of an array, of which its model has the same."""
        first = chance.randrange(40)
        part = slice(first, chance.randrange(first + 1, 49), chance.choice([1, 1, 1, 2, 3]))
        turned = slice(None, None, chance.choice([1, 1, -1]))
        return arrays[a][part][turned], models[a][part][turned]

    for _ in range(60):
        a, b = chance.sample(range(3), 2)
        (x, model), (y, other) = view(a), view(b)
        what = chance.randrange(8)
        if what == 0:
            fill(x, float(what))
            model[...] = what
        elif what in (1, 2):
            scale(x, 0.5)
            model[...] *= 0.5
        elif what in (3, 4):
            size = min(len(x), len(y))
            axpy(x[:size], y[:size], 0.25)
            model[:size] += 0.25 * other[:size]
        elif what == 5:
            pending.append((total(x), model.sum()))
        elif what == 6 and pending:
            found, expected = pending.pop(chance.randrange(len(pending)))
            assert found.result() == pytest.approx(expected, rel=1e-12)
        elif what == 7 and chance.random() < 0.3:
            concurrent.futures.wait([total(one) for one in arrays])
            for one, its in zip(arrays, models, strict=True):
                assert np.array_equal(one, its)
            arrays[a][:] = models[a][:] = chance.random()
    for found, expected in pending:
        assert found.result() == pytest.approx(expected, rel=1e-12)
    w.run(lambda *_: None)
    for one, its in zip(arrays, models, strict=True):
        assert np.array_equal(one, its)
