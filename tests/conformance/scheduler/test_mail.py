"""SCHED-MAIL: the mailbox of a sub worker."""

import struct
import traceback
from collections import deque
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from simpler_ref import TaskArgs, TaskError, Worker
from simpler_ref.jit import layout as L
from simpler_ref.jit.kernel import INTERPRETED
from simpler_ref.task_interface import ContinuousTensor, DataType, MailboxState
from simpler_ref.task_interface import TensorArgType as T
from simpler_ref.workers.reports import write_error
from tests.spec_rules import tables
from tests.support import COMPLETED, DEADLINE_S, RUNNING, Driver, make_args, updates, wait_until

KEY = 0x7000_0000


@pytest.mark.spec("SCHED-MAIL-1", "SCHED-DISPATCH-1", "FLOW-ID-5")
def test_a_mailbox_is_laid_out_as_in_the_table(driver):
    tensors = [(KEY, 24, False), (KEY + 0x1_0000_0000, 7, True)]
    args = [updates(data, nbytes=size, child_memory=child) for data, size, child in tensors]
    slot = driver.start(*args, scalars=[3, 2**64 - 1, 2**63], callable=5, owner=0)
    assert driver.state(slot) == RUNNING
    box = driver.mailbox(driver.worker_of(slot)).tobytes()
    assert len(box) == 16384
    assert struct.unpack_from("<ii", box, 0) == (1, 0), "TASK_READY, no error"
    assert struct.unpack_from("<Q", box, 8) == (0,)
    assert box[1068:1072] == bytes(4)
    assert box[1072:1104] == driver.digest(5)
    assert struct.unpack_from("<ii", box, 1104) == (2, 3)
    for i, (data, size, child) in enumerate(tensors):
        found = struct.unpack_from("<Q5IIBB6s", box, 1112 + 40 * i)
        assert found == (data, size, 0, 0, 0, 0, 1, DataType.UINT8, child, bytes(6))
    assert struct.unpack_from("<3Q", box, 1112 + 80) == (3, 2**64 - 1, 2**63)


NONE, CLAIMED, ASKED, SILENT = "none", "has the mailbox", "has asked", "was given no answer"
NEW, UP, AT_TASK, AT_REQUEST, GONE, DEAD = "new", "up", "at a task", "at a request", "gone", "dead"


class MailboxModel:
    """One worker, and all who change the state of its mailboxes, each by steps, of which none waits.

    The steps are the kernels themselves. What Python code sees to (a request waits for no other, a worker
    that died is replaced between two runs, …) is said here, once more, by `steps`.
    """

    def __init__(self, depth):
        self.driver = Driver(sub=1, window=4, usable=False, depth=depth)
        self.driver.close_scope()  # so that a task that is done can be reclaimed
        mem = self.mem = self.driver.mem
        mem[L.SPIN_NS] = 0
        self._worker = self.driver._worker(0)
        self._frames = [self._worker + i * L.WORKER_WORDS for i in range(depth)]
        self._words = live_words(self.driver)
        self.actors = {"worker": NEW, "admitted": False, "requester": NONE}
        self.actors |= {"stop": False, "died": False}

    def save(self):
        return self.mem[self._words], dict(self.actors)

    def restore(self, saved):
        words, actors = saved
        self.mem[self._words] = words
        self.actors = dict(actors)

    def key(self):
        """Return what tells two situations apart."""
        mem, w = self.mem, self._worker
        words = (L.W_GIVEN, L.W_AT, L.W_TAIL, L.W_COLLECTED, L.W_USABLE, L.W_CLAIM, L.W_DEATH)
        waiting = len(self.driver.ready_queue(L.SUB))
        waiting_to_be_wired = mem[L.WIRING_PUSHED] - mem[L.WIRING_TAKEN]
        seen = mem[L.DEATHS] == mem[L.DEATHS_SEEN], mem[L.RUN_ERROR] != 0
        return (
            *self.states(),
            *self.actors.values(),
            *(int(mem[w + word]) for word in words),
            *(int(mem[L.LIVE]), int(waiting), int(waiting_to_be_wired), *map(bool, seen)),
        )

    def states(self):
        """Return the state of each frame's mailbox."""
        words = [int(self.mem[frame + L.W_MAILBOX + L.MAIL_STATE]) for frame in self._frames]
        return [MailboxState(word & 0xFFFFFFFF) for word in words]

    def steps(self):
        """Yield the party and the step of all that can happen now."""
        mem, k, x, actors = self.mem, self.driver.k, self.driver.x, self.actors
        worker, requester = actors["worker"], actors["requester"]
        tail = int(mem[self._worker + L.W_TAIL]) // L.WORKER_WORDS
        answered = self.states()[tail] == MailboxState.CONTROL_DONE

        if mem[L.LIVE] < 2 and not mem[L.RUN_ERROR]:
            yield "Orch", self.driver.submit
        yield "Scheduler", lambda: x.scheduler_pass(mem)
        if mem[L.CONSUMED_HEAD] != L.NONE:
            yield "Orch", self.driver.reclaim
        if worker not in (NEW, DEAD) and not actors["admitted"] and requester != SILENT:
            yield "Scheduler", lambda: (k.set_usable(mem, 0, 1), self._now(admitted=True))

        if worker == NEW:
            yield "worker", lambda: (k.report_ready(mem, 0), self._now(worker=UP))
        elif worker == UP:
            yield "worker", self._receive
        elif worker == AT_TASK:
            yield "worker", lambda: (x.post_done(mem, 0, L.SUCCESS), self._now(worker=UP))
        elif worker == AT_REQUEST:
            yield "worker", lambda: (x.post(mem, 0, L.CONTROL_DONE, 0), self._now(worker=UP))

        if requester == NONE and worker not in (NEW, DEAD) and not actors["stop"]:
            yield "Scheduler", self._claim
        elif requester == CLAIMED:
            yield "requester", lambda: (k.request_control(mem, 0, 0), self._now(requester=ASKED))
            yield "Scheduler", self._give_back
        elif requester == ASKED and (answered or worker == DEAD):
            yield "Scheduler", self._give_back
        elif requester == ASKED:
            yield "Scheduler", lambda: (k.abandon_mailbox(mem, 0), self._now(requester=SILENT))
        elif requester == SILENT and answered:
            yield "Scheduler", self._welcome_back

        if not actors["stop"] and requester in (NONE, SILENT):
            yield "closer", lambda: (k.request_stop(mem, 0), self._now(stop=True))
        if worker not in (GONE, DEAD) and not actors["stop"] and not actors["died"]:
            yield "monitor", lambda: (self.driver.kill(0), self._now(worker=DEAD, died=True))
        if worker == DEAD and requester in (NONE, SILENT) and mem[L.LIVE] == 0:
            yield "Scheduler", self._replace

    def _now(self, **actors):
        self.actors |= actors

    def _receive(self):
        answer = self.driver.x.receive(self.mem, 0)
        found = {L.STOP: GONE, L.CONTROL: AT_REQUEST, L.RESOLVE: AT_TASK}
        self._now(worker=found.get(answer, UP))

    def _claim(self):
        if self.driver.k.claim_mailbox(self.mem, 0, 0) == L.OK:
            self._now(requester=CLAIMED)

    def _give_back(self):
        self.driver.k.release_mailbox(self.mem, 0)
        self._now(requester=NONE)

    def _welcome_back(self):
        self._give_back()
        self.driver.k.set_usable(self.mem, 0, 1)

    def _replace(self):
        self.driver.k.set_usable(self.mem, 0, 0)
        self.driver.begin_run()
        self.driver.close_scope()
        self._now(worker=NEW, admitted=False, requester=NONE)


def live_words(driver):
    """Return the offsets of the words that change while an engine serves a few tasks without tensors.

    Left out is what no kernel acts on: what stands in a mailbox behind its state, and when a task began.
    """
    mem, few = driver.mem, 32
    ahead = [L.CANDIDATES + kind * L.CANDIDATES_CAPACITY for kind in range(2)]
    parts = [
        (L.RING_BLOCK, L.SCOPE_STACK + few),
        (L.SCHED, L.CANDIDATES),
        (L.ERROR_STATE, L.ERROR_NEEDING + L.STORY_WORDS),
        (L.PASS_LOCK, L.HEADER_WORDS),
    ]
    parts += [(first, first + few) for first in ahead]
    for frame in range(int(mem[L.WORKERS] * mem[L.DEPTH])):
        first = int(mem[L.A_WORKERS]) + frame * L.WORKER_WORDS
        parts.append((first, first + L.W_SINCE))
        parts.append((first + L.W_SINCE + 1, first + L.W_CACHE))
        parts.append((first + L.W_SLOT, first + L.W_MAILBOX + L.MAIL_COMMAND + 1))
    fifos = range(L.A_FIFO, L.A_FIFO + int(mem[L.RINGS]))
    for queue in (L.A_WIRING, *fifos):
        parts.append((int(mem[queue]), int(mem[queue]) + few))
    sizes = {L.A_SLOTS: int(mem[L.WINDOW]) * L.SLOT_WORDS, L.A_SPILL: 4 * L.SPILL_SMALLEST}
    parts += [(int(mem[area]), int(mem[area]) + size) for area, size in sizes.items()]
    return np.concatenate([np.arange(*part) for part in parts])


@pytest.mark.spec("SCHED-MAIL-2")
@pytest.mark.parametrize("depth", [pytest.param(1, marks=pytest.mark.kernels), 2])
def test_whatever_happens_in_whatever_order_the_state_changes_along_the_table(depth):
    """Every step of everybody is taken in every situation that steps can lead to."""
    model, found = MailboxModel(depth), set()
    known, todo = {model.key()}, deque([model.save()])
    while todo:
        situation = todo.popleft()
        model.restore(situation)
        before = model.states()
        for party, step in list(model.steps()):
            model.restore(situation)
            step()
            pairs = zip(before, model.states(), strict=True)
            found.update((party, old, new) for old, new in pairs if old != new)
            if (key := model.key()) not in known:
                known.add(key)
                todo.append(model.save())
    model.driver.close()
    assert found == {
        (party, MailboxState[old], MailboxState[new])
        for olds, new, party, _ in tables("SCHED-MAIL")[1]
        for old in olds.split(", ")
    }


@pytest.mark.spec("SCHED-MAIL-3")
def test_who_sees_the_state_sees_the_error_and_the_message_that_belong_to_it(driver):
    rounds = 200 if INTERPRETED else 200_000
    with ThreadPoolExecutor(2) as threads:
        seen = threads.submit(driver.x.watch_answers, driver.mem, 0, rounds)
        threads.submit(driver.x.answer_again_and_again, driver.mem, 0, rounds).result(DEADLINE_S)
        assert seen.result(DEADLINE_S) == 0


@pytest.mark.spec("SCHED-MAIL-4")
def test_an_unknown_digest_fails_its_task_and_the_worker_stays():
    with Worker(3, num_sub_workers=1) as w:
        ran = w.share(np.zeros(2, np.int64))
        known = w.register(lambda: ran.__setitem__(0, ran[0] + 1))
        unknown = w.register(lambda: ran.__setitem__(1, 1))
        w.start()
        pids, mem = w.worker_pids(), w._session.engine.mem
        at = (
            int(mem[L.A_CALLABLES])
            + (w._life.session.words[1][unknown] & L.CALLABLE_MASK) * L.DIGEST_WORDS
        )
        mem[at : at + L.DIGEST_WORDS] = 0x1111111111111111
        for _ in range(2):
            with pytest.raises(TaskError, match=r"1111.* is not installed in this worker"):
                w.run(lambda orch, *_: orch.submit_sub(unknown))
            w.run(lambda orch, *_: orch.submit_sub(known))
        assert (ran.tolist(), w.worker_pids()) == ([2, 0], pids)


@pytest.mark.spec("SCHED-MAIL-5")
def test_a_function_receives_tensors_and_scalars_in_order_and_bit_by_bit():
    tensors = [
        ContinuousTensor.make(KEY, (2, 3, 4, 5, 6), DataType.BFLOAT16),
        ContinuousTensor.make(2**64 - 1, (), DataType.UINT64, True),
        ContinuousTensor.make(0, (0,), DataType.BOOL),
        ContinuousTensor.make(KEY, (2**32 - 1,), DataType.INT8),
    ]
    scalars = [0, 1, 2**64 - 1, 2**63, 0x7FF8DEADBEEF0001]
    with Worker(3, num_sub_workers=1) as w:
        seen = w.share(np.zeros(1024, np.uint8))

        def copy(args: TaskArgs):
            words = [args.tensor(i)._wire for i in range(args.tensor_count())]
            words += [args.scalar(i).to_bytes(8, "little") for i in range(args.scalar_count())]
            raw = bytes([args.tensor_count(), args.scalar_count(), len(args)]) + b"".join(words)
            seen[: len(raw)] = np.frombuffer(raw, np.uint8)
            return "ignored"

        handle = w.register(copy)
        for tag in (T.NO_DEP, T.INPUT, T.OUTPUT_EXISTING, T.INOUT):
            args = make_args(*[(tensor, tag) for tensor in tensors], scalars=scalars)
            seen[:] = 0
            w.run(lambda orch, *_, args=args: orch.submit_sub(handle, args))
            expected = bytes([4, 5, 9]) + b"".join(tensor._wire for tensor in tensors)
            expected += struct.pack("<5Q", *scalars)
            assert seen[: len(expected)].tobytes() == expected, "whatever the tags were"


MOST = 2**31 - 1


@pytest.mark.spec("SCHED-MAIL-10")
@pytest.mark.parametrize("pair", [(-1, 0), (0, -1), (376, 0), (MOST, MOST)])
def test_a_worker_receives_no_task_whose_counts_are_wrong(one, pair):
    driver = one
    driver.start(updates(KEY), owner=0)
    driver.mailbox(0)[1104:1112] = np.frombuffer(struct.pack("<ii", *pair), np.uint8)
    assert driver.x.receive(driver.mem, 0) == L.MALFORMED


@pytest.mark.spec("SCHED-MAIL-10")
def test_such_a_task_fails_before_its_function_runs_and_the_worker_stays():
    with Worker(3, num_sub_workers=1, mailbox_depth=2) as w:
        ran = w.share(np.zeros(1, np.int64))

        def spoil_the_next():
            mem = w._session.engine.mem
            box = int(mem[L.A_WORKERS]) + L.WORKER_WORDS + L.W_MAILBOX
            wait_until(lambda: mem[box + L.MAIL_STATE] == MailboxState.TASK_READY)
            mem[box + L.MAIL_COUNTS] = struct.unpack("<q", struct.pack("<ii", 400, -3))[0]

        spoiler, victim = w.register(spoil_the_next), w.register(lambda: ran.__iadd__(1))
        w.start()
        pids = w.worker_pids()

        def orch_fn(orch, *_):
            orch.submit_sub(spoiler)
            orch.submit_sub(victim)

        with pytest.raises(
            TaskError, match="holds 400 tensors and -3 scalars, 15984 bytes, but has"
        ):
            w.run(orch_fn)
        w.run(lambda orch, *_: orch.submit_sub(victim))
        assert (ran.tolist(), w.worker_pids()) == ([1], pids)


@pytest.mark.spec("SCHED-MAIL-7")
@pytest.mark.parametrize("length", [0, 1, 200, 242, 243, 244, 1000, 70_000])
@pytest.mark.parametrize("letter", ["x", "ü", "漢", "🙂"])
def test_a_message_is_cut_to_fit_and_the_traceback_stands_beside_it(driver, length, letter):
    with pytest.raises(ValueError) as caught:
        raise ValueError(letter * length)
    error = caught.value
    driver.mailbox(1)[:] = 0x55
    before = driver.mailbox(1).copy()
    write_error(memoryview(driver.mailbox(1)), memoryview(driver.trace(1)), error)
    assert (driver.mailbox(1)[:16128] == before[:16128]).all(), "nothing but the message is written"
    message, rest = driver.mailbox(1)[16128:].tobytes().split(b"\0", 1)
    assert len(message) + 1 + len(rest) == 256
    assert f"ValueError: {letter * length}".startswith(message.decode())
    assert len(message) == min(12 + len(letter.encode()) * length, len(message))
    assert len(message) > 250 or message.decode() == f"ValueError: {letter * length}"
    size = int.from_bytes(driver.trace(1)[:8].tobytes(), "little")
    trace = driver.trace(1)[8 : 8 + size].tobytes().decode()
    whole = "".join(traceback.format_exception(error))
    if len(whole.encode()) <= 65528:
        assert trace == whole
    else:
        assert size <= 65528
        assert trace.startswith(whole[:1000]) and trace.endswith(whole[-500:])
    assert not driver.trace(0).any(), "the other worker's region is its own"


@pytest.fixture
def waiting(one):
    """Give a driver with one worker, and a function that starts a thread which plays it."""
    driver = one
    driver.mem[L.SPIN_NS] = 0
    with ThreadPoolExecutor(1) as threads:

        def wait(kernel=driver.x.park_and_receive):
            return threads.submit(kernel, driver.mem, 0)

        yield driver, wait
        driver.mem[L.SPIN_NS] = 0
        driver.k.request_stop(driver.mem, 0)  # should a failed test have left it asleep


@pytest.mark.spec("SCHED-MAIL-8")
def test_a_worker_without_work_spins_for_its_time_and_then_wants_to_park(driver):
    driver.mem[L.SPIN_NS] = 0
    assert driver.x.receive(driver.mem, 0) == L.PARK
    driver.mem[L.SPIN_NS] = 1_000_000
    assert driver.x.receive(driver.mem, 0) == L.PARK


@pytest.mark.spec("SCHED-MAIL-8")
@pytest.mark.parametrize(
    ("state", "what"),
    [
        *((L.IDLE, "stop"), (L.INIT_DONE, "stop"), (L.TASK_DONE, "stop")),
        *((L.TASK_DONE | 1 << 32, "stop"), (L.IDLE, "task"), (L.TASK_DONE, "task")),
    ],
)
def test_a_parked_worker_sleeps_through_states_not_for_it_until_a_task_or_a_stop(
    waiting, state, what
):
    driver, wait = waiting
    driver.mem[driver._worker(0) + L.W_MAILBOX] = state
    taken = wait()
    wait_until(lambda: driver.word(0, L.W_PARKED) == 1)
    if what == "task":
        driver.x.post(driver.mem, 0, L.IDLE, 0)
        driver.x.futex_wake(driver.mem, driver._worker(0) + L.W_MAILBOX)
        driver.start()
    else:
        driver.k.request_stop(driver.mem, 0)
    assert taken.result(DEADLINE_S) == (L.RESOLVE if what == "task" else L.STOP)
    assert what == "stop" or driver.word(0, L.W_PARKED) == 0


@pytest.mark.spec("SCHED-MAIL-9")
@pytest.mark.parametrize(
    "state", [L.IDLE, L.TASK_READY, L.TASK_DONE, L.INIT_DONE, L.CONTROL_DONE, L.CONTROL_REQUEST]
)
def test_no_state_that_is_written_later_undoes_a_request_to_stop(waiting, state):
    driver, wait = waiting
    driver.k.request_stop(driver.mem, 0)
    for _ in range(3):
        driver.x.post(driver.mem, 0, state, 0)
        driver.run_pass()
        driver.x.set_idle(driver.mem)
        driver.x.post(driver.mem, 0, state, 0)
        assert (wait().result(DEADLINE_S), driver.x.receive(driver.mem, 0)) == (L.STOP, L.STOP)


@pytest.mark.spec("SCHED-MAIL-9")
def test_the_request_to_stop_is_a_word_of_its_own_that_stays_set(waiting):
    driver, wait = waiting
    stop = driver._worker(0) + L.W_SHUTDOWN
    assert stop // L.LINE != (driver._worker(0) + L.W_MAILBOX) // L.LINE
    slot, before = driver.start(), driver.words()
    driver.k.request_stop(driver.mem, 0)
    assert driver.changed_since(before) == [stop], "the state of a task at work is left alone"
    assert driver.k.finish_and_receive(driver.mem, 0, 0) == L.STOP
    driver.settle()
    assert driver.state(slot) == COMPLETED, "its answer counts"
    assert (wait().result(DEADLINE_S), driver.mem[stop]) == (L.STOP, 1)
