"""CALL-KEEP: long values of calls that endpoints keep."""

import os
import random
import signal
import time

import numpy as np
import pytest

import simpler_ref as sr
from simpler_ref import WorkerLostError
from simpler_ref.remote import link_tasks
from tests import fail_points
from tests.fail_points import arm
from tests.support import wait_until

from ... import far_calls
from ...far_calls import add, keep, kill_sub_worker
from .tasks import opened

IN_FRAME, BESIDE = 20_000, 50_000
"""Float64 elements of values longer than 64 KiB: one that travels in frames, one that does not."""
HERE, THERE = (sr.task(workers=k)(np.sum) for k in range(2))
MADE_HERE = sr.task(workers=0)(np.full)
sizes = pytest.mark.parametrize("size", [IN_FRAME, BESIDE])


@pytest.fixture(scope="module")
def both():
    """Give a Worker with two endpoints, to all tests that do not lose them."""
    with opened() as w:
        HERE(MADE_HERE(BESIDE, 1.0)).result()
        THERE(MADE_HERE(BESIDE, 1.0)).result()
        yield w


def count(w, name, where=None):
    """Return one of the numbers of an endpoint, or of all together."""
    told = w.transfers()
    return sum(one[name] for one in told) if where is None else told[where][name]


def counter(w):
    """Return a function that tells by how much such a number has grown since then."""
    before = w.transfers()
    both = lambda: zip(w.transfers(), before, strict=True)  # noqa: E731
    return lambda name: [now[name] - then[name] for now, then in both()]


def nothing_is_kept(w):
    """Say whether no endpoint keeps a value, once they know what nobody needs."""
    add(1, 1).result()  # the last futures are dropped before the next call
    return count(w, "value_bytes") == 0


# ---------------------------------------------------------------- what moves, and how often
@pytest.mark.spec("CALL-KEEP-1")
@sizes
def test_a_value_moves_to_another_endpoint_once_and_not_to_calls_where_it_is(both, size):
    grown, value = counter(both), MADE_HERE(size, 3.0)
    assert [HERE(value).result() for _ in range(5)] == [3.0 * size] * 5
    assert (grown("values_stored"), grown("values_hits")) == ([0, 0], [5, 0])
    assert grown("served_in") == [0, 0]
    assert [THERE(value).result() for _ in range(5)] == [3.0 * size] * 5
    assert HERE(value).result() == 3.0 * size
    assert (grown("values_stored"), grown("values_hits")) == ([0, 1], [6, 4])
    nbytes = grown("served_in")[1], grown("served_out")[0]
    assert all(one == 0 if size == IN_FRAME else one > 8 * size for one in nbytes)
    there = sr.task(workers=1)(far_calls.sum_of_all)
    assert there(value, MADE_HERE(size, 2.0), value).result() == 8.0 * size
    assert grown("values_stored") == [0, 2]
    both.run(lambda *_: None)
    assert (HERE(value).result(), THERE(value).result()) == (3.0 * size, 3.0 * size)


@pytest.mark.spec("CALL-KEEP-2")
@sizes
def test_what_a_call_does_to_its_argument_others_do_not_see(both, size):
    value = MADE_HERE(size, 1.0)
    for k in range(2):
        assert sr.task(workers=k)(far_calls.overwrite)(value).result() == -size
        assert (HERE(value).result(), THERE(value).result()) == (size, size)
    assert value.result().sum() == size


@pytest.mark.spec("CALL-KEEP-1")
def test_values_of_any_kind_and_number_are_kept(both):
    for value in (b"x" * 100_000, ["a" * 50_000, {"b": np.arange(30_000)}], "y" * 300_000):
        first = keep(value)
        assert len(first.result()) == len(value)
        second = keep(value)
        assert add(keep(second), type(value)()).result()[0] == value[0]
        assert both.submit(len, second).result() == len(value)
    several, grown = [MADE_HERE(30_000, k) for k in range(40)], counter(both)  # more than a frame
    for task in (sr.task(workers=k)(far_calls.sum_of_all) for k in range(2)):
        assert task(*several).result() == 30_000 * sum(range(40))
    assert grown("values_stored") == [0, 40]
    del first, second, several
    assert nothing_is_kept(both)


@pytest.mark.spec("CALL-KEEP-3")
@sizes
def test_endpoints_forget_what_nobody_needs(both, size):
    assert nothing_is_kept(both)
    value = MADE_HERE(size, 1.0)
    assert (THERE(value).result(), count(both, "values")) == (size, 2)
    array = value.result()
    del value
    assert add(1, 1).result() == 2
    assert count(both, "values") == 2  # the array is in the block
    del array
    assert nothing_is_kept(both)
    grown = counter(both)
    for k in range(60):
        assert HERE(MADE_HERE(size, k)).result() == k * size
    add(1, 1).result()
    assert grown("values_dropped")[0] >= 55, "calls tell them"


@pytest.mark.spec("CALL-KEEP-4")
@pytest.mark.parametrize(
    "size, by_size", [(BESIDE, False), pytest.param(IN_FRAME, True, marks=pytest.mark.long)]
)
def test_what_was_not_used_for_long_makes_room_and_moves_again(monkeypatch, size, by_size):
    most = 5 * 8 * BESIDE
    if not by_size:
        monkeypatch.setattr(link_tasks, "MOST_KEPT", most)
    options = {"values_size": 4 * most} if by_size else None
    with opened(1, options=options) as w:
        several = [w.submit(np.full, size, float(k)) for k in range(16)]
        for _ in range(2):
            assert [HERE(one).result() for one in several] == [k * size for k in range(16)]
            assert 0 < count(w, "value_bytes") <= most
        assert count(w, "values_stored") > 0
        del several
        assert nothing_is_kept(w)
        value, before = w.submit(np.full, 6 * BESIDE, 1.0), count(w, "values_stored")
        assert [HERE(value).result() for _ in range(3)] == [6 * BESIDE] * 3
        assert count(w, "values_stored") - before == 3, "it is too long to be kept"
        assert count(w, "values") == 0


# ---------------------------------------------------------------- lost endpoints
@pytest.mark.slow("endpoints die twice, and others take their places")
@pytest.mark.spec("CALL-KEEP-1")
def test_values_outlive_their_endpoint_its_sub_worker_and_calls_that_run_again(tmp_path):
    with opened() as w:
        pairs = [(size, MADE_HERE(size, 1.0), MADE_HERE(size, 2.0)) for size in (IN_FRAME, BESIDE)]
        lost = kill_sub_worker().exception()
        assert isinstance(lost, WorkerLostError) and lost.callable_name == "kill_sub_worker"
        assert f"call {lost.task} (kill_sub_worker): sub_worker 0" in str(lost)
        assert str(lost).startswith(f"endpoint {lost.worker} of this machine")
        for size, value, other in pairs:
            assert THERE(other).result() == 2 * size
            wait_until(value.done)
        os.kill(w.endpoints()[0]["pid"], signal.SIGKILL)
        wait_until(lambda: not w.endpoints()[0]["alive"])
        for size, value, other in pairs:
            assert (THERE(value).result(), value.result().sum()) == (size, size)
            assert (HERE(other).result(), THERE(other).result()) == (2 * size, 2 * size)
        again = sr.task(retries=1)(far_calls.sum_or_die_once)
        assert again(pairs[0][2], str(tmp_path / "died")).result() == 2.0 * IN_FRAME
        assert HERE(pairs[0][2]).result() == 2.0 * IN_FRAME
        del pairs, value, other
        assert nothing_is_kept(w)


@pytest.mark.spec("CALL-KEEP-1")
@pytest.mark.long  # make test runs the one above, where somebody dies while nothing moves
@pytest.mark.parametrize("point", fail_points.VALUES)
def test_who_dies_while_values_move_is_replaced_and_nothing_is_wrong(point, tmp_path, monkeypatch):
    once = arm(point, tmp_path, monkeypatch)
    monkeypatch.setattr(link_tasks, "MOST_KEPT", 5 * 8 * BESIDE)
    with opened() as w:
        seen, deadline = [], time.monotonic() + 60
        while once.exists() and time.monotonic() < deadline:
            draw = random.Random(len(seen))
            tasks = [sr.task(workers=k)(far_calls.grown) for k in range(2)]
            values = [(keep(np.zeros(size)), 0) for size in (IN_FRAME, BESIDE)]
            for _ in range(20):
                value, expected = draw.choice(values)
                values.append((draw.choice(tasks)(value), expected + 1))
            for value, expected in values:
                error = value.exception()
                if error is None:
                    assert set(value.result()) == {expected}
                else:
                    seen.append(error)
        assert not once.exists(), "nobody has died"
        assert seen
        for error in seen:
            assert "endpoint" in str(error)
        again = [sr.task(workers=k)(far_calls.grown)(np.ones(IN_FRAME)) for k in range(2)]
        assert [one.result()[0] for one in again] == [2, 2]
        del values, value, again
        assert nothing_is_kept(w)
