"""FLOW-UNREG: taking a callable back."""

import numpy as np
import pytest

from simpler_ref import Worker
from simpler_ref.errors import CallableError, ControlError
from simpler_ref.task_interface import TensorArgType as T
from tests.conformance.task_flow.test_undo import (
    DIE,
    FINE,
    REFUSE,
    function,
    installed,
    make,
    run_on_all,
)
from tests.support import make_args

__all__ = ["make"]


@pytest.mark.spec("FLOW-UNREG-1")
def test_with_the_last_handle_every_worker_forgets_the_callable(make, mode):
    w, words = make(mode)
    first, second = w.register(function), w.register(function)
    assert installed(words) == [1, 1, 1]
    w.unregister(first)
    assert installed(words) == [1, 1, 1]
    w.unregister(second)
    assert installed(words) == [0, 0, 0]
    with pytest.raises(KeyError, match="is not live"):
        w.unregister(second)
    with pytest.raises(KeyError, match="is not live"):
        w.run(lambda orch, *_: orch.submit_next_level(second))
    w.register(function)
    assert installed(words) == [1, 1, 1]


@pytest.mark.spec("FLOW-UNREG-2")
@pytest.mark.parametrize("again", [False, True])
def test_tasks_submitted_before_still_run_and_what_is_registered_again_stays(make, mode, again):
    w, words = make(mode)
    handle, made = w.register(function), []

    def orch_fn(orch, *_):
        for _ in range(30):
            orch.submit_next_level(handle)
        w.unregister(handle)
        with pytest.raises(KeyError, match="is not live"):
            orch.submit_next_level(handle)
        assert installed(words) == [1, 1, 1], "it stays until the run ends"
        if again:
            made.append(w.register(function))
            orch.submit_next_level(made[0])

    w.run(orch_fn)
    assert installed(words) == [int(again)] * 3
    if again:
        run_on_all(w, made[0])


@pytest.mark.spec("FLOW-UNREG-3", "FLOW-UNREG-4")
def test_an_unconfirmed_removal_leaves_a_tombstone_and_the_other_workers_forget(make, mode):
    w, words = make(mode)
    handle = w.register(function)
    words[1][1] = REFUSE
    with pytest.raises(ControlError, match=r"obedient 1.*the disk is full"):
        w.unregister(handle)
    assert installed(words) == [0, 1, 0]
    words[1][1] = FINE
    for again, code in (
        (lambda: w.register(function), "REGISTER_TOMBSTONE_ACTIVE"),
        (lambda: w.unregister(handle), "UNREGISTER_TOMBSTONE_ACTIVE"),
    ):
        with pytest.raises(CallableError, match=code) as caught:
            again()
        assert caught.value.code == code
    with pytest.raises(KeyError, match="is not live"):
        w.run(lambda orch, *_: orch.submit_next_level(handle))
    run_on_all(w, w.register(lambda: 2))


@pytest.mark.spec("FLOW-UNREG-1")
def test_a_worker_that_dies_in_the_removal_has_forgotten_the_callable(make):
    w, words = make("process")
    handle = w.register(function)
    words[1][1] = DIE
    w.unregister(handle)
    words[1][:3] = 0
    run_on_all(w, w.register(function))
    assert installed(words) == [1, 1, 1]


@pytest.mark.spec("FLOW-UNREG-1", "WM-MAIL-2")
@pytest.mark.parametrize(("mode", "depth"), [("process", 1), ("process", 16), ("thread", 1)])
def test_what_takes_the_place_of_a_callable_runs_in_each_frame_and_nothing_else_does(mode, depth):
    def add_to(i):
        def add(args):
            args.tensor(0).numpy()[i] += 1

        return add

    with Worker(level=3, num_sub_workers=1, child_mode=mode, mailbox_depth=depth) as w:
        counts = w.share(np.zeros(40, np.int64))
        w.start()

        def run(handle):
            args = make_args((counts, T.NO_DEP))
            w.run(lambda orch, *_: [orch.submit_sub(handle, args) for _ in range(2 * depth)])

        first = add_to(0)
        handle = w.register(first)
        run(handle)
        for i in range(1, 40):  # more than the worker's small cache holds
            w.unregister(handle)
            handle = w.register(add_to(i))
            if i == 1:
                w.register(first)  # so that its digest in a frame would do no visible harm
            run(handle)
        assert counts.tolist() == [2 * depth] * 40
