"""FAIL-TYPE: exceptions."""

import builtins
from concurrent import futures
from concurrent.futures import process

import pytest

import simpler_ref
from simpler_ref import RemoteTraceback, TaskError, Worker, errors
from tests.spec_rules import tables

KINDS = [(name, bases) for name, bases, _ in tables("FAIL-TYPE")[0]]


@pytest.mark.spec("FAIL-TYPE-1")
@pytest.mark.parametrize(("name", "bases"), KINDS)
def test_an_exception_is_what_the_table_says(name, bases):
    kind = getattr(simpler_ref, name)
    wanted = [base.strip("` ") for base in bases.split(",")]
    assert kind.__bases__ == tuple(
        next(
            getattr(place, base)
            for place in (errors, builtins, futures, process)
            if hasattr(place, base)
        )
        for base in wanted
    )


@pytest.mark.spec("FAIL-TYPE-1")
def test_the_table_has_every_exception_of_the_package():
    there = {
        name
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, Exception)
    }
    assert {name for name, _ in KINDS} == there - {"RemoteTraceback"} | {"ChipError"}


@pytest.mark.spec("FAIL-TYPE-2")
def test_a_task_error_says_which_task_where_and_why():
    def breaks(args):
        raise KeyError("the reason")

    with Worker(3, num_sub_workers=1) as w:
        handles = w.register(lambda: None), w.register(breaks)
        with pytest.raises(TaskError) as caught:
            w.run(lambda orch, *_: [orch.submit_sub(one) for one in handles])
        error = caught.value
        assert (error.task, error.callable_name, error.worker) == (1, breaks.__qualname__, 0)
        assert error.pid == w.worker_pids()[0]
        assert error.remote_traceback.rstrip().endswith("KeyError: 'the reason'")
        assert error.remote_traceback.count('  File "') == 1 and len(caught.traceback) == 2
        assert isinstance(error.__cause__, RemoteTraceback)
        assert error.__cause__.text == error.remote_traceback
