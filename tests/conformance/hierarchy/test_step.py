"""HIER-STEP: an engine moved by hand."""

import threading
from xml.etree import ElementTree

import numpy as np
import pytest

import simpler_ref as sr
from simpler_ref import RingFullError, Worker
from simpler_ref.native_chip import ChipCallable
from simpler_ref.stepping import Stepper
from simpler_ref.task_interface import MailboxState
from simpler_ref.task_interface import TensorArgType as T
from tests.chip_kernels import add_core
from tests.support import COMPLETED, FREE, PENDING, READY, RUNNING, make_args

pytestmark = pytest.mark.kernels


def double(args):
    np.multiply(args.tensor(0).numpy(), 2, out=args.tensor(1).numpy())


@pytest.fixture
def stepper():
    with Stepper() as made:
        yield made


def pair(stepper):
    """Submit a task and one that reads what it writes."""
    x, y, z = stepper.worker.share(np.arange(3.0)), *(stepper.worker.zeros(3) for _ in range(2))
    handle = stepper.register(double)
    for source, target in ((x, y), (y, z)):
        args = make_args((source, T.INPUT), (target, T.OUTPUT_EXISTING))
        stepper.orch.submit_sub(handle, args)
    return y, z


@pytest.mark.spec("HIER-STEP-1")
def test_a_task_moves_from_submit_to_free_by_one_step_after_another(stepper):
    y, z = pair(stepper)
    first, second = tasks = 0, 1

    def states():
        return [stepper.state(task) for task in tasks]

    worker = stepper.workers[0]
    assert (stepper.wiring_queue(), states()) == ([0, 1], [PENDING, PENDING])
    assert (stepper.wire(), stepper.wire(), stepper.wire()) == (first, second, None)
    assert (stepper.ready_queue(), states()) == ([0], [READY, PENDING])
    assert (stepper.producers(second), stepper.consumers(first)) == ([first], [second])
    assert stepper.slot_state(second).fanin_released == 0
    assert (stepper.dispatch(), states()) == (1, [RUNNING, PENDING])
    assert (worker.mailbox.read_state(), worker.tasks()) == (MailboxState.TASK_READY, [0])
    assert worker.take().tensor_count() == 2
    assert y.tolist() == [0, 0, 0]
    worker.serve()
    assert (y.tolist(), states()) == ([0, 2, 4], [RUNNING, PENDING])
    assert worker.mailbox.read_state() == MailboxState.TASK_DONE
    assert (stepper.collect(), states()) == (1, [COMPLETED, READY])
    assert stepper.slot_state(second).fanin_released == 1
    assert stepper.finish_tasks() == [second]
    assert (z.tolist(), states()) == ([0, 4, 8], [COMPLETED, COMPLETED])
    stepper.finish_run()
    assert (states(), sorted(stepper.consumed_list())) == ([FREE, FREE], [])
    stepper.begin_run()
    pair(stepper)
    assert stepper.live_tasks() == [0, 1]


@pytest.mark.spec("HIER-STEP-1")
def test_every_kind_of_worker_serves_its_tasks():
    ran = []

    class Own:
        def run(self, callable, view, config):
            ran.append(callable(view))

    worker = Worker(3, device_ids=[0])
    worker.add_sub(Own())
    with Stepper(worker) as stepper:
        arrays = [worker.share(np.ones(8, np.float32)) for _ in range(3)]
        args = make_args(*((array, T.INOUT) for array in arrays))
        chip = stepper.register(ChipCallable.from_kernel(add_core()))
        own = stepper.register(lambda args: args.tensor_count())
        stepper.orch.submit_next_level(chip, args)
        stepper.orch.submit_sub(own, args)
        assert stepper.finish_tasks() == [0, 1]
        assert not stepper._view.has_failed
        assert arrays[2].tolist() == [2] * 8
        assert ran == [3]


@pytest.mark.spec("HIER-STEP-2")
def test_what_is_not_possible_now_raises_and_changes_nothing(stepper):
    pair(stepper)
    stepper.wire()
    worker, before = stepper.workers[0], str(stepper)
    refused = [
        (worker.take, "no task to take"),
        (worker.answer, "no task to answer"),
        (lambda: worker.dispatch(1), "must be READY"),
        (lambda: stepper.step(0, "complete"), "cannot happen"),
        (lambda: stepper.step(0, "fly"), "there is no event"),
        (stepper.begin_run, "are live"),
        (stepper.orch.drain, "wait for ever"),
        (lambda: stepper.worker.run(print), "a run is in progress"),
        (lambda: stepper.orch.alloc((1 << 20,), "uint8"), "exceeds"),
        (lambda: stepper.kill(2), "worker index 2"),
        (lambda: stepper.slot_state(7), "task 7"),
        (lambda: stepper.submit(callable=99), "callable index 99"),
    ]
    for step, why in refused:
        with pytest.raises((RuntimeError, ValueError, LookupError), match=why):
            step()
    assert str(stepper) == before
    with Worker(3, num_sub_workers=1) as w, pytest.raises(RuntimeError, match="open already"):
        Stepper(w)


@pytest.mark.spec("HIER-STEP-2")
def test_a_full_wiring_queue_is_told_as_what_it_is_and_wiring_makes_room(stepper):
    nothing = stepper.register(lambda: None)
    with pytest.raises(
        RingFullError, match=r"^8192 submitted tasks wait to be wired, and the Sched"
    ):
        stepper.orch.submit_sub_many(nothing, [], [], count=9000)
    assert (len(stepper.wiring_queue()), stepper.wire()) == (8192, 0)
    stepper.orch.submit_sub(nothing)
    assert stepper.wiring_queue()[-1] == 8192


@pytest.mark.spec("HIER-STEP-3")
def test_show_prints_tasks_queues_mailboxes_rings_scopes_and_keys(stepper, capsys):
    """A picture has a box for each task and an arrow for each edge."""
    pair(stepper)
    picture = ElementTree.fromstring(stepper._repr_svg_())
    kinds = [one.tag.rpartition("}")[2] for one in picture]
    assert {"0 double", "1 double", "PENDING", "wiring: 0 1"} <= {*picture.itertext()}
    assert (kinds.count("path"), kinds.count("rect")) == (1, 1 + 2)
    stepper.orch.alloc((4,), "uint8")
    stepper.wire()
    stepper.dispatch()
    stepper.show()
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    expected = """\
task state callable fanin fanout producers consumers worker memory
0 RUNNING double 0/0 0/3 – 1 sub_worker 0
1 PENDING double 0/1 0/2 0 – –
2 COMPLETED alloc 0/0 1/2 – – – ring 0, 1024 bytes

wiring 1
ready SUB –
consumed –
sub_worker 0 TASK_READY, task 0
sub_worker 1 INIT_DONE
ring 0 tail 0, top 1024: 1024 bytes held
scope 0 0 1 2
tensormap t1 → 0, t2 → 1, ring 0 + 0 → 2"""
    assert lines == [line.split() for line in expected.splitlines()]


@pytest.mark.spec("HIER-STEP-1")
def test_where_tasks_have_run_by_hand_calls_go_to_workers_as_before(stepper):
    """A task finds what tasks before it have left in `local`, and the program does not."""
    seen = []

    def count(args):
        sr.local.count = getattr(sr.local, "count", 0) + 1
        seen.append(sr.local.count)

    counting = stepper.register(count)
    sr.local.mine = 3
    for _ in range(2):
        stepper.orch.submit_sub(counting)
        stepper.run_pass()
        stepper.workers[0].serve()
        stepper.collect()
    assert (seen, sr.local.mine, hasattr(sr.local, "count")) == ([1, 2], 3, False)
    stepper.close()
    with Worker(num_sub_workers=1, child_mode="thread"):
        assert sr.task(threading.get_ident)().result() != threading.get_ident()
    del sr.local.mine
