"""Fail points in Python code: where they exist, only the worker that a test names dies."""

import os
import signal

import pytest

from simpler_ref.jit import fail_points
from simpler_ref.jit import layout as L

POINT = fail_points.FAIL_CALLING


@pytest.fixture(params=[False, True], ids=["not there", "there"])
def there(request, monkeypatch):
    """Say whether fail points exist."""
    monkeypatch.setattr(fail_points, "FAIL_POINTS", request.param)
    return request.param


def test_the_worker_that_is_named_is_armed_once(driver, there):
    first, second = driver._worker(0), driver._worker(1)
    driver.mem[L.START_FAIL] = named = 1 + 1 << 8 | POINT
    fail_points.arm(driver.mem, first, 0)
    assert (driver.mem[L.START_FAIL], driver.mem[first + L.W_FAIL]) == (named, 0)
    fail_points.arm(driver.mem, second, 1)
    assert driver.mem[second + L.W_FAIL] == (POINT if there else 0)
    assert driver.mem[L.START_FAIL] == (0 if there else named)


def test_a_process_ends_at_the_point_that_is_named(driver, there, monkeypatch):
    killed = []
    monkeypatch.setattr(os, "kill", lambda *what: killed.append(what))
    driver.mem[driver._worker(0) + L.W_FAIL] = POINT
    for worker, point in ((0, POINT - 1), (1, POINT), (0, POINT)):
        fail_points.die_here(driver.mem, driver._worker(worker), point)
    assert killed == ([(os.getpid(), signal.SIGKILL)] if there else [])
