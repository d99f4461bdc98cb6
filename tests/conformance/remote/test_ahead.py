"""REMOTE-AHEAD: tasks that are sent to endpoints before those in front of them have ended."""

import errno
import os
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
import zmq

from simpler_ref import CallConfig, RemoteCallable, RemoteError, RemoteWorkerSpec, Worker
from simpler_ref.engine.view.mailbox import MailboxView
from simpler_ref.jit import layout as L
from simpler_ref.remote.connection import Order
from simpler_ref.remote.copies import COMING, CopiedTensor, Copies, window_key
from simpler_ref.remote.frames import FrameType
from simpler_ref.remote.limits import REMOTE_BUFFER_ACCESS_READ, REMOTE_BUFFER_ACCESS_WRITE
from simpler_ref.remote.mover import Refusal, bytes_at
from simpler_ref.remote.parent_memory import ParentMemory
from simpler_ref.remote.session_frames import SessionFrames
from simpler_ref.remote.session_tasks import SessionTasks
from simpler_ref.remote.side_by_side import SideBySide, Work
from simpler_ref.remote.task_messages import Run
from tests import far_side
from tests.endpoints import COUNT, EXISTING, INOUT, INPUT, program, reference, store
from tests.raw_session import ENDPOINT, SESSION, manifest
from tests.support import make_args, reads, tasks_given, wait_until, writes
from tests.system.programs import Concurrently

DEPTH = 4
LONG = 1 << 17
"""Numbers of an array that does not travel in a frame."""
KEY = 0x7000_0000


class Held:
    """An endpoint that is busy with a task until it is let go."""

    def __init__(self, made, folder):
        self.made, self.worker, self._folder = made, made.worker, folder

    def until_all_are_sent(self, before):
        """Wait until the endpoint has been sent as many tasks as its link has frames for."""
        wait_until(lambda: self.frames() >= before + DEPTH)

    def frames(self):
        """Return how many frames the endpoint has been sent."""
        return self.worker.endpoints()[0]["frames_sent"]

    def hold(self, orch, name="pipe"):
        """Submit a task that the endpoint is busy with."""
        config = CallConfig()
        config.output_prefix = str(self._folder / name)
        os.mkfifo(config.output_prefix)
        orch.submit_next_level(self.made.handle(far_side.hold), make_args(), config, worker=0)

    def let_go(self, name="pipe"):
        """Let it end, once it has begun."""
        wait_until(lambda: self._is_let_go(self._folder / name))

    def _is_let_go(self, pipe):
        try:
            os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
        except OSError as error:
            assert error.errno == errno.ENXIO, error  # nobody reads
            return False
        return True

    def submit(self, orch, function, *tensors):
        """Submit another task."""
        orch.submit_next_level(self.made.handle(function), given(*tensors), worker=0)


def given(*tensors):
    """Return arguments: pairs of a buffer, or an array of the parent, and a tag."""
    return make_args(
        *((one if isinstance(one, np.ndarray) else reference(one), tag) for one, tag in tensors)
    )


@contextmanager
def held(folder):
    """Give one."""
    with program(1, DEPTH) as made:
        made.handle(far_side.hold)
        yield Held(made, folder)


# ---------------------------------------------------------------- which tasks: the kernel
@pytest.fixture
def driver(make_driver):
    """Give an engine with one worker of several frames."""
    return make_driver(depth=DEPTH, sub=1)


def ticket(driver, distance):
    """Return the ticket of a task that waits only for those in front of it."""
    if distance == 0:
        return int(driver.k.task_ahead(driver.mem, 0, 0, 0))
    found, startable = (
        int(driver.k.task_ahead(driver.mem, 0, distance, may_wait)) for may_wait in (1, 0)
    )
    waits = found != L.NONE and awaited(driver, found)
    assert startable == (L.NONE if waits else found), "only what waits for nothing can start"
    return found


def awaited(driver, ticket):
    """Return the tickets of what a task waits for."""
    return MailboxView(SimpleNamespace(mem=driver.mem), 0).awaits(ticket)


@pytest.mark.spec("REMOTE-AHEAD-1")
def test_tasks_behind_the_current_one_have_tickets_of_their_own_and_empty_frames_none(driver):
    for count in range(1, DEPTH):
        driver.submit_and_settle()
        assert [ticket(driver, one) for one in range(count, DEPTH)] == [L.NONE] * (DEPTH - count)
    seen = set()
    for _ in range(3 * DEPTH):
        while len(driver.all_given(0)) < DEPTH:
            driver.submit_and_settle()
        tickets = [ticket(driver, distance) for distance in range(DEPTH)]
        assert L.NONE not in tickets and len(set(tickets)) == DEPTH
        assert [one & L.LOW_HALF for one in tickets] == driver.frames(0)
        assert tickets[0] not in seen
        seen.add(tickets[0])
        driver.post_done(0)
        assert ticket(driver, 0) == tickets[1], "it is the same one when its turn comes"
        driver.settle()


@pytest.mark.spec("REMOTE-AHEAD-7")
def test_a_task_that_waits_for_those_in_front_of_it_names_their_tickets(driver):
    driver.submit(writes(KEY))
    driver.submit()
    driver.submit(writes(KEY + 8))
    driver.submit_and_settle(reads(KEY), reads(KEY + 8))
    tickets = [ticket(driver, distance) for distance in range(4)]
    assert L.NONE not in tickets
    assert sorted(awaited(driver, tickets[3])) == [tickets[0], tickets[2]]
    assert awaited(driver, tickets[2]) == awaited(driver, tickets[1]) == []
    driver.post_done(0)
    assert ticket(driver, 2) == tickets[3]
    assert awaited(driver, tickets[3]) == [tickets[2]], "the other has ended"


@pytest.mark.spec("REMOTE-AHEAD-7")
@pytest.mark.parametrize("outcome", [L.TASK_FAILURE, L.SKIPPED, L.RETURNED])
def test_a_task_that_waits_for_one_that_did_not_end_well_has_no_ticket(driver, outcome):
    driver.submit(writes(KEY))
    driver.submit()
    driver.submit_and_settle(reads(KEY))
    driver.post_done(0, outcome=outcome)
    assert ticket(driver, 0) != L.NONE == ticket(driver, 1)


@pytest.mark.spec("REMOTE-AHEAD-2")
@pytest.mark.parametrize("outcome", [None, L.SUCCESS, L.TASK_FAILURE])
def test_a_task_that_waits_for_one_of_another_worker_has_a_ticket_once_that_has_ended_well(
    outcome, make_driver
):
    driver = make_driver(depth=DEPTH, sub=0, next_level=2)
    for where, args in (1, [writes(KEY)]), (0, []), (0, [reads(KEY)]):
        driver.submit(*args, kind=L.NEXT_LEVEL, owner=where)
    driver.settle()
    if outcome is not None:
        driver.post_done(1, outcome=outcome)
    assert (ticket(driver, 1) != L.NONE) == (outcome == L.SUCCESS)


@pytest.mark.spec("REMOTE-AHEAD-2")
def test_a_task_that_will_be_skipped_has_no_ticket(driver):
    for _ in range(2):
        driver.submit()
    driver.settle()
    assert ticket(driver, 1) != L.NONE
    driver.finish_run(cancel=True)
    assert ticket(driver, 1) == L.NONE


# ---------------------------------------------------------------- 4: cancelled runs
class Stop(Exception):
    """What the orchestration function raises."""


@pytest.mark.long
@pytest.mark.spec("REMOTE-AHEAD-4")
def test_what_tasks_of_a_cancelled_run_have_written_is_known(tmp_path):
    with held(tmp_path) as it:
        x, mem = it.worker.zeros(COUNT, np.float32), it.worker._session.engine.mem
        for function in (far_side.clear, far_side.add_one, far_side.nothing):
            it.made.handle(function)
        before = it.frames()

        def orch_fn(orch, *_):
            it.hold(orch, "first")
            it.hold(orch, "second")
            it.submit(orch, far_side.nothing)
            it.submit(orch, far_side.clear, (x, EXISTING))
            wait_until(lambda: tasks_given(it.worker) == DEPTH)
            it.let_go("first")
            it.until_all_are_sent(before)
            raise Stop

        def let_go():
            words = [int(mem[L.A_WORKERS]) + i * L.WORKER_WORDS + L.W_SKIP for i in range(DEPTH)]
            wait_until(lambda: (mem[words] == L.SKIPPED).sum() >= 2)
            it.let_go("second")

        x[:] = 5
        with pytest.raises(Stop), Concurrently(let_go):
            it.worker.run(orch_fn)
        assert x[0] == 0, "it was sent, so it has run"
        it.made.run((far_side.add_one, given((x, INOUT)), {"worker": 0}))
        assert x.tolist() == [1] * COUNT


# ---------------------------------------------------------------- 5: the end of a session
@pytest.mark.spec("REMOTE-AHEAD-1", "REMOTE-AHEAD-5")
def test_shutdown_goes_before_tasks_that_have_not_begun():
    frames, order = SessionFrames(manifest(), -1, ""), Order(SESSION, ENDPOINT)
    with zmq.Context() as context:
        frames._socket, parent = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
        frames._peer = parent.identity = b"parent"
        frames._socket.bind("inproc://frames")
        parent.connect("inproc://frames")
        for payload in (b"1", b"2", b"3"):
            parent.send(order.encode(FrameType.TASK, payload))
        assert [frames.next_frame().payload for _ in range(2)] == [b"1", b"2"]
        parent.send(order.encode(FrameType.TASK, b"4"))
        assert frames.next_frame().payload == b"3", "in order"
        parent.send(order.encode(FrameType.SHUTDOWN))
        assert frames.next_frame().header.frame_type == FrameType.SHUTDOWN
        for one in (frames._socket, parent):
            one.close(linger=0)


def leaf(sequence, told, submit):
    """Return a task without tensors, for a sub worker."""
    return Work(sequence, told, (), (), lambda _: submit())


@pytest.mark.spec("REMOTE-AHEAD-5")
def test_a_session_that_ends_cancels_calls_for_tasks_that_sub_workers_have_not_begun():
    cancelled = []

    def submit():
        number = len(submitted)
        submitted.append(number)
        return SimpleNamespace(cancel=lambda: cancelled.append(number), done=lambda: False)

    submitted, stream = [], SimpleNamespace()
    leaves = SideBySide(lambda: stream, Copies(None, None), None, lambda: None)
    for sequence, after in ((1, ()), (2, ()), (3, (1,))):
        leaves.begin(leaf(sequence, Run(b"", after=after), submit))
    leaves.end()
    assert (submitted, cancelled) == ([0, 1], [0, 1])


@pytest.mark.spec("CALL-KEEP-3")
def test_a_task_that_waits_for_room_has_values_forgotten_once():
    dropped, futures = [], []

    def take(_tensors, _sizes):
        if len(futures) == 1 and not futures[0].is_done:
            raise MemoryError
        return []

    def submit():
        future = SimpleNamespace(is_done=False, result=lambda: None, cancel=lambda: None)
        future.done = lambda: future.is_done
        futures.append(future)
        return future

    stream = SimpleNamespace(ended=0)
    copies = SimpleNamespace(
        drop=dropped.extend, take=take, lacking=lambda _: [], settle=lambda *_: None
    )
    leaves = SideBySide(lambda: stream, copies, None, lambda: None)
    for sequence, keys in ((1, ()), (2, (7,))):
        leaves.begin(leaf(sequence, Run(b"", dropped=keys), submit))
    assert (len(futures), dropped) == (1, [7])
    futures[0].is_done = True
    assert [one.sequence for one in leaves.ends()] == [1]
    assert (len(futures), dropped) == (2, [7])
    leaves.end()


# ---------------------------------------------------------------- 8: tensors that move meanwhile
@pytest.mark.spec("REMOTE-AHEAD-1", "REMOTE-AHEAD-8")
def test_the_next_tasks_and_what_they_read_of_the_parent_are_sent_while_another_one_runs(
    tmp_path, monkeypatch
):
    store_all, log = ParentMemory.store_all, tmp_path / "stores"
    log.touch()

    def noted(self, run, coming):
        store_all(self, run, coming)
        with log.open("a") as file:
            file.write("." * bool(coming))

    monkeypatch.setattr(ParentMemory, "store_all", noted)
    with held(tmp_path) as it:
        for function in (far_side.copy, far_side.add_one):
            it.made.handle(function)
        x, y = (it.worker.zeros(LONG, np.float32) for _ in range(2))

        def orch_fn(orch, *_):
            it.hold(orch, "first")  # its link looks when this begins, and may be too early
            it.hold(orch, "second")
            it.submit(orch, far_side.copy, (x, INPUT), (y, EXISTING))
            it.submit(orch, far_side.add_one, (y, INOUT))
            wait_until(lambda: tasks_given(it.worker) == DEPTH)
            it.let_go("first")
            wait_until(log.read_text)
            it.until_all_are_sent(before)
            it.let_go("second")

        for number in range(1, 3):
            log.write_text("")
            x[:], before = number, it.frames()
            it.worker.run(orch_fn)
            assert (y == number + 1).all()
            assert log.read_text() == ".", "once in each run"
            for name in ("first", "second"):
                (tmp_path / name).unlink()


@pytest.mark.spec("REMOTE-AHEAD-8")
def test_a_copy_that_a_task_uses_stays_as_it_is_while_the_next_version_comes():
    copies, offered = store()

    def come(version):
        assert copies.open(1, 7, version, 4) == window_key(7, version)
        window = offered[window_key(7, version)]
        assert window.access == REMOTE_BUFFER_ACCESS_WRITE
        bytes_at(window.address, 4)[:] = bytes([version] * 4)

    def taken(version):
        (address,) = copies.take([CopiedTensor(7, version)], [4])
        return bytes(bytes_at(address, 4)), address

    come(1)
    first, address = taken(1)
    come(3)
    assert first == bytes(bytes_at(address, 4)) == b"\1\1\1\1"
    assert offered.keys() == {window_key(7, 1), window_key(7, 3)}
    assert (copies.counts()["copy_bytes"], taken(3)[0]) == (8, b"\3\3\3\3")
    assert offered[window_key(7, 3)].access == REMOTE_BUFFER_ACCESS_READ
    assert (offered.keys(), copies.counts()["copy_bytes"]) == ({window_key(7, 3)}, 4)
    come(4)
    copies.settle([CopiedTensor(7, 3, 9)], False)
    assert taken(4)[0] == b"\4\4\4\4", "a failure is not about what comes for later tasks"
    come(5)
    copies.begin(2)
    assert not offered and copies.counts()["copy_bytes"] == 0
    with pytest.raises(RemoteError, match="of an earlier run"):
        come(6)
    assert not offered


@pytest.mark.spec("REMOTE-AHEAD-8")
def test_only_its_parent_has_a_session_make_room():
    copies, _ = store()
    tasks = SessionTasks.__new__(SessionTasks)
    tasks._session_id, tasks._replaying, tasks.copies = SESSION, None, copies
    question = COMING.pack(1, 7, 1, 4)
    with pytest.raises(Refusal, match="not from the parent"):
        tasks.answer(SESSION + 1, question)
    assert copies.counts()["copy_bytes"] == 0
    assert int.from_bytes(tasks.answer(SESSION, question), "little") == window_key(7, 1)


# ---------------------------------------------------------------- 9: side by side
@pytest.mark.spec("REMOTE-AHEAD-9")
def test_tasks_that_share_no_tensor_run_at_the_same_time(tmp_path):
    paths = [os.fsencode(tmp_path / name).ljust(256, b"\0") for name in "ab"]
    spec = RemoteWorkerSpec(num_sub_workers=2, modules=["tests.far_side"])
    with Worker(fleet=spec, endpoints=1) as worker:
        meet = worker.register(far_side.meet)
        first, second = (worker.share(np.frombuffer(one, np.uint8).copy()) for one in paths)

        def orch_fn(orch, args, config):
            orch.submit_sub(meet, make_args((first, INPUT), (second, INPUT)))
            orch.submit_sub(meet, make_args((second, INPUT), (first, INPUT)))

        worker.run(orch_fn)


@pytest.mark.long
@pytest.mark.spec("REMOTE-AHEAD-9")
def test_a_function_that_submits_runs_when_all_tasks_before_it_have_ended():
    with Worker(level=4, mailbox_depth=8) as worker:
        worker.add_remote_worker(RemoteWorkerSpec(num_sub_workers=2))
        add_to = worker.register(RemoteCallable(far_side.name(far_side.add_to)), inner=True)
        add_one = worker.register(RemoteCallable(far_side.name(far_side.add_one)))
        ones, sums = (worker.share(np.full(8, k, np.int64)) for k in (1, 0))

        def orch_fn(orch, args, config):
            for _ in range(3):
                orch.submit_sub(add_to, make_args((ones, INPUT), (sums, INOUT)))
                orch.submit_next_level(add_one, make_args((sums, INOUT)))

        worker.run(orch_fn)
        assert sums.tolist() == [6] * 8
