"""What a task or a call of an endpoint on this machine costs, one at a time."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from conftest import Round

from simpler_ref import RemoteCallable, RemoteWorkerSpec, TaskArgs, Worker, task

TASKS, CALLS = 400, 200


def idle(orch, args, config):
    """Do nothing, on the endpoint."""


@task
def nothing():
    """Return None, from a sub worker of the endpoint."""


@contextmanager
def tasks(secure: bool) -> Iterator[tuple[Round, int]]:
    """Give rounds of tasks, each of which is sent when the one before has ended."""
    with Worker(level=4, mailbox_depth=1) as worker:
        worker.add_remote_worker(RemoteWorkerSpec(modules=[__name__], secure=secure))
        handle = worker.register(RemoteCallable(f"{__name__}:{idle.__name__}"))

        def orchestrate(orch, args, config):
            for _ in range(TASKS):
                orch.submit_next_level(handle, TaskArgs())

        def one_round() -> float:
            start = time.perf_counter()
            worker.run(orchestrate)
            return time.perf_counter() - start

        yield one_round, TASKS


@contextmanager
def calls(secure: bool) -> Iterator[tuple[Round, int]]:
    """Give rounds of calls, each after the result of the one before."""
    spec = RemoteWorkerSpec(num_sub_workers=1, serialized=True, secure=secure)
    with Worker(fleet=spec, endpoints=1):

        def one_round() -> float:
            start = time.perf_counter()
            for _ in range(CALLS):
                nothing().result()
            return time.perf_counter() - start

        yield one_round, CALLS


@pytest.fixture(autouse=True)
def quiet(caplog):
    """Leave out that endpoints in the open are open: they are here only."""
    with caplog.at_level(logging.ERROR, "simpler_ref"):
        yield


def test_one_task_after_another_at_an_endpoint(record):
    with tasks(False) as plain, tasks(True) as secure:
        record({"far_task": plain, "far_task_curve": secure}, rounds=25)


def test_one_call_after_another_at_an_endpoint(record):
    with calls(True) as secure:
        record({"far_call_curve": secure}, rounds=25)
