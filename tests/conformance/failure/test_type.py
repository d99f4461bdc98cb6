"""FAIL-TYPE: exceptions."""

import builtins
from concurrent import futures
from concurrent.futures import process

import pytest

import simpler_ref
from simpler_ref import RemoteTraceback, TaskError, Worker, errors
from tests.spec_rules import tables


@pytest.mark.spec("FAIL-TYPE-1")
def test_every_exception_of_the_package_is_in_the_table_and_what_it_says():
    places = vars(process) | vars(futures) | vars(builtins) | vars(errors)
    kinds = {name: bases.split(", ") for name, bases, _ in tables("FAIL-TYPE")[0]}
    for name, bases in kinds.items():
        found = tuple(places[base.strip("` ")] for base in bases)
        assert getattr(simpler_ref, name).__bases__ == found
    own = {name for name, one in vars(errors).items() if isinstance(one, type)}
    exceptions = {name for name in own if issubclass(getattr(errors, name), Exception)}
    assert {*kinds} == exceptions - {"RemoteTraceback"} | {"ChipError"}


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
